// SPDX-License-Identifier: Apache-2.0
// The serial chain of the chunk-16 prefill kernel: two math warpgroups, each with 64 rows of S in registers.
#pragma once

#include "ops/delta_rule/sm90_chunk16_layout.cuh"

namespace fluvial::sm90::chunk16 {

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

template <class StateT, Mode kMode, Gate kGate>
__device__ __forceinline__ void MathLoop(Smem<kGate>& sm, const DeltaParams& p, const Task& task) {
  const int thread = Opaque(threadIdx.x);
  const int lane = thread & 31, warp = thread >> 5;  // warps 0..7
  const int wg = warp >> 2;
  const int row = wg * 64 + (warp & 3) * 16 + (lane >> 2), col = 2 * (lane & 3);
  const int chunks = static_cast<int>((task.length + kChunk - 1) / kChunk);

  float s[64];
  if constexpr (kMode == Mode::kReplay) {
    LoadState(s, task.start, row, col);
  } else {
    const int slot = task.from_pool ? p.read_slots[task.seq] : -1;
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
  const bool with_out = kMode != Mode::kScan || !task.transfer;  // and v
  uint32_t a[32];
  StateToOperand(a, s);

  __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + task.begin * p.out_row +
                       static_cast<int64_t>(task.head) * kDim + wg * 64 + (warp & 3) * 16;
  // ldmatrix lane address inside a v tile: token rows, this warp's 16 values.
  const int v_token = (lane & 7) + ((lane >> 4) << 3);
  const int v_unit = wg * 8 + (warp & 3) * 2 + ((lane >> 3) & 1);
  const uint32_t v_offset = TileOffset<kChunk>(v_token, v_unit);

  float xo[16];        // X and S qd
  uint32_t packed[4];  // the previous chunk's output, out of the accumulators before the next wgmma starts
  int at_stage = 0, turn = 0;
  int zero_after = kNever;
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    Stage<kGate>& st = sm.stage[at_stage];
    BarrierWait(&sm.full[at_stage], turn);

    const uint64_t b = MatrixDescriptor(SmemAddr(st.operands), 16, 1024, 1);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      // A step of 16 channels is 32 bytes inside the 128-byte swizzle atom; the upper 64 channels are kHalf on.
      const uint64_t at = b + (k >> 2) * (kHalf / 16) + (k & 3) * 2;
      WgmmaM64N32K16(xo, &a[4 * k], at, k != 0);
    }
    WgmmaCommit();

    // While X and S qd run: the previous chunk's output, v and the decay factors. (S itself has to wait: ptxas
    // serialises a wgmma with any change of another one's accumulators.)
    if (c > 0 && with_out)
      StoreOut(packed, sm.out[warp], out + (c - 1) * (kChunk * p.out_row), p.out_row, kChunk, lane);
    // The transposed load gives (values, tokens): matrices in the order a0 a1 a2 a3 of the A operand.
    uint32_t v[4] = {0, 0, 0, 0};
    if (with_out) {
      if constexpr (kGate == Gate::kPerChannel) BarrierWait(&sm.v[at_stage], turn);  // GDN's teams have waited
      LoadMatrix4Transposed(v, SmemAddr(st.v) + v_offset);
    }
    float4 d[8];
    float2 xf[2], of[2];
    if constexpr (kGate == Gate::kPerChannel) {
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] = *reinterpret_cast<const float4*>(&st.decay[(lane & 3) * kDecayPitch + 4 * j]);
      xf[0] = xf[1] = of[0] = of[1] = make_float2(1.f, 1.f);
    } else {
      const float e = st.decay[0];
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] = make_float4(e, e, e, e);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        xf[i] = *reinterpret_cast<const float2*>(&st.x_rows[col + 8 * i]);
        of[i] = *reinterpret_cast<const float2*>(&st.o_rows[col + 8 * i]);
      }
    }
    WgmmaWait<0>();
    Pin(xo);
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r[i] = PackBf16(fmaf(-xf[i >> 1].x, xo[2 * i], Bf16Lo(v[i])), fmaf(-xf[i >> 1].y, xo[2 * i + 1], Bf16Hi(v[i])));
    }
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
    for (int i = 0; i < 8; ++i) {
      if constexpr (kGate == Gate::kPerHead)
        o[i] = xo[8 + i] * (i & 1 ? of[i >> 2].y : of[i >> 2].x);
      else
        o[i] = xo[8 + i];
    }
    WgmmaFence();
    WgmmaM64N128K16Transposed(s, r, MatrixDescriptor(SmemAddr(st.w), kTile / 2, 1024, 1));
    WgmmaM64N16K16(o, r, MatrixDescriptor(SmemAddr(st.p), 128, 256, 0), 1);
    WgmmaCommit();
    WgmmaWait<0>();
    Pin(s);
    Pin(o);
    __syncwarp();
    if (lane == 0) BarrierArrive(&sm.empty[at_stage]);
    StateToOperand(a, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = PackBf16(o[2 * i], o[2 * i + 1]);
    Pin(packed);
    Pin(a);
    if (++at_stage == kStages<kGate>) at_stage = 0, turn ^= 1;
    if constexpr (kMode == Mode::kScan) {
      uint32_t bits = with_out;  // never zero for a run with outputs
#pragma unroll
      for (int i = 0; i < 64; ++i) bits |= __float_as_uint(s[i]) & 0x7fffffffu;
      if (!with_out) bits = NamedBarrierAny(kMathBarrier, kMathThreads, bits != 0);
      if (!__any_sync(~0u, bits != 0)) {
        zero_after = c + 1;
        break;
      }
    }
  }
  if constexpr (kMode == Mode::kScan) {
    if (!with_out) {
      if (thread == 0) {
        *task.steps = zero_after;
        sm.stop = zero_after;
      }
      __syncwarp();
      if (zero_after != kNever) {
        // The teams wait for chunks that nobody will read: one arrival per stage lets them look at `stop`.
        if (lane == 0) {
          for (int i = 0; i < kStages<kGate>; ++i) BarrierArrive(&sm.empty[i]);
        }
        return;
      }
    }
  }
  if (with_out && chunks > 0) {
    const int64_t done = static_cast<int64_t>(chunks - 1) * kChunk;
    StoreOut(packed, sm.out[warp], out + done * p.out_row, p.out_row, static_cast<int>(task.length - done), lane);
  }
  if (kMode == Mode::kScan && !task.to_pool) {
    StoreState(s, task.end, row, col);
  } else if (task.to_pool) {
    const int slot = p.write_slots[task.seq];
    if (slot >= 0) StoreState(s, PoolState<StateT>(p, slot, task.head), row, col);
  }
}

}  // namespace fluvial::sm90::chunk16
