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

/// States of cells are kept as the threads hold them, so that copies are whole lines: FragmentIndex (pieces.cuh).
__device__ __forceinline__ void LoadFragments(float (&s)[64], const float* cell, int thread) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(cell) + i * kMathThreads + thread);
    s[4 * i] = x.x;
    s[4 * i + 1] = x.y;
    s[4 * i + 2] = x.z;
    s[4 * i + 3] = x.w;
  }
}
__device__ __forceinline__ void StoreFragments(const float (&s)[64], float* cell, int thread) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    reinterpret_cast<float4*>(cell)[i * kMathThreads + thread] =
        make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
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

// ---- boundaries -----------------------------------------------------------------------------------------------
// No branch here depends on the thread: behind one, ptxas would keep the stage of the main loop in vector registers and
// rebuild every descriptor in every turn (25 instructions before the first wgmma).

/// All math threads' earlier writes, then `saved` = n, for CTAs that wait with AwaitSaves.
__device__ __forceinline__ void PublishSaves(Boundary* at, int n, int thread) {
  NamedBarrier(kMathBarrier, kMathThreads);
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.s32 p, %2, 0;\n"
      "@p fence.acq_rel.gpu;\n"
      "@p st.release.gpu.global.s32 [%0], %1;\n}" ::"l"(&at->saved),
      "r"(n), "r"(thread)
      : "memory");
}
__device__ __forceinline__ void AwaitSaves(const Boundary* at, int n) {
  int saved;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(saved) : "l"(&at->saved) : "memory");
  } while (__any_sync(~0u, saved < n));
}
__device__ __forceinline__ void CountFailure(const DeltaParams& p, Boundary* at, int thread) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.s32 p, %2, 0;\n"
      "@p st.global.s32 [%0], 1;\n"
      "@p red.global.add.s32 [%1], 1;\n}" ::"l"(&at->failed),
      "l"(p.failures), "r"(thread)
      : "memory");
}

/// Whether the CTA's state has the very bits of the one at `saved`; all math threads return the same.
__device__ __forceinline__ bool SameBits(const float (&s)[64], const float* saved, int thread) {
  uint32_t different = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // eight loads in flight
    uint4 x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = __ldcg(reinterpret_cast<const uint4*>(saved) + (8 * half + i) * kMathThreads + thread);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = 4 * (8 * half + i);
      different |= (x[i].x ^ __float_as_uint(s[at])) | (x[i].y ^ __float_as_uint(s[at + 1])) |
                   (x[i].z ^ __float_as_uint(s[at + 2])) | (x[i].w ^ __float_as_uint(s[at + 3]));
    }
  }
  return !__any_sync(~0u, NamedBarrierAny(kMathBarrier, kMathThreads, different != 0));
}

/// The saves of a piece are published twice: the first ones with the last, which finds their stores long done, and the
/// last at the piece's end. Each fence waits for all stores before it.
__device__ __forceinline__ bool Publishes(const Piece& piece, int c) {
  return (piece.flags & kFromZero) != 0 && (c == SavePoint(kSaves - 1) || c == piece.own);
}
/// Whether the outputs up to chunk `c` must be written at this event.
template <Mode kMode>
__device__ __forceinline__ bool FlushesOutput(const Piece& piece, int c) {
  return kMode != Mode::kBalanced || c >= piece.own || Publishes(piece, c);
}

/// The chunk of the piece after `c` at which BoundaryEvent has something to do.
__device__ __forceinline__ int NextEvent(const Piece& piece, int c) {
  if ((piece.flags & kFromZero) == 0) return piece.own;
  int next = SavePoint(0);
  while (next <= c) next *= 2;
  return next > SavePoint(kSaves - 1) ? piece.own : min(next, piece.own);
}

/// After `c` > 0 chunks of the piece: leaves the state for the CTA before, or compares it with what the CTA behind
/// left. Returns the chunk to run to; `c` at the end.
__device__ __forceinline__ int BoundaryEvent(const PieceTable& table, const Piece& piece, const DeltaParams& p,
                                             const float (&s)[64], int c, int thread) {
  const int j = Part();
  Boundary* const boundary = static_cast<Boundary*>(p.boundaries) + j;
  const int over = c - piece.own;
  int save = 0;  // of the next piece, to be met
  if (over <= 0) {
    // Saves before this chunk; SavePoint(k) is 2^(k+1).
    const int before = min(31 - __clz(max(c - 1, 1)), kSaves);
    if (Publishes(piece, c)) PublishSaves(boundary, before, thread);
    if ((piece.flags & kFromZero) != 0 && before < kSaves && c == SavePoint(before)) {
      StoreFragments(s, CellOf(p, j)->saves[before], thread);
    }
    if (over < 0) return NextEvent(piece, c);
    if ((piece.flags & kCut) == 0) return c;
    StoreFragments(s, CellOf(p, j + 1)->end, thread);
  } else {
    save = 31 - __clz(over);  // the one after this one
    if (SameBits(s, CellOf(p, j + 1)->saves[save - 1], thread)) return c;
    if (save == kSaves || SavePoint(save) >= table.next_own) {
      CountFailure(p, boundary + 1, thread);
      return c;
    }
  }
  AwaitSaves(boundary + 1, save + 1);  // what that CTA wrote to `out` before is overwritten from here on
  return piece.own + SavePoint(save);
}

template <class StateT, Mode kMode, Gate kGate>
__device__ __forceinline__ void MathLoop(Smem<kGate>& sm, const DeltaParams& p) {
  constexpr bool kWithOut = kMode != Mode::kTransfer;  // and v
  const int thread = Opaque(threadIdx.x);
  const int lane = thread & 31, warp = thread >> 5;  // warps 0..7
  const int wg = warp >> 2;
  const int row = wg * 64 + (warp & 3) * 16 + (lane >> 2), col = 2 * (lane & 3);
  // ldmatrix lane address inside a v tile: token rows, this warp's 16 values.
  const int v_token = (lane & 7) + ((lane >> 4) << 3);
  const int v_unit = wg * 8 + (warp & 3) * 2 + ((lane >> 3) & 1);
  const uint32_t v_offset = TileOffset<kChunk>(v_token, v_unit);

  float xo[16];        // X and S qd
  uint32_t packed[4];  // the previous chunk's output, out of the accumulators before the next wgmma starts
  int at_stage = 0, turn = 0;
#pragma unroll 1
  for (int n = 0; n < sm.table.pieces; ++n) {
    const Piece& piece = sm.table.piece[n];
    // Of chunk c - 1, whose output is in `packed` while `pending`.
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(p.out) + (piece.token - kChunk) * p.out_row +
                         static_cast<int64_t>(piece.head) * kDim + wg * 64 + (warp & 3) * 16;
    bool pending = false;
    float s[64];
    const int slot = kMode == Mode::kWhole || (piece.flags & kFromZero) == 0 ? p.read_slots[piece.seq] : -1;
    if (kMode == Mode::kReplay) {
      LoadFragments(s, (piece.flags & kFromZero) ? CellOf(p, Part())->end : CellOf(p, Part())->final, thread);
    } else if (slot >= 0) {
      LoadState(s, PoolState<const StateT>(p, slot, piece.head), row, col);
    } else {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const bool diagonal = row + 8 * ((i >> 1) & 1) == 8 * (i >> 2) + col + (i & 1);
        s[i] = kMode == Mode::kTransfer && diagonal ? 1.f : 0.f;
      }
    }
    Pin(s);

    int c = 0;
    int until = kMode == Mode::kBalanced ? __reduce_max_sync(~0u, NextEvent(piece, 0)) : piece.own;
    // A fixed number of turns, whatever happens in them: ptxas keeps the stage in uniform registers only then.
#pragma unroll 1
    for (int event = 0; event < (kMode == Mode::kBalanced ? 2 * kSaves + 1 : 1); ++event) {
      uint32_t a[32];  // made again after each event, so that it needs no registers there
      Pin(s);
      StateToOperand(a, s);
      Pin(a);  // or ptxas moves half of s back and forth in every turn
      const int left = __shfl_sync(~0u, until - c, 0);
      at_stage = __shfl_sync(~0u, at_stage, 0);
      turn = __shfl_sync(~0u, turn, 0);
#pragma unroll 1
      for (int i = 0; i < left; ++i) {
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
        if (kWithOut && pending) StoreOut(packed, sm.out[warp], out, p.out_row, kChunk, lane);
        // The transposed load gives (values, tokens): matrices in the order a0 a1 a2 a3 of the A operand.
        uint32_t v[4] = {0, 0, 0, 0};
        if constexpr (kWithOut) {
          LoadMatrix4Transposed(v, SmemAddr(st.v) + v_offset);
        }
        float2 xf[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) xf[i] = LoadShared2(SmemAddr(&st.x_rows[col + 8 * i]));
        WgmmaWait<0>();
        Pin(xo);
        // Only now, when the registers of `a` are free: before, these do not fit.
        float2 of[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) of[i] = LoadShared2(SmemAddr(&st.o_rows[col + 8 * i]));
        float4 d[8];
        if constexpr (kGate == Gate::kPerChannel) {
          const uint32_t decay = SmemAddr(st.decay) + (lane & 3) * (kDecayPitch * 4);
#pragma unroll
          for (int j = 0; j < 8; ++j) d[j] = LoadShared4(decay + 16 * j);
        } else {
          const float e = st.decay[0];
#pragma unroll
          for (int j = 0; j < 8; ++j) d[j] = make_float4(e, e, e, e);
        }
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          r[i] =
              PackBf16(fmaf(-xf[i >> 1].x, xo[2 * i], Bf16Lo(v[i])), fmaf(-xf[i >> 1].y, xo[2 * i + 1], Bf16Hi(v[i])));
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
          o[i] = xo[8 + i] * (i & 1 ? of[i >> 2].y : of[i >> 2].x);
        }
        Pin(o);
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
        out += kChunk * p.out_row;
        pending = true;
        if (++at_stage == kStages<kGate>) at_stage = 0, turn ^= 1;
      }
      c += left;
      if (kWithOut && pending && FlushesOutput<kMode>(piece, c)) {
        StoreOut(packed, sm.out[warp], out, p.out_row, min(kChunk, piece.rows - (c - 1) * kChunk), lane);
        pending = false;
      }
      if (kMode == Mode::kBalanced && left > 0) {
        until = max(c, BoundaryEvent(sm.table, piece, p, s, c, thread));
      }
    }
    if constexpr (kMode == Mode::kTransfer) {
      StoreFragments(s, CellOf(p, Part())->saves[0], thread);
    } else if (kMode == Mode::kBalanced && (piece.flags & kCut) != 0) {
      // The teams may wait for chunks that nobody will read: one arrival per stage lets them look at `stop`.
      if (thread == 0) sm.stop = piece.first + c;
      __syncwarp();
      if (lane == 0) {
        for (int i = 0; i < kStages<kGate>; ++i) BarrierArrive(&sm.empty[i]);
      }
    } else if (kMode == Mode::kBalanced && (piece.flags & kFromZero) != 0) {
      StoreFragments(s, CellOf(p, Part())->final, thread);
    } else if ((piece.flags & kEndsSequence) != 0) {
      const int to = p.write_slots[piece.seq];
      if (to >= 0) StoreState(s, PoolState<StateT>(p, to, piece.head), row, col);
    }
  }
}

}  // namespace fluvial::sm90::chunk16
