// SPDX-License-Identifier: Apache-2.0
// Squares of one 128-bit register a side: interleaving row k with row k + half, log2(side) times, transposes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/moe/turn_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h first
#include <hwy/highway.h>

#include <hwy/cache_control.h>

#include "ops/moe/turn.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::moe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE int64_t TurnSquares(const T*, int64_t, int64_t, int64_t, T*, int64_t) {
  return 0;
}
#else
/// Whole squares of a band of rows; returns how many columns that were.
template <class T>
HWY_INLINE int64_t TurnSquares(const T* in, int64_t in_pitch, int64_t rows, int64_t columns, T* out,
                               int64_t out_pitch) {
  constexpr int kSide = 16 / int(sizeof(T));
  if (rows < kSide) return 0;
  const hn::FixedTag<T, kSide> d;
  using V = hn::Vec<decltype(d)>;
  int64_t j = 0;
  for (; j + kSide <= columns; j += kSide) {
    V a[kSide], b[kSide];
#pragma GCC unroll 8
    for (int r = 0; r < kSide; ++r) a[r] = hn::LoadU(d, in + r * in_pitch + j);
    const auto interleave = [&](const V* from, V* to) HWY_ATTR {
#pragma GCC unroll 4
      for (int r = 0; r < kSide / 2; ++r) {
        to[2 * r] = hn::InterleaveLower(d, from[r], from[r + kSide / 2]);
        to[2 * r + 1] = hn::InterleaveUpper(d, from[r], from[r + kSide / 2]);
      }
    };
    interleave(a, b);
    interleave(b, a);
    if constexpr (kSide == 8) {
      interleave(a, b);
#pragma GCC unroll 8
      for (int r = 0; r < kSide; ++r) hn::StoreU(b[r], d, out + (j + r) * out_pitch);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kSide; ++r) hn::StoreU(a[r], d, out + (j + r) * out_pitch);
    }
  }
  return j;
}
#endif

/// Rows from the one being turned to the one being fetched.
constexpr int64_t kAhead = 32;

template <class T>
HWY_INLINE void TurnTyped(const T* in, int64_t in_pitch, int64_t rows, int64_t columns, T* out, int64_t out_pitch) {
  constexpr int64_t kSide = 16 / int64_t(sizeof(T));
  for (int64_t i = 0; i < rows; i += kSide) {
    const int64_t band = HWY_MIN(kSide, rows - i);
    const T* from = in + i * in_pitch;
    // Rows lie too far apart for the core's own prefetchers.
    for (int64_t r = 0; r < HWY_MIN(band, rows - i - kAhead); ++r) {
      for (int64_t j = 0; j < columns; j += 64 / int64_t(sizeof(T))) hwy::Prefetch(from + (kAhead + r) * in_pitch + j);
    }
    for (int64_t j = TurnSquares(from, in_pitch, band, columns, out + i, out_pitch); j < columns; ++j) {
      for (int64_t r = 0; r < band; ++r) out[j * out_pitch + i + r] = from[r * in_pitch + j];
    }
  }
}

void TurnAny(const void* in, int64_t in_pitch, int64_t rows, int64_t columns, size_t size, void* out,
             int64_t out_pitch) {
  if (size == 2) {
    TurnTyped(static_cast<const uint16_t*>(in), in_pitch, rows, columns, static_cast<uint16_t*>(out), out_pitch);
  } else {
    TurnTyped(static_cast<const uint32_t*>(in), in_pitch, rows, columns, static_cast<uint32_t*>(out), out_pitch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::moe {

HWY_EXPORT(TurnAny);

void Turn(const void* in, int64_t in_pitch, int64_t rows, int64_t columns, size_t size, void* out, int64_t out_pitch) {
  HWY_DYNAMIC_DISPATCH(TurnAny)(in, in_pitch, rows, columns, size, out, out_pitch);
}

}  // namespace fluvial::ops::moe
#endif
