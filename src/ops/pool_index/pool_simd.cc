// SPDX-License-Identifier: Apache-2.0
#include "ops/pool_index/pool_simd.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pool_index/pool_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::pool_index::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

template <class T>
HWY_INLINE V Load(D d, const T* p, size_t count) {
  return count >= hn::Lanes(d) ? fs::LoadF32(d, p) : fs::LoadF32Tail(d, p, count);
}

void PoolKeyT(const void* const* rows, DType io, int64_t pool, int64_t dim, const float* ape, void* key) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  fs::WithFloatType(io, [&](auto type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    T* to = static_cast<T*>(key);
    for (int64_t c = 0; c < dim; c += lanes) {
      const size_t left = static_cast<size_t>(dim - c);
      const auto logit = [&](int64_t i) HWY_ATTR {
        return hn::Add(Load(d, static_cast<const T*>(rows[i]) + dim + c, left), Load(d, ape + i * dim + c, left));
      };
      V largest = logit(0);
      for (int64_t i = 1; i < pool; ++i) largest = hn::Max(largest, logit(i));
      V sum = hn::Zero(d);
      for (int64_t i = 0; i < pool; ++i) sum = hn::Add(sum, fs::Exp(d, hn::Sub(logit(i), largest)));
      V out = hn::Zero(d);
      for (int64_t i = 0; i < pool; ++i) {
        const V weight = fs::RoundTo<T>(d, hn::Div(fs::Exp(d, hn::Sub(logit(i), largest)), sum));
        out = hn::Add(out, fs::RoundTo<T>(d, hn::Mul(weight, Load(d, static_cast<const T*>(rows[i]) + c, left))));
      }
      if (left >= static_cast<size_t>(lanes)) {
        fs::StoreF32(out, d, to + c);
      } else {
        fs::StoreF32Tail(out, d, to + c, left);
      }
    }
  });
}

void AddScoresT(const float* dots, float scale, float weight, int64_t n, float* score) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V s = hn::Set(d, scale), w = hn::Set(d, weight), zero = hn::Zero(d);
  int64_t m = 0;
  const auto add = [&](V dot, V old) HWY_ATTR {
    const V x = hn::Mul(dot, s);
    // Not Max: it may drop a NaN.
    return hn::Add(old, hn::Mul(w, hn::IfThenElse(hn::Lt(x, zero), zero, x)));
  };
  for (; m + lanes <= n; m += lanes) hn::StoreU(add(hn::LoadU(d, dots + m), hn::LoadU(d, score + m)), d, score + m);
  if (m < n) {
    const size_t left = static_cast<size_t>(n - m);
    fs::StoreF32Tail(add(fs::LoadF32Tail(d, dots + m, left), fs::LoadF32Tail(d, score + m, left)), d, score + m, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::pool_index::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::pool_index::internal {

HWY_EXPORT(PoolKeyT);
HWY_EXPORT(AddScoresT);

void PoolKey(const void* const* rows, DType io, int64_t pool, int64_t dim, const float* ape, void* key) {
  HWY_DYNAMIC_DISPATCH(PoolKeyT)(rows, io, pool, dim, ape, key);
}
void AddScores(const float* dots, float scale, float weight, int64_t n, float* score) {
  HWY_DYNAMIC_DISPATCH(AddScoresT)(dots, scale, weight, n, score);
}

}  // namespace fluvial::ops::pool_index::internal
#endif
