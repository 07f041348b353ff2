// SPDX-License-Identifier: Apache-2.0
// KDA prefill on sm_90a, chunk 16, bounded gate: one CTA per (sequence, value head), or per segment of a sequence.
//
// Two math warpgroups each hold 64 rows of S^T (V x K) as fp32 wgmma accumulators for the whole sequence; two
// factor warpgroups (four teams of two warps) turn q, k, gate and beta of the next chunks into the operands of
// the chain. With G the cumulative log decay inside the chunk (inclusive), kd = k e^G, qd = scale q e^G,
// kn = k e^-G, A = strict_lower(beta_i <kd_i, kn_j>), P = lower(<qd_i, kn_j>), T = (I + A)^-1 (operators:
// Yang et al., arXiv 2412.06464, section 3; Kimi Linear, arXiv 2510.26692), the chain per chunk is
//     X = S kd^T,  R = v - X,  S <- S diag(e^G_end) + R W,  o = S_old qd^T + R P'^T,
//     W = diag(beta) T^T kn diag(e^G_end),   P' = P T diag(beta).
// The inverse and W are off the serial chain, which is two dependent groups of wgmma.
//
// Segments (few heads, long sequences): the recurrence is affine in S, so a segment maps the rows of S by s -> s M + b.
// Mode::kScan runs the chain of every segment but the last twice - from zero state (b) and from the identity with
// v = 0 (M) - CombineSegments turns these into the state at each segment's start, and Mode::kReplay runs all
// segments from there. Exact, at about three times the work of Mode::kWhole.
//
// Why 16: the bounded gate gives |G| <= 80 nats = 115.4 bits in a chunk, so kn stays below 2^116 and fits bf16.
// Rounding points (mirrored by the test reference): kd, qd, kn, W, P', T diag(beta), R and the copy of S that
// feeds X and o are bf16; everything else is fp32.
#pragma once

#include <cstddef>

#include "ops/delta_rule/sm90_delta_params.h"
#include "ops/delta_rule/sm90_ptx.cuh"

namespace fluvial::sm90 {

namespace kda16 {

constexpr int kChunk = 16;
constexpr int kDim = 128;  // K = V
constexpr int kTeams = 4;  // factor teams = pipeline stages; team t makes chunks t, t+4, ...
constexpr int kTeamThreads = 64;
constexpr int kMathThreads = 256;
constexpr int kThreads = kMathThreads + kTeams * kTeamThreads;
constexpr int kTile = kChunk * kDim * 2;  // bytes of one bf16 chunk tile

constexpr int kDecayPitch = 36;  // floats; 32 would put the four lanes of a quad on one bank

/// One pipeline stage, written by its team, read by both math warpgroups. Tiles hold [channel half][row][64
/// channels] with the 128-byte swizzle: 16-byte unit u of row r sits at u ^ (r & 7).
struct alignas(1024) Stage {
  uint8_t operands[3 * kTile];  // rows 0..15 kd, 16..31 qd, 32..47 kn (kn is the team's own): [half][48][128 B]
  uint8_t w[kTile];             // [half][16][128 B], columns contiguous (MN-major B operand)
  uint8_t v[2][kTile];          // two buffers: the next chunk's v arrives while this one is read
  uint8_t p[512];               // P' as [i/8][j/8][i%8][j%8], no swizzle
  float decay[4 * kDecayPitch]; // e^G_end of channel 8 j + 2 m + e at [m][2 j + e]: eight 16-byte loads per math thread
};
constexpr uint32_t kHalf = 48 * 128;  // bytes between the channel halves of `operands`
constexpr uint32_t kQdRows = 16 * 128, kKnRows = 32 * 128;

/// A team's private memory.
struct alignas(1024) Scratch {
  uint8_t x[2][kTile], k[2][kTile], q[2][kTile];  // raw inputs: this chunk and the team's next
  float a_columns[kChunk][20];                    // A transposed: [j][i]; 20 keeps rows 16-byte aligned
  uint8_t y[kChunk * 32];                         // (T diag(beta))^T as [j][i] bf16
  float k_norm[kChunk], q_norm[kChunk];           // row factors, 0 beyond the end of the sequence
};

struct Smem {
  Stage stage[kTeams];
  Scratch scratch[kTeams];
  uint8_t out[8][512];  // per math warp: [16 tokens][16 values] bf16 on its way out
  uint64_t full[kTeams];    // factors are written
  uint64_t empty[kTeams];   // the chain has read them
  uint64_t raw[kTeams][2];  // q, k, gate have arrived
  uint64_t v[kTeams][2];    // v has arrived
};

/// Byte offset of (row, 16-byte unit 0..15) in a tile of `rows` rows.
template <int kRows>
__device__ __forceinline__ uint32_t TileOffset(int row, int unit) {
  return (unit >> 3) * (kRows * 128) + row * 128 + (((unit ^ row) & 7) << 4);
}

enum class Mode { kWhole, kScan, kReplay };

/// What one CTA works on.
struct Task {
  int seq, head;
  int64_t begin, length;  // tokens
  bool transfer;          // kScan: from the identity with v = 0, for M
  bool last;              // the sequence's last segment
  float* workspace;       // [V][K] fp32 of this segment: kScan writes its b or M, kReplay reads its start state
};

// ---- math warpgroups ------------------------------------------------------------------------------------------
template <class T>
__device__ __forceinline__ void LoadState(float (&s)[64], const T* base, int row, int col) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const T* at = base + (row + 8 * r) * kDim + 8 * j + col;
      if constexpr (sizeof(T) == 4) {
        const float2 x = *reinterpret_cast<const float2*>(at);
        s[4 * j + 2 * r] = x.x;
        s[4 * j + 2 * r + 1] = x.y;
      } else {
        const uint32_t x = *reinterpret_cast<const uint32_t*>(at);
        s[4 * j + 2 * r] = Bf16Lo(x);
        s[4 * j + 2 * r + 1] = Bf16Hi(x);
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void StoreState(const float (&s)[64], T* base, int row, int col) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      T* at = base + (row + 8 * r) * kDim + 8 * j + col;
      if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float2*>(at) = make_float2(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]);
      } else {
        *reinterpret_cast<uint32_t*>(at) = PackBf16(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]);
      }
    }
  }
}

/// State of `head` in `slot` of the pool.
template <class StateT>
__device__ __forceinline__ StateT* PoolState(const DeltaParams& p, int slot, int head) {
  return static_cast<StateT*>(p.state) + slot * p.slot_pitch + head * (kDim * kDim);
}

/// Fragments of S as the A operand: the accumulator layout of columns 16s..16s+15 is the A layout of step s.
__device__ __forceinline__ void StateToOperand(uint32_t (&a)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) a[i] = PackBf16(s[2 * i], s[2 * i + 1]);
}

/// Writes one chunk's output of this warp: o is [16 values][16 tokens] as accumulators.
__device__ __forceinline__ void StoreOut(const uint32_t (&o)[4], uint8_t* tile, __nv_bfloat16* out, int64_t row_pitch,
                                         int valid, int lane) {
  // Transposed through shared memory; units are swizzled by token/4 to spread the banks.
  const int token = (lane & 7) + ((lane >> 4) << 3), unit = (lane >> 3) & 1;
  const uint32_t smem = SmemAddr(tile);
  StoreMatrix4Transposed(smem + token * 32 + ((unit ^ ((token >> 2) & 1)) << 4), o[0], o[1], o[2], o[3]);
  __syncwarp();
  const int t = lane >> 1, u = lane & 1;
  const uint4 x = *reinterpret_cast<const uint4*>(tile + t * 32 + ((u ^ ((t >> 2) & 1)) << 4));
  if (t < valid) *reinterpret_cast<uint4*>(out + t * row_pitch + u * 8) = x;
  __syncwarp();  // before the next chunk overwrites the tile
}

template <class StateT, Mode kMode>
__device__ __forceinline__ void MathLoop(Smem& sm, const DeltaParams& p, const Task& task) {
  const int thread = Opaque(threadIdx.x);
  const int lane = thread & 31, warp = thread >> 5;  // warps 0..7
  const int wg = warp >> 2;
  const int row = wg * 64 + (warp & 3) * 16 + (lane >> 2), col = 2 * (lane & 3);
  const int chunks = static_cast<int>((task.length + kChunk - 1) / kChunk);

  float s[64];
  if constexpr (kMode == Mode::kReplay) {
    LoadState(s, task.workspace, row, col);
  } else {
    const int slot = kMode == Mode::kWhole ? p.read_slots[task.seq] : -1;
    if (slot >= 0) {
      LoadState(s, PoolState<const StateT>(p, slot, task.head), row, col);
    } else {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const bool diagonal = row + 8 * ((i >> 1) & 1) == 8 * (i >> 2) + col + (i & 1);
        s[i] = kMode == Mode::kScan && task.transfer && diagonal ? 1.f : 0.f;
      }
    }
  }
  Pin(s);
  uint32_t a[32];
  StateToOperand(a, s);

  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + task.begin * p.out_row +
                       static_cast<int64_t>(task.head) * kDim + wg * 64 + (warp & 3) * 16;
  // ldmatrix lane address inside a v tile: token rows, this warp's 16 values.
  const int v_token = (lane & 7) + ((lane >> 4) << 3);
  const int v_unit = wg * 8 + (warp & 3) * 2 + ((lane >> 3) & 1);
  const uint32_t v_offset = TileOffset<kChunk>(v_token, v_unit);

  float xo[kMode == Mode::kScan ? 8 : 16];  // X, and S qd where outputs are made
  uint32_t packed[4];  // the previous chunk's output, out of the accumulators before the next wgmma starts
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    Stage& st = sm.stage[c & (kTeams - 1)];
    BarrierWait(&sm.full[c & (kTeams - 1)], (c / kTeams) & 1);

    const uint64_t b = MatrixDescriptor(SmemAddr(st.operands), 16, 1024, 1);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      // A step of 16 channels is 32 bytes inside the 128-byte swizzle atom; the upper 64 channels are kHalf on.
      const uint64_t at = b + (k >> 2) * (kHalf / 16) + (k & 3) * 2;
      if constexpr (kMode == Mode::kScan) WgmmaM64N16K16(xo, &a[4 * k], at, k != 0);
      else WgmmaM64N32K16(xo, &a[4 * k], at, k != 0);
    }
    WgmmaCommit();

    // While X and S qd run: the previous chunk's output, v and the decay factors. (S itself has to wait: ptxas
    // serialises a wgmma with any change of another one's accumulators.)
    if (kMode != Mode::kScan && c > 0) StoreOut(packed, sm.out[warp], out + (c - 1) * (kChunk * p.out_row), p.out_row, kChunk, lane);
    // The transposed load gives (values, tokens): matrices in the order a0 a1 a2 a3 of the A operand.
    uint32_t v[4] = {0, 0, 0, 0};
    if (kMode != Mode::kScan || !task.transfer) {
    BarrierWait(&sm.v[c & (kTeams - 1)][(c / kTeams) & 1], (c / (2 * kTeams)) & 1);
    LoadMatrix4Transposed(v, SmemAddr(st.v[(c / kTeams) & 1]) + v_offset);
    }
    float4 d[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) d[j] = *reinterpret_cast<const float4*>(&st.decay[(lane & 3) * kDecayPitch + 4 * j]);
    WgmmaWait<0>();
    Pin(xo);
    uint32_t r[4];
    r[0] = PackBf16(Bf16Lo(v[0]) - xo[0], Bf16Hi(v[0]) - xo[1]);
    r[1] = PackBf16(Bf16Lo(v[1]) - xo[2], Bf16Hi(v[1]) - xo[3]);
    r[2] = PackBf16(Bf16Lo(v[2]) - xo[4], Bf16Hi(v[2]) - xo[5]);
    r[3] = PackBf16(Bf16Lo(v[3]) - xo[6], Bf16Hi(v[3]) - xo[7]);

#pragma unroll
    for (int j = 0; j < 8; ++j) {
      s[8 * j] *= d[j].x;
      s[8 * j + 1] *= d[j].y;
      s[8 * j + 2] *= d[j].x;
      s[8 * j + 3] *= d[j].y;
      s[8 * j + 4] *= d[j].z;
      s[8 * j + 5] *= d[j].w;
      s[8 * j + 6] *= d[j].z;
      s[8 * j + 7] *= d[j].w;
    }
    float o[8];
    // o gets its own accumulators: two wgmmas whose accumulators overlap in part make ptxas serialise both.
#pragma unroll
    for (int i = 0; i < 8; ++i) o[i] = kMode == Mode::kScan ? 0.f : xo[(8 + i) % (sizeof(xo) / 4)];
    WgmmaFence();
    WgmmaM64N128K16Transposed(s, r, MatrixDescriptor(SmemAddr(st.w), kTile / 2, 1024, 1));
    if constexpr (kMode != Mode::kScan) WgmmaM64N16K16(o, r, MatrixDescriptor(SmemAddr(st.p), 128, 256, 0), 1);
    WgmmaCommit();
    WgmmaWait<0>();
    Pin(s);
    Pin(o);
    __syncwarp();
    if (lane == 0) BarrierArrive(&sm.empty[c & (kTeams - 1)]);
    StateToOperand(a, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = PackBf16(o[2 * i], o[2 * i + 1]);
    Pin(packed);
    Pin(a);
  }
  if (kMode != Mode::kScan && chunks > 0) {
    const int64_t done = static_cast<int64_t>(chunks - 1) * kChunk;
    StoreOut(packed, sm.out[warp], out + done * p.out_row, p.out_row, static_cast<int>(task.length - done), lane);
  }
  if constexpr (kMode == Mode::kScan) {
    StoreState(s, task.workspace, row, col);
  } else if (task.last) {
    const int slot = p.write_slots[task.seq];
    if (slot >= 0) StoreState(s, PoolState<StateT>(p, slot, task.head), row, col);
  }
}

// ---- factor teams ---------------------------------------------------------------------------------------------
/// The stored value only: its first use, half a pipeline turn later, is where the load is waited for.
__device__ __forceinline__ uint32_t LoadBeta(const DeltaParams& p, int64_t token, int head) {
  const int64_t at = token * p.beta_row + head;
  return p.beta_fp32 ? static_cast<const uint32_t*>(p.beta)[at] : static_cast<const uint16_t*>(p.beta)[at];
}
__device__ __forceinline__ float Beta(const DeltaParams& p, uint32_t stored) {
  const float x = __uint_as_float(p.beta_fp32 ? stored : stored << 16);
  if (p.beta_form == 0) return x;
  const float sigmoid = Reciprocal(1.f + __expf(-x));
  return p.beta_form == 1 ? sigmoid : 2.f * sigmoid;
}

__device__ __forceinline__ float NormFactor(const DeltaParams& p, float sum) {
  if (p.norm_form == 0) return 1.f;
  return rsqrtf(p.norm_form == 1 ? sum + p.norm_eps : fmaxf(sum, p.norm_eps));
}

/// diag(M M^T) of a [16 x 128] bf16 tile: lane 4*(i%8) + (i%8)/2 holds row i in the returned value (rows 0..7 first
/// component, 8..15 second). Products are exact, sums fp32. tile_lane: the tile's address plus MatrixLane().
__device__ __forceinline__ float2 RowSquares(uint32_t tile_lane, int lane) {
  // All loads first, then two independent chains per half: the latency of one chain is the cost here.
  uint32_t m[8][4];
#pragma unroll
  for (int k = 0; k < 8; ++k) LoadMatrix4(m[k], (tile_lane ^ ((2 * k & 7) << 4)) + (k >> 2) * (kTile / 2));
  float d0[4] = {0, 0, 0, 0}, d1[4] = {0, 0, 0, 0}, e0[4] = {0, 0, 0, 0}, e1[4] = {0, 0, 0, 0};
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    Mma16816(d0, m[k], m[k][0], m[k][2]);
    Mma16816(d1, m[k], m[k][1], m[k][3]);
    Mma16816(e0, m[k + 1], m[k + 1][0], m[k + 1][2]);
    Mma16816(e1, m[k + 1], m[k + 1][1], m[k + 1][3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    d0[i] += e0[i];
    d1[i] += e1[i];
  }
  const bool odd = (lane >> 2) & 1;
  return make_float2(odd ? d0[1] : d0[0], odd ? d1[3] : d1[2]);
}

/// Starts the copies of one chunk's q, k and gate into raw buffer `buffer`; one thread. Rows beyond the sequence
/// arrive as whatever follows (zeros beyond the tensor): ZeroTail removes them.
template <bool kOutputs>
__device__ __forceinline__ void FetchRaw(const DeltaParams& p, Scratch& sc, uint64_t* bar, int buffer, int key_head, int head,
                                         int token) {
  BarrierExpect(bar, (kOutputs ? 3 : 2) * kTile);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t at = buffer * kTile + half * (kTile / 2);
    TensorLoad3(SmemAddr(sc.k) + at, &p.k_map, bar, 64 * half, key_head, token);
    if (kOutputs) TensorLoad3(SmemAddr(sc.q) + at, &p.q_map, bar, 64 * half, key_head, token);
    TensorLoad3(SmemAddr(sc.x) + at, &p.gate_map, bar, 64 * half, head, token);
  }
}

__device__ __forceinline__ void FetchV(const DeltaParams& p, uint8_t* tile, uint64_t* bar, int head, int token) {
  BarrierExpect(bar, kTile);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    TensorLoad3(SmemAddr(tile) + half * (kTile / 2), &p.v_map, bar, 64 * half, head, token);
  }
}

/// Zeros in rows valid..15 of a tile: the next sequence's values (or NaN) must not meet even a zero factor.
__device__ __forceinline__ void ZeroTail(uint32_t tile, int thread, int valid) {
  for (int i = thread; i < (kChunk - valid) * 16; i += kTeamThreads) {
    StoreShared4(tile + ((i & 15) >> 3) * (kTile / 2) + (valid + (i >> 4)) * 128 + (i & 7) * 16, 0, 0, 0, 0);
  }
}

/// This lane's part of an ldmatrix address in a swizzled tile: row lane & 15, unit lane >> 4. Unit 2k of the same
/// half is at `^ (2k << 4)`.
__device__ __forceinline__ uint32_t MatrixLane(int lane) {
  return (lane & 15) * 128 + ((((lane >> 4) ^ lane) & 7) << 4);
}

/// Norm factors of one raw tile's rows (0 beyond `valid`), times `factor`; one warp.
__device__ __forceinline__ void WriteNorms(const DeltaParams& p, uint32_t tile_lane, uint32_t to, float factor, int lane,
                                           int valid) {
  const float2 sq = RowSquares(tile_lane, lane);
  const int i = lane >> 2;
  if ((lane & 3) == (i >> 1)) {
    StoreShared(to + i * 4, i < valid ? factor * NormFactor(p, sq.x) : 0.f);
    StoreShared(to + i * 4 + 32, i + 8 < valid ? factor * NormFactor(p, sq.y) : 0.f);
  }
}

template <Mode kMode>
__device__ __forceinline__ void FactorLoop(Smem& sm, const DeltaParams& p, const Task& task) {
  constexpr bool kOutputs = kMode != Mode::kScan;  // q is used
  const int head = task.head;
  const int64_t begin = task.begin, length = task.length;
  const bool with_v = kOutputs || !task.transfer;
  const int id = static_cast<int>(Opaque(threadIdx.x)) - kMathThreads;
  const int thread = id & (kTeamThreads - 1), team = id / kTeamThreads;
  const int warp = thread >> 5;  // 0 or 1
  const int bar = 1 + team;
  const int chunks = static_cast<int>((length + kChunk - 1) / kChunk);
  Scratch& scratch = sm.scratch[team];
  Stage& stage = sm.stage[team];
  const int key_head = head / p.group;

  // This thread forms channels 2 thread, 2 thread + 1.
  const float kLog2e = 1.4426950408889634f;
  const float slope = -kLog2e * (p.a_log != nullptr ? __expf(p.a_log[head]) : 1.f);
  float bias0 = 0, bias1 = 0;
  if (p.dt_bias != nullptr) {
    bias0 = p.dt_bias[head * kDim + 2 * thread] * slope;
    bias1 = p.dt_bias[head * kDim + 2 * thread + 1] * slope;
  }
  const float bound = p.lower_bound * kLog2e;

  const int token0 = static_cast<int>(begin);
  auto rows_of = [&](int c) {
    return static_cast<int>(max(int64_t{0}, min(static_cast<int64_t>(kChunk), length - static_cast<int64_t>(c) * kChunk)));
  };
  uint32_t beta_next = 0;
  if (team < chunks) {
    const int lane = thread & 31;
    const int valid = rows_of(team);
    if (thread == 0) {
      FetchRaw<kOutputs>(p, scratch, &sm.raw[team][0], 0, key_head, head, token0 + team * kChunk);
      if (with_v) FetchV(p, stage.v[0], &sm.v[team][0], head, token0 + team * kChunk);
      if (team + kTeams < chunks) {
        FetchRaw<kOutputs>(p, scratch, &sm.raw[team][1], 1, key_head, head, token0 + (team + kTeams) * kChunk);
      }
    }
    if ((lane & 15) < valid) beta_next = LoadBeta(p, begin + team * kChunk + (lane & 15), head);
    BarrierWait(&sm.raw[team][0], 0);
    if (valid < kChunk) {
      ZeroTail(SmemAddr(scratch.k[0]), thread, valid);
      if (kOutputs) ZeroTail(SmemAddr(scratch.q[0]), thread, valid);
      ZeroTail(SmemAddr(scratch.x[0]), thread, valid);
      NamedBarrier(bar, kTeamThreads);
    }
    if (warp == 0) WriteNorms(p, SmemAddr(scratch.k[0]) + MatrixLane(lane), SmemAddr(scratch.k_norm), 1.f, lane, valid);
    else if (kOutputs) WriteNorms(p, SmemAddr(scratch.q[0]) + MatrixLane(lane), SmemAddr(scratch.q_norm), p.scale, lane, valid);
  }

#pragma unroll 1
  for (int c = team, n = 0; c < chunks; c += kTeams, ++n) {
    // Unhoisted: addresses are recomputed from these few registers in every turn, which is cheaper than the spills
    // that hoisting them out of the loop costs.
    const int lane = Unhoisted(thread & 31);
    const uint32_t sc = Unhoisted(SmemAddr(&scratch)), st = Unhoisted(SmemAddr(&stage));
    const int valid = rows_of(c), next = rows_of(c + kTeams);
    const uint32_t beta_stored = beta_next;
    if (n > 0) BarrierWait(&sm.empty[team], (n - 1) & 1);  // the stage is free again
    NamedBarrier(bar, kTeamThreads);                        // norms are written, the last chunk's kn is read

    // 1. Decays and the decayed operands. Row r of this thread's two channels is at `^ ((r & 7) << 4)` + 128 r.
    {
      const uint32_t raw = sc + (n & 1) * kTile + warp * (kTile / 2) + lane * 4;
      const uint32_t formed = st + warp * kHalf + lane * 4;
      float g0 = 0, g1 = 0;
      uint32_t x[4], k[4], q[4];
      auto load = [&](int r4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at = (raw ^ (((r4 + i) & 7) << 4)) + (r4 + i) * 128;
          x[i] = LoadShared(at + offsetof(Scratch, x));
          k[i] = LoadShared(at + offsetof(Scratch, k));
          if (kOutputs) q[i] = LoadShared(at + offsetof(Scratch, q));
        }
      };
      load(0);
#pragma unroll
      for (int r4 = 0; r4 < kChunk; r4 += 4) {
        const float4 kn4 = LoadShared4(sc + offsetof(Scratch, k_norm) + r4 * 4);
        const float4 qn4 = kOutputs ? LoadShared4(sc + offsetof(Scratch, q_norm) + r4 * 4) : kn4;
        uint32_t kd[4], qd[4], kn[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float kf = i == 0 ? kn4.x : i == 1 ? kn4.y : i == 2 ? kn4.z : kn4.w;
          const float qf = i == 0 ? qn4.x : i == 1 ? qn4.y : i == 2 ? qn4.z : qn4.w;
          const float lb = r4 + i < valid ? bound : 0.f;
          g0 = fmaf(lb, Reciprocal(1.f + Exp2(fmaf(Bf16Lo(x[i]), slope, bias0))), g0);
          g1 = fmaf(lb, Reciprocal(1.f + Exp2(fmaf(Bf16Hi(x[i]), slope, bias1))), g1);
          const float e0 = Exp2(g0), e1 = Exp2(g1), n0 = Exp2(-g0), n1 = Exp2(-g1);
          const float k0 = Bf16Lo(k[i]) * kf, k1 = Bf16Hi(k[i]) * kf;
          kd[i] = PackBf16(k0 * e0, k1 * e1);
          if (kOutputs) qd[i] = PackBf16(Bf16Lo(q[i]) * qf * e0, Bf16Hi(q[i]) * qf * e1);
          kn[i] = PackBf16(k0 * n0, k1 * n1);
        }
        // The next rows are loaded before these are stored: the stores would hold the loads back.
        if (r4 + 4 < kChunk) load(r4 + 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at = (formed ^ (((r4 + i) & 7) << 4)) + (r4 + i) * 128;
          StoreShared(at, kd[i]);
          if (kOutputs) StoreShared(at + kQdRows, qd[i]);
          StoreShared(at + kKnRows, kn[i]);
        }
      }
      StoreShared2(st + offsetof(Stage, decay) + (thread & 3) * (kDecayPitch * 4) + (thread >> 2) * 8, Exp2(g0), Exp2(g1));
    }
    // The next chunk's raw tiles, asked for a turn ago, and this chunk's v if it needs its tail zeroed.
    if (next > 0) {
      BarrierWait(&sm.raw[team][(n + 1) & 1], ((n + 1) >> 1) & 1);
      if (next < kChunk) {
        const uint32_t raw = sc + ((n + 1) & 1) * kTile;
        ZeroTail(raw + offsetof(Scratch, k), thread, next);
        if (kOutputs) ZeroTail(raw + offsetof(Scratch, q), thread, next);
        ZeroTail(raw + offsetof(Scratch, x), thread, next);
      }
    }
    if (with_v && valid < kChunk) {
      BarrierWait(&sm.v[team][n & 1], (n >> 1) & 1);
      ZeroTail(st + offsetof(Stage, v) + (n & 1) * kTile, thread, valid);
    }
    NamedBarrier(bar, kTeamThreads);

    // 2. This chunk's raw tiles are read: fetch the chunk after the next into them. v goes to the other buffer,
    //    whose reader (chunk c - 4) is done since `empty` said so.
    if (thread == 0) {
      if (c + 2 * kTeams < chunks) {
        FetchRaw<kOutputs>(p, scratch, &sm.raw[team][n & 1], n & 1, key_head, head, token0 + (c + 2 * kTeams) * kChunk);
      }
      if (with_v && next > 0) FetchV(p, stage.v[(n + 1) & 1], &sm.v[team][(n + 1) & 1], head, token0 + (c + kTeams) * kChunk);
    }
    if ((lane & 15) < next) beta_next = LoadBeta(p, begin + static_cast<int64_t>(c + kTeams) * kChunk + (lane & 15), head);

    // 3. A (warp 0) and P (warp 1).
    const uint32_t matrix = st + MatrixLane(lane);
    float d0[4] = {0, 0, 0, 0}, d1[4] = {0, 0, 0, 0};
    if (kOutputs || warp == 0) {
      const uint32_t left = matrix + warp * kQdRows, right = matrix + kKnRows;
      float e0[4] = {0, 0, 0, 0}, e1[4] = {0, 0, 0, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t m[4][4], b[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          LoadMatrix4(m[k], (left ^ (k << 5)) + half * kHalf);
          LoadMatrix4(b[k], (right ^ (k << 5)) + half * kHalf);
        }
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          Mma16816(d0, m[k], b[k][0], b[k][2]);
          Mma16816(d1, m[k], b[k][1], b[k][3]);
          Mma16816(e0, m[k + 1], b[k + 1][0], b[k + 1][2]);
          Mma16816(e1, m[k + 1], b[k + 1][1], b[k + 1][3]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d0[i] += e0[i];
        d1[i] += e1[i];
      }
    }
    const int i0 = lane >> 2, j0 = 2 * (lane & 3);
    if (warp == 0) {
      // A transposed and masked; the upper part may be infinite and is selected away.
      const float beta = (lane & 15) < valid ? Beta(p, beta_stored) : 0.f;
      const float b0 = __shfl_sync(~0u, beta, i0), b1 = __shfl_sync(~0u, beta, i0 + 8);
      const uint32_t columns = sc + offsetof(Scratch, a_columns), to = columns + j0 * 80 + i0 * 4;
      StoreShared(to, j0 < i0 ? b0 * d0[0] : 0.f);
      StoreShared(to + 80, j0 + 1 < i0 ? b0 * d0[1] : 0.f);
      StoreShared(to + 32, b1 * d0[2]);
      StoreShared(to + 80 + 32, b1 * d0[3]);
      StoreShared(to + 8 * 80 + 32, j0 < i0 ? b1 * d1[2] : 0.f);
      StoreShared(to + 9 * 80 + 32, j0 + 1 < i0 ? b1 * d1[3] : 0.f);
      __syncwarp();
      // Column lane & 15 of T = (I + A)^-1 by forward substitution (lanes 16..31 repeat 0..15).
      float t[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) t[i] = i == (lane & 15) ? 1.f : 0.f;
#pragma unroll
      for (int j = 0; j < 15; ++j) {
#pragma unroll
        for (int i4 = (j + 1) / 4 * 4; i4 < 16; i4 += 4) {
          const float4 a = LoadShared4(columns + j * 80 + i4 * 4);
          if (i4 + 0 > j) t[i4 + 0] = fmaf(-a.x, t[j], t[i4 + 0]);
          if (i4 + 1 > j) t[i4 + 1] = fmaf(-a.y, t[j], t[i4 + 1]);
          if (i4 + 2 > j) t[i4 + 2] = fmaf(-a.z, t[j], t[i4 + 2]);
          if (i4 + 3 > j) t[i4 + 3] = fmaf(-a.w, t[j], t[i4 + 3]);
        }
      }
      if (lane < 16) {
        uint32_t y[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = PackBf16(t[2 * i] * beta, t[2 * i + 1] * beta);
        StoreShared4(sc + offsetof(Scratch, y) + lane * 32, y[0], y[1], y[2], y[3]);
        StoreShared4(sc + offsetof(Scratch, y) + lane * 32 + 16, y[4], y[5], y[6], y[7]);
      }
    } else {
      // Meanwhile warp 1 makes the row norms of the team's next chunk.
      const uint32_t raw = sc + ((n + 1) & 1) * kTile + MatrixLane(lane);
      WriteNorms(p, raw + offsetof(Scratch, k), sc + offsetof(Scratch, k_norm), 1.f, lane, next);
      if (kOutputs) WriteNorms(p, raw + offsetof(Scratch, q), sc + offsetof(Scratch, q_norm), p.scale, lane, next);
    }
    NamedBarrier(bar, kTeamThreads);

    // 4. W (half of the channels per warp) and P' (warp 1).
    {
      uint32_t y[4];
      LoadMatrix4(y, sc + offsetof(Scratch, y) + (lane & 15) * 32 + (lane >> 4) * 16);
      const uint32_t from = matrix + kKnRows + warp * kHalf;
      const uint32_t to = st + offsetof(Stage, w) + warp * (kTile / 2) + i0 * 128 + i0 * 16 + j0 * 2;
      const uint32_t decay = st + offsetof(Stage, decay) + (lane & 3) * (kDecayPitch * 4) + warp * 64;
#pragma unroll
      for (int u = 0; u < 8; u += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(b, from ^ (u << 4));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float w[4] = {0, 0, 0, 0};
          Mma16816(w, y, b[2 * h], b[2 * h + 1]);
          const float2 e = LoadShared2(decay + (u + h) * 8);
          StoreShared(to ^ ((u + h) << 4), PackBf16(w[0] * e.x, w[1] * e.y));
          StoreShared((to ^ ((u + h) << 4)) + 1024, PackBf16(w[2] * e.x, w[3] * e.y));
        }
      }
      if (kOutputs && warp == 1) {
        uint32_t pf[4];
        pf[0] = PackBf16(j0 <= i0 ? d0[0] : 0.f, j0 + 1 <= i0 ? d0[1] : 0.f);
        pf[1] = PackBf16(d0[2], d0[3]);
        pf[2] = 0;
        pf[3] = PackBf16(j0 <= i0 ? d1[2] : 0.f, j0 + 1 <= i0 ? d1[3] : 0.f);
        float p0[4] = {0, 0, 0, 0}, p1[4] = {0, 0, 0, 0};
        Mma16816(p0, pf, y[0], y[2]);
        Mma16816(p1, pf, y[1], y[3]);
        const uint32_t pt = st + offsetof(Stage, p) + i0 * 16 + j0 * 2;
        StoreShared(pt, PackBf16(p0[0], p0[1]));
        StoreShared(pt + 128, PackBf16(p1[0], p1[1]));
        StoreShared(pt + 256, PackBf16(p0[2], p0[3]));
        StoreShared(pt + 384, PackBf16(p1[2], p1[3]));
      }
    }
    FenceProxyAsync();
    BarrierArrive(&sm.full[team]);
  }
}

/// Segments of a sequence of `length` tokens: at least one, so that an empty sequence hands its state on.
__device__ __forceinline__ int Segments(int64_t length, int64_t segment) {
  return max(1, static_cast<int>((length + segment - 1) / segment));
}

/// Finds the task of this block; false when the grid is larger than the work. In kScan and kReplay the grid is
/// (segments, heads [x 2 in kScan]); segment s of a sequence is `segment_tokens` tokens from s * segment_tokens.
template <Mode kMode>
__device__ __forceinline__ bool FindTask(const DeltaParams& p, Task* task) {
  const int sequences = p.header->sequences;
  if constexpr (kMode == Mode::kWhole) {
    const int index = blockIdx.x / p.hv;
    if (index >= sequences) return false;
    task->seq = p.order[index];
    task->head = blockIdx.x % p.hv;
    task->begin = p.offsets[task->seq];
    task->length = p.offsets[task->seq + 1] - task->begin;
    task->last = true;
    return true;
  } else {
    constexpr int kKinds = kMode == Mode::kScan ? 2 : 1;
    const int per_segment = p.hv * kKinds;
    const int index = blockIdx.x / per_segment, rest = blockIdx.x % per_segment;
    task->head = rest % p.hv;
    task->transfer = rest >= p.hv;
    int first = 0;  // segments of the sequences before
    for (int n = 0; n < sequences; ++n) {
      const int64_t begin = p.offsets[n], length = p.offsets[n + 1] - begin;
      const int count = Segments(length, p.segment_tokens);
      if (index < first + count) {
        const int segment = index - first;
        task->seq = n;
        task->begin = begin + segment * p.segment_tokens;
        task->last = segment == count - 1;
        task->length = task->last ? length - segment * p.segment_tokens : p.segment_tokens;
        const int64_t cell = (static_cast<int64_t>(index) * p.hv + task->head) * 2 + (kMode == Mode::kScan && task->transfer);
        task->workspace = p.workspace + cell * (kDim * kDim);
        return kMode == Mode::kReplay || !task->last;  // nobody starts from the end of a last segment
      }
      first += count;
    }
    return false;
  }
}

template <class StateT, Mode kMode>
__global__ void __launch_bounds__(kThreads, 1) KdaPrefillKernel(const __grid_constant__ DeltaParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Smem& sm = *reinterpret_cast<Smem*>(raw);
  Task task{};
  if (!FindTask<kMode>(p, &task)) return;

  if (threadIdx.x == 0) {
    for (int t = 0; t < kTeams; ++t) {
      BarrierInit(&sm.full[t], kTeamThreads);
      BarrierInit(&sm.empty[t], kMathThreads / 32);
      for (int i = 0; i < 2; ++i) {
        BarrierInit(&sm.raw[t][i], 1);
        BarrierInit(&sm.v[t][i], 1);
      }
    }
    BarrierInitFence();
  }
  __syncthreads();
  if (threadIdx.x < kMathThreads) {
    RegistersUp<160>();
    MathLoop<StateT, kMode>(sm, p, task);
  } else {
    RegistersDown<96>();
    FactorLoop<kMode>(sm, p, task);
  }
}

constexpr int kCombineRows = 16;  // rows of S per CTA: rows are independent

/// Start states of all segments from the scan: start_0 = the slot's state, start_{s+1} = start_s M_s + b_s, each over
/// the b it consumed (cell 2 (segment hv + head) of the workspace becomes start of `segment`). fp32 throughout.
template <class StateT>
__global__ void __launch_bounds__(256) CombineSegments(const __grid_constant__ DeltaParams p) {
  __shared__ float s[kCombineRows][kDim + 4];
  const int blocks = kDim / kCombineRows;
  const int row0 = blockIdx.x % blocks * kCombineRows;
  const int head = blockIdx.x / blocks % p.hv, seq = blockIdx.x / blocks / p.hv;
  if (seq >= p.header->sequences) return;
  int first = 0;
  for (int n = 0; n < seq; ++n) first += Segments(p.offsets[n + 1] - p.offsets[n], p.segment_tokens);
  const int count = Segments(p.offsets[seq + 1] - p.offsets[seq], p.segment_tokens);
  const int column = threadIdx.x & 127, half = threadIdx.x >> 7;  // eight rows per thread
  constexpr int kRows = kCombineRows / 2;

  float state[kRows];
  const int slot = p.read_slots[seq];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = row0 + half * kRows + r;
    state[r] = 0.f;
    if (slot >= 0) state[r] = static_cast<float>(PoolState<const StateT>(p, slot, head)[row * kDim + column]);
  }
  for (int segment = 0; segment < count; ++segment) {
    float* b = p.workspace + (static_cast<int64_t>(first + segment) * p.hv + head) * 2 * (kDim * kDim);
    const float* m = b + kDim * kDim;
    float next[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float* cell = b + (row0 + half * kRows + r) * kDim + column;
      next[r] = segment + 1 < count ? *cell : 0.f;
      *cell = state[r];
    }
    if (segment + 1 == count) break;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) s[half * kRows + r][column] = state[r];
    __syncthreads();
    for (int k = 0; k < kDim; k += 8) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = m[(k + i) * kDim + column];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 lo = *reinterpret_cast<const float4*>(&s[half * kRows + r][k]);
        const float4 hi = *reinterpret_cast<const float4*>(&s[half * kRows + r][k + 4]);
        next[r] = fmaf(lo.x, x[0], fmaf(lo.y, x[1], fmaf(lo.z, x[2], fmaf(lo.w, x[3], next[r]))));
        next[r] = fmaf(hi.x, x[4], fmaf(hi.y, x[5], fmaf(hi.z, x[6], fmaf(hi.w, x[7], next[r]))));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) state[r] = next[r];
  }
}

}  // namespace kda16
}  // namespace fluvial::sm90
