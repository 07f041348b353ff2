// SPDX-License-Identifier: Apache-2.0
// What the factor teams of KDA and GDN share: betas, norms, tile helpers, the inverse.
#pragma once

#include "ops/delta_rule/sm90_chunk16_layout.cuh"

namespace fluvial::sm90::chunk16 {

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
__device__ __forceinline__ float2 RowSquares(uint32_t tile_lane, int lane, uint32_t half_bytes = kTile / 2) {
  // All loads first, then two independent chains per half: the latency of one chain is the cost here.
  uint32_t m[8][4];
#pragma unroll
  for (int k = 0; k < 8; ++k) LoadMatrix4(m[k], (tile_lane ^ ((2 * k & 7) << 4)) + (k >> 2) * half_bytes);
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

/// Starts the copy of one chunk's v; one thread.
__device__ __forceinline__ void FetchV(const DeltaParams& p, uint8_t* tile, uint64_t* bar, int head, int token) {
  BarrierExpect(bar, kTile);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    TensorLoad3(SmemAddr(tile) + half * (kTile / 2), &p.v_map, bar, 64 * half, head, token);
  }
}

/// `word` in rows valid..15 of a tile: the next sequence's values (or NaN) must not meet even a zero factor.
__device__ __forceinline__ void FillTail(uint32_t tile, int thread, int threads, int valid, uint32_t word) {
  for (int i = thread; i < (kChunk - valid) * 16; i += threads) {
    StoreShared4(tile + ((i & 15) >> 3) * (kTile / 2) + (valid + (i >> 4)) * 128 + (i & 7) * 16, word, word, word,
                 word);
  }
}

/// This lane's part of an ldmatrix address in a swizzled tile: row lane & 15, unit lane >> 4. Unit 2k of the same
/// half is at `^ (2k << 4)`.
__device__ __forceinline__ uint32_t MatrixLane(int lane) {
  return (lane & 15) * 128 + ((((lane >> 4) ^ lane) & 7) << 4);
}

/// Norm factors of one raw tile's rows (0 beyond `valid`), times `factor`; one warp.
__device__ __forceinline__ void WriteNorms(const DeltaParams& p, uint32_t tile_lane, uint32_t to, float factor,
                                           int lane, int valid) {
  const float2 sq = RowSquares(tile_lane, lane);
  const int i = lane >> 2;
  if ((lane & 3) == (i >> 1)) {
    StoreShared(to + i * 4, i < valid ? factor * NormFactor(p, sq.x) : 0.f);
    StoreShared(to + i * 4 + 32, i + 8 < valid ? factor * NormFactor(p, sq.y) : 0.f);
  }
}

/// Column lane & 15 of T = (I + A)^-1 by forward substitution (lanes 16..31 repeat 0..15). columns: A transposed in
/// shared memory, [j][20] floats, i > j valid. fp32: the most accurate of the usual ways, 15 dependent steps.
__device__ __forceinline__ void InvertColumn(uint32_t columns, int lane, float (&t)[16]) {
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
}

}  // namespace fluvial::sm90::chunk16
