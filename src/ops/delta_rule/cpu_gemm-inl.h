// SPDX-License-Identifier: Apache-2.0
// The one matrix kernel behind the chunks: C (+)= A B with A fp32 in any layout, read by broadcast, and B and C in
// panels of two vectors. Included per Highway target.
#if defined(FLUVIAL_OPS_DELTA_RULE_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_DELTA_RULE_CPU_GEMM_INL_H_
#undef FLUVIAL_OPS_DELTA_RULE_CPU_GEMM_INL_H_
#else
#define FLUVIAL_OPS_DELTA_RULE_CPU_GEMM_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::delta_rule {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// How a tile of C starts.
enum class Start { kZero, kKeep, kScale };

/// C[m, 0..kVectors lanes) for m < kRows: start +- sum over kk < depth of A(m, kk) B[kk, :].
/// A(m, kk) = a[m * a_row + kk * a_depth]; B and C rows are `pitch` floats apart. kScale: C[m] *= scale[m] first.
template <int kRows, int kVectors, Start kStart, bool kSubtract = false>
HWY_INLINE void Tile(int64_t depth, const float* HWY_RESTRICT a, int64_t a_row, int64_t a_depth,
                     const float* HWY_RESTRICT b, int64_t b_pitch, float* HWY_RESTRICT c, int64_t c_pitch,
                     const float* HWY_RESTRICT scale = nullptr) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  using V = hn::Vec<decltype(d)>;
  V sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) {
      if constexpr (kStart == Start::kZero) {
        sum[m][n] = hn::Zero(d);
      } else {
        sum[m][n] = hn::Load(d, c + m * c_pitch + n * lanes);
        if constexpr (kStart == Start::kScale) sum[m][n] = hn::Mul(sum[m][n], hn::Set(d, scale[m]));
      }
    }
  }
  for (int64_t kk = 0; kk < depth; ++kk) {
    V row[kVectors];
    for (int n = 0; n < kVectors; ++n) row[n] = hn::Load(d, b + kk * b_pitch + n * lanes);
    const float* column = a + kk * a_depth;
    for (int m = 0; m < kRows; ++m) {
      const V x = hn::Set(d, column[m * a_row]);
      for (int n = 0; n < kVectors; ++n) {
        sum[m][n] = kSubtract ? hn::NegMulAdd(x, row[n], sum[m][n]) : hn::MulAdd(x, row[n], sum[m][n]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) hn::Store(sum[m][n], d, c + m * c_pitch + n * lanes);
  }
}

/// Rows per tile: 16 sums of two vectors stay in registers with AVX-512, 8 elsewhere. Divides kLanePad.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 4;
#endif

/// One panel (two vectors) of columns; `rows` is a multiple of kTileRows.
template <Start kStart, bool kSubtract = false>
HWY_INLINE void Gemm(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_depth, const float* b,
                     int64_t b_pitch, float* c, int64_t c_pitch, const float* scale = nullptr) {
  for (int64_t m = 0; m < rows; m += kTileRows) {
    Tile<kTileRows, 2, kStart, kSubtract>(depth, a + m * a_row, a_row, a_depth, b, b_pitch, c + m * c_pitch, c_pitch,
                                          scale == nullptr ? nullptr : scale + m);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::delta_rule
HWY_AFTER_NAMESPACE();

#endif
