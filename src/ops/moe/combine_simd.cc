// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/moe/combine_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h first
#include <hwy/highway.h>

#include "ops/common/simd_io-inl.h"
#include "ops/moe/combine.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::moe {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;

// One vector of the sum stays in a register while the parts pass by.
template <class T, class D>
HWY_INLINE void CombineAt(D d, const Part* parts, int64_t count, int64_t i, T* y) {
  auto sum = hn::Zero(d);
  for (int64_t p = 0; p < count; ++p) {
    const auto o = fs::LoadF32(d, static_cast<const T*>(parts[p].row) + i);
    // Mul and Add, never fused: the product is rounded first.
    const auto product = fs::RoundTo<T>(d, hn::Mul(o, hn::Set(d, parts[p].weight)));
    sum = fs::RoundTo<T>(d, hn::Add(sum, product));
  }
  fs::StoreF32(sum, d, y + i);
}

void CombineRow(const Part* parts, int64_t count, DType dtype, int64_t n, void* y) {
  fs::WithFloatType(dtype, [&](auto* type) HWY_ATTR {
    using T = std::remove_pointer_t<decltype(type)>;
    const hn::ScalableTag<float> d;
    const hn::CappedTag<float, 1> d1;
    const int64_t lanes = int64_t(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) CombineAt<T>(d, parts, count, i, static_cast<T*>(y));
    for (; i < n; ++i) CombineAt<T>(d1, parts, count, i, static_cast<T*>(y));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::moe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::moe {

HWY_EXPORT(CombineRow);

void Combine(const Part* parts, int64_t count, DType dtype, int64_t n, void* y) {
  HWY_DYNAMIC_DISPATCH(CombineRow)(parts, count, dtype, n, y);
}

}  // namespace fluvial::ops::moe
#endif
