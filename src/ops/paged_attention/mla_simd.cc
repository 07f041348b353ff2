// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "ops/paged_attention/mla_bodies.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/paged_attention/mla_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::mla_attention::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

/// One block of R rows and NV vectors of columns from c on; the last vector may be cut to `tail` lanes.
template <int R, int NV, class T>
HWY_INLINE void AbsorbBlock(const float* HWY_RESTRICT x, int64_t x_pitch, const T* w, int64_t w_pitch, int64_t n,
                            int64_t c, size_t tail, float* HWY_RESTRICT to, int64_t to_pitch) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[R][NV];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < NV; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t i = 0; i < n; ++i) {
    const T* row = w + i * w_pitch + c;
    V value[NV];
    for (int v = 0; v < NV; ++v) {
      value[v] = tail == 0 ? fs::LoadF32(d, row + v * lanes) : fs::LoadF32Tail(d, row + v * lanes, tail);
    }
    for (int r = 0; r < R; ++r) {
      const V factor = hn::Set(d, x[r * x_pitch + i]);
      for (int v = 0; v < NV; ++v) sum[r][v] = hn::MulAdd(factor, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < NV; ++v) {
      float* at = to + r * to_pitch + c + v * lanes;
      if (tail == 0) {
        hn::StoreU(sum[r][v], d, at);
      } else {
        fs::StoreF32Tail(sum[r][v], d, at, tail);
      }
    }
  }
}

/// Sums of R rows with C rows of w: lanes run over i, the last lanes may be cut.
template <int R, int C, class T>
HWY_INLINE void ProjectBlock(const float* HWY_RESTRICT x, int64_t x_pitch, const T* w, int64_t w_pitch, int64_t n,
                             int64_t c, float* HWY_RESTRICT to, int64_t to_pitch) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[R][C];
  for (int r = 0; r < R; ++r) {
    for (int k = 0; k < C; ++k) sum[r][k] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    V value[C];
    for (int k = 0; k < C; ++k) value[k] = fs::LoadF32(d, w + (c + k) * w_pitch + i);
    for (int r = 0; r < R; ++r) {
      const V factor = hn::LoadU(d, x + r * x_pitch + i);
      for (int k = 0; k < C; ++k) sum[r][k] = hn::MulAdd(factor, value[k], sum[r][k]);
    }
  }
  if (i < n) {
    const size_t left = static_cast<size_t>(n - i);
    for (int k = 0; k < C; ++k) {
      const V value = fs::LoadF32Tail(d, w + (c + k) * w_pitch + i, left);
      for (int r = 0; r < R; ++r) {
        sum[r][k] = hn::MulAdd(fs::LoadF32Tail(d, x + r * x_pitch + i, left), value, sum[r][k]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int k = 0; k < C; ++k) to[r * to_pitch + c + k] = hn::GetLane(hn::SumOfLanes(d, sum[r][k]));
  }
}

/// Calls fn(integral constant R, first row) for blocks of 4 rows, then single ones.
template <class Fn>
HWY_INLINE void ForRowBlocks(int64_t rows, Fn&& fn) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) fn(std::integral_constant<int, 4>(), r);
  for (; r < rows; ++r) fn(std::integral_constant<int, 1>(), r);
}

void AbsorbT(const float* x, int64_t x_pitch, int64_t rows, const void* w, DType dtype, int64_t w_pitch, int64_t n,
             int64_t columns, float* to, int64_t to_pitch) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  fs::WithFloatType(dtype, [&](auto type) {
    const auto* weight = static_cast<const std::remove_pointer_t<decltype(type)>*>(w);
    ForRowBlocks(rows, [&](auto count, int64_t r) HWY_ATTR {
      constexpr int R = decltype(count)::value;
      const float* xr = x + r * x_pitch;
      float* tr = to + r * to_pitch;
      int64_t c = 0;
      for (; c + 4 * lanes <= columns; c += 4 * lanes) {
        AbsorbBlock<R, 4>(xr, x_pitch, weight, w_pitch, n, c, 0, tr, to_pitch);
      }
      for (; c + lanes <= columns; c += lanes) {
        AbsorbBlock<R, 1>(xr, x_pitch, weight, w_pitch, n, c, 0, tr, to_pitch);
      }
      if (c < columns) {
        AbsorbBlock<R, 1>(xr, x_pitch, weight, w_pitch, n, c, static_cast<size_t>(columns - c), tr, to_pitch);
      }
    });
  });
}

void ProjectT(const float* x, int64_t x_pitch, int64_t rows, const void* w, DType dtype, int64_t w_pitch, int64_t n,
              int64_t columns, float* to, int64_t to_pitch) {
  fs::WithFloatType(dtype, [&](auto type) {
    const auto* weight = static_cast<const std::remove_pointer_t<decltype(type)>*>(w);
    ForRowBlocks(rows, [&](auto count, int64_t r) HWY_ATTR {
      constexpr int R = decltype(count)::value;
      const float* xr = x + r * x_pitch;
      float* tr = to + r * to_pitch;
      int64_t c = 0;
      for (; c + 4 <= columns; c += 4) ProjectBlock<R, 4>(xr, x_pitch, weight, w_pitch, n, c, tr, to_pitch);
      for (; c < columns; ++c) ProjectBlock<R, 1>(xr, x_pitch, weight, w_pitch, n, c, tr, to_pitch);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::mla_attention::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::mla_attention::internal {

HWY_EXPORT(AbsorbT);
HWY_EXPORT(ProjectT);

void Absorb(const float* x, int64_t x_pitch, int64_t rows, const void* w, DType dtype, int64_t w_pitch, int64_t n,
            int64_t columns, float* to, int64_t to_pitch) {
  HWY_DYNAMIC_DISPATCH(AbsorbT)(x, x_pitch, rows, w, dtype, w_pitch, n, columns, to, to_pitch);
}
void Project(const float* x, int64_t x_pitch, int64_t rows, const void* w, DType dtype, int64_t w_pitch, int64_t n,
             int64_t columns, float* to, int64_t to_pitch) {
  HWY_DYNAMIC_DISPATCH(ProjectT)(x, x_pitch, rows, w, dtype, w_pitch, n, columns, to, to_pitch);
}

}  // namespace fluvial::ops::mla_attention::internal
#endif
