// SPDX-License-Identifier: Apache-2.0
// What both vision-attention kernels share: parameters, tiles in shared memory, the two products, the softmax of a tile
// and the store of a warpgroup's 64 rows.
//
// A tile is R rows of one head. Columns 0..63 (and 64..127 for D = 128) lie as [64-column block][row][128 B] with the
// 128-byte swizzle; for D = 72 and 80 columns 64..79 lie apart as [row][32 B] with the 32-byte swizzle, where the
// tensor map fills columns beyond D with zeros: nothing but the D columns of a row is read from memory.
#pragma once

#include <cuda.h>

#include <cmath>
#include <cstdint>

#include "ops/common/sequence_plan.h"
#include "ops/common/sm90_ptx.cuh"

namespace fluvial::sm90::vision {

struct Params {
  // {D, heads, rows, sequences} with boxes of 64 and of 16 columns.
  CUtensorMap q_main, k_main, v_main, q_tail, k_tail, v_tail;
  __nv_bfloat16* out;
  float* lse;  ///< null: not wanted
  // Elements; see ops::vision_attention::RowStrides.
  int64_t out_sequence, out_packed, out_token, out_head;
  int64_t lse_sequence, lse_packed, lse_token, lse_head;
  const ops::PlanHeader* header;
  const int64_t* offsets;
  const int32_t* order;
  int32_t heads, d;
  int32_t padded;    ///< 1: sequence n is row block n of the maps; 0: its rows start at its offset
  float scale;       ///< of the scores
  float scale_log2;  ///< the same times log2(e)
};

/// kMain = 64 or 128 columns with the 128-byte swizzle, kTail = 0 or 16 with the 32-byte one.
template <int kMain, int kTail>
struct Tile {
  static constexpr int kBlocks = kMain / 64;
  static constexpr uint32_t MainBytes(int rows) { return static_cast<uint32_t>(rows * kMain * 2); }
  static constexpr uint32_t TailBytes(int rows) { return static_cast<uint32_t>(rows * kTail * 2); }
  static constexpr uint32_t Bytes(int rows) { return MainBytes(rows) + TailBytes(rows); }
};

/// Loads `kRows` rows from (head, row, sequence); their bytes count towards `bar`. One thread.
template <int kMain, int kTail, int kRows>
__device__ __forceinline__ void LoadTile(uint32_t main, uint32_t tail, const CUtensorMap* main_map,
                                         const CUtensorMap* tail_map, uint64_t* bar, int head, int row, int sequence) {
#pragma unroll
  for (int b = 0; b < kMain / 64; ++b) {
    TensorLoad4(main + b * kRows * 128, main_map, bar, b * 64, head, row, sequence);
  }
  if constexpr (kTail != 0) TensorLoad4(tail, tail_map, bar, 64, head, row, sequence);
}

/// Rows [valid, kRows) of a value tile become zero: a probability of zero must not meet a NaN. `thread` of 128.
template <int kMain, int kTail, int kRows>
__device__ __forceinline__ void ZeroRows(uint32_t main, uint32_t tail, int valid, int thread) {
  // Swizzles move 16-byte units within a row only.
  for (int i = thread; i < (kRows - valid) * 8; i += 128) {
#pragma unroll
    for (int b = 0; b < kMain / 64; ++b) StoreShared4(main + b * kRows * 128 + valid * 128 + i * 16, 0, 0, 0, 0);
  }
  if constexpr (kTail != 0) {
    for (int i = thread; i < (kRows - valid) * 2; i += 128) StoreShared4(tail + valid * 32 + i * 16, 0, 0, 0, 0);
  }
  FenceProxyAsync();
}

/// Accumulators of a warpgroup's 64 rows; thread layout of wgmma: two rows, 8 apart.
template <int kMain, int kTail>
struct Output {
  float main[kMain / 2];
  float tail[kTail == 0 ? 1 : 8];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kMain / 2; ++i) main[i] = 0;
#pragma unroll
    for (int i = 0; i < (kTail == 0 ? 1 : 8); ++i) tail[i] = 0;
  }
  __device__ __forceinline__ void PinAll() {
    Pin(main);
    if constexpr (kTail != 0) Pin(tail);
  }
  __device__ __forceinline__ void Scale(float row0, float row8) {
#pragma unroll
    for (int i = 0; i < kMain / 2; ++i) main[i] *= (i & 2) != 0 ? row8 : row0;
    if constexpr (kTail != 0) {
#pragma unroll
      for (int i = 0; i < 8; ++i) tail[i] *= (i & 2) != 0 ? row8 : row0;
    }
  }
};

__device__ __forceinline__ void ScoreStep(float (&s)[32], uint64_t a, uint64_t b, int accumulate) {
  WgmmaM64N64K16(s, a, b, accumulate);
}
__device__ __forceinline__ void ScoreStep(float (&s)[48], uint64_t a, uint64_t b, int accumulate) {
  WgmmaM64N96K16(s, a, b, accumulate);
}
__device__ __forceinline__ void ScoreStep(float (&s)[64], uint64_t a, uint64_t b, int accumulate) {
  WgmmaM64N128K16(s, a, b, accumulate);
}

/// s = Q K^T: 64 rows of a query tile of kQRows rows, starting at `row`, against kKeys keys. Asynchronous.
template <int kMain, int kTail, int kQRows, int kKeys>
__device__ __forceinline__ void Scores(float (&s)[kKeys / 2], uint32_t q_main, uint32_t q_tail, int row,
                                       uint32_t k_main, uint32_t k_tail) {
#pragma unroll
  for (int step = 0; step < kMain / 16; ++step) {
    // A step of 16 columns is 32 bytes inside the 128-byte swizzle atom.
    const uint64_t a = MatrixDescriptor(q_main + (step / 4) * kQRows * 128 + row * 128 + (step % 4) * 32, 16, 1024, 1);
    const uint64_t b = MatrixDescriptor(k_main + (step / 4) * kKeys * 128 + (step % 4) * 32, 16, 1024, 1);
    ScoreStep(s, a, b, step != 0);
  }
  if constexpr (kTail != 0) {
    ScoreStep(s, MatrixDescriptor(q_tail + row * 32, 16, 256, 3), MatrixDescriptor(k_tail, 16, 256, 3), 1);
  }
}

/// o += P V over kKeys keys; p holds the A operands of kKeys / 16 steps. Asynchronous.
template <int kMain, int kTail, int kKeys>
__device__ __forceinline__ void Values(Output<kMain, kTail>& o, const uint32_t (&p)[kKeys / 4], uint32_t v_main,
                                       uint32_t v_tail) {
#pragma unroll
  for (int j = 0; j < kKeys / 16; ++j) {
    const uint64_t b = MatrixDescriptor(v_main + j * 2048, kKeys * 128, 1024, 1);
    if constexpr (kMain == 64) {
      WgmmaM64N64K16Transposed(o.main, &p[4 * j], b);
    } else {
      WgmmaM64N128K16Transposed(o.main, &p[4 * j], b);
    }
    if constexpr (kTail != 0) {
      WgmmaM64N16K16Transposed(o.tail, &p[4 * j], MatrixDescriptor(v_tail + j * 512, kKeys * 32, 256, 3));
    }
  }
}

/// Scores of keys >= valid count as not there. Column of s[i]: 8 (i / 4) + 2 (lane % 4) + i % 2.
template <int kCount>
__device__ __forceinline__ void MaskKeys(float (&s)[kCount], int valid, int lane) {
  const int first = 2 * (lane & 3);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (8 * (i / 4) + first + (i & 1) >= valid) s[i] = -INFINITY;
  }
}

/// Largest score of each of the thread's two rows, over the row's four threads.
template <int kCount>
__device__ __forceinline__ void RowMaxima(const float (&s)[kCount], float& row0, float& row8) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float& m = (i & 2) != 0 ? row8 : row0;
    m = fmaxf(m, s[i]);
  }
#pragma unroll
  for (int x = 1; x <= 2; x *= 2) {
    row0 = fmaxf(row0, __shfl_xor_sync(0xffffffffu, row0, x));
    row8 = fmaxf(row8, __shfl_xor_sync(0xffffffffu, row8, x));
  }
}

/// s becomes 2^(s c - m c); the thread's own part of the row sums is added to l0 and l8.
template <int kCount>
__device__ __forceinline__ void Exponentials(float (&s)[kCount], float c, float m0, float m8, float& l0, float& l8) {
  const float b0 = m0 * c, b8 = m8 * c;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool upper = (i & 2) != 0;
    s[i] = Exp2(fmaf(s[i], c, upper ? -b8 : -b0));
    (upper ? l8 : l0) += s[i];
  }
}

/// A operands of P: step j takes columns 16 j .. 16 j + 15.
template <int kCount>
__device__ __forceinline__ void PackOperands(const float (&s)[kCount], uint32_t (&p)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = PackBf16(s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ void Exchange(uint32_t& keep, uint32_t& send, bool upper, int x) {
  uint32_t moved = upper ? keep : send;
  moved = __shfl_xor_sync(0xffffffffu, moved, x);
  (upper ? keep : send) = moved;
}

/// Writes the thread's two rows, divided by their sums: row r of the warpgroup goes to out + r * token when r < valid.
/// Blocks of 8 columns are first exchanged among the four threads of a row, so that each writes 16 bytes.
template <int kMain, int kTail>
__device__ __forceinline__ void StoreOutput(const Output<kMain, kTail>& o, float inverse0, float inverse8,
                                            __nv_bfloat16* out, int64_t token, int d, int valid, int warp, int lane) {
  const int t = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 16 * warp + 8 * half + lane / 4;
    const float inverse = half == 0 ? inverse0 : inverse8;
    __nv_bfloat16* to = out + row * token;
#pragma unroll
    for (int group = 0; group < kMain / 32; ++group) {
      uint32_t u[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* x = o.main + 4 * (4 * group + j) + 2 * half;
        u[j] = PackBf16(x[0] * inverse, x[1] * inverse);
      }
      Exchange(u[0], u[1], (t & 1) != 0, 1);
      Exchange(u[2], u[3], (t & 1) != 0, 1);
      Exchange(u[0], u[2], (t & 2) != 0, 2);
      Exchange(u[1], u[3], (t & 2) != 0, 2);
      if (row < valid) {
        *reinterpret_cast<uint4*>(to + (4 * group + t) * 8) = make_uint4(u[0], u[1], u[2], u[3]);
      }
    }
    if constexpr (kTail != 0) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = 64 + 8 * j + 2 * t;
        const float* x = o.tail + 4 * j + 2 * half;
        if (row < valid && column < d) {
          *reinterpret_cast<uint32_t*>(to + column) = PackBf16(x[0] * inverse, x[1] * inverse);
        }
      }
    }
  }
}

/// Sums of the thread's two rows over the row's four threads.
__device__ __forceinline__ void RowSums(float& l0, float& l8) {
#pragma unroll
  for (int x = 1; x <= 2; x *= 2) {
    l0 += __shfl_xor_sync(0xffffffffu, l0, x);
    l8 += __shfl_xor_sync(0xffffffffu, l8, x);
  }
}

/// The end of a warpgroup's rows: sums over threads, division, stores. `first_row` is the first row's index in its
/// sequence, `rows` how many of the 64 exist.
template <int kMain, int kTail>
__device__ __forceinline__ void FinishRows(const Params& p, const Output<kMain, kTail>& o, float m0, float m8, float l0,
                                           float l8, int sequence, int64_t first, int first_row, int rows, int head,
                                           int warp, int lane) {
  RowSums(l0, l8);
  __nv_bfloat16* out =
      p.out + sequence * p.out_sequence + first * p.out_packed + first_row * p.out_token + head * p.out_head;
  StoreOutput(o, 1.0f / l0, 1.0f / l8, out, p.out_token, p.d, rows, warp, lane);
  if (p.lse != nullptr && (lane & 3) == 0) {
    float* lse = p.lse + sequence * p.lse_sequence + first * p.lse_packed + first_row * p.lse_token + head * p.lse_head;
    const int row = 16 * warp + lane / 4;
    if (row < rows) lse[row * p.lse_token] = m0 * p.scale + logf(l0);
    if (row + 8 < rows) lse[(row + 8) * p.lse_token] = m8 * p.scale + logf(l8);
  }
}

}  // namespace fluvial::sm90::vision
