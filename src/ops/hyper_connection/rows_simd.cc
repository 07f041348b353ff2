// SPDX-License-Identifier: Apache-2.0
#include "ops/hyper_connection/rows.h"

#include <algorithm>
#include <type_traits>

#include "ops/hyper_connection/hyper_connection.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/hyper_connection/rows_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::hyper_connection {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

template <class T>
HWY_INLINE V Load(D d, const T* p, size_t count) {
  return count >= hn::Lanes(d) ? fs::LoadF32(d, p) : fs::LoadF32Tail(d, p, count);
}

template <class T>
HWY_INLINE void Store(D d, V v, T* p, size_t count) {
  if (count >= hn::Lanes(d)) {
    fs::StoreF32(v, d, p);
  } else {
    fs::StoreF32Tail(v, d, p, count);
  }
}

float SumOfSquaresT(const void* x, DType dtype, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float sum = 0;
  fs::WithFloatType(dtype, [&](auto type) HWY_ATTR {
    const auto* from = static_cast<const std::remove_pointer_t<decltype(type)>*>(x);
    V acc[2] = {hn::Zero(d), hn::Zero(d)};
    for (int64_t i = 0, k = 0; i < n; i += lanes, k ^= 1) {
      const V v = Load(d, from + i, static_cast<size_t>(n - i));  // a tail is padded with zeros
      acc[k] = hn::MulAdd(v, v, acc[k]);
    }
    sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(acc[0], acc[1])));
  });
  return sum;
}

void CombineT(const void* x, DType dtype, const float* weight, int32_t streams, int64_t n, void* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  fs::WithFloatType(dtype, [&](auto type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(y);
    for (int64_t i = 0; i < n; i += lanes) {
      const size_t left = static_cast<size_t>(n - i);
      V sum = hn::Mul(hn::Set(d, weight[0]), Load(d, from + i, left));
      for (int32_t s = 1; s < streams; ++s) {
        sum = hn::Add(sum, hn::Mul(hn::Set(d, weight[s]), Load(d, from + s * n + i, left)));
      }
      Store(d, sum, to + i, left);
    }
  });
}

void MixT(void* x, DType dtype, const float* post, const float* mix, const void* y, int32_t streams, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  fs::WithFloatType(dtype, [&](auto type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    T* rows = static_cast<T*>(x);
    const T* block = static_cast<const T*>(y);
    for (int64_t i = 0; i < n; i += lanes) {
      const size_t left = static_cast<size_t>(n - i);
      V old[kMaxStreams];
      for (int32_t s = 0; s < streams; ++s) old[s] = Load(d, rows + s * n + i, left);
      const V out = Load(d, block + i, left);
      for (int32_t t = 0; t < streams; ++t) {
        V sum = hn::Mul(hn::Set(d, mix[t]), old[0]);
        for (int32_t s = 1; s < streams; ++s) sum = hn::MulAdd(hn::Set(d, mix[s * streams + t]), old[s], sum);
        const V added = fs::RoundTo<T>(d, hn::Mul(hn::Set(d, post[t]), out));
        Store(d, hn::Add(added, fs::RoundTo<T>(d, sum)), rows + t * n + i, left);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::hyper_connection
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::hyper_connection {

HWY_EXPORT(SumOfSquaresT);
HWY_EXPORT(CombineT);
HWY_EXPORT(MixT);

float SumOfSquares(const void* x, DType dtype, int64_t n) { return HWY_DYNAMIC_DISPATCH(SumOfSquaresT)(x, dtype, n); }
void Combine(const void* x, DType dtype, const float* weight, int32_t streams, int64_t n, void* y) {
  HWY_DYNAMIC_DISPATCH(CombineT)(x, dtype, weight, streams, n, y);
}
void Mix(void* x, DType dtype, const float* post, const float* mix, const void* y, int32_t streams, int64_t n) {
  HWY_DYNAMIC_DISPATCH(MixT)(x, dtype, post, mix, y, streams, n);
}

}  // namespace fluvial::ops::hyper_connection
#endif
