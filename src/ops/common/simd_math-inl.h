// SPDX-License-Identifier: Apache-2.0
// exp and SiLU of fp32 vectors. Unlike Highway's own Exp these hand NaN on (a NaN must reach the logits to be noticed),
// and the error bounds below are tested against fp64 in simd_math_test.cc.
#if defined(FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_
#undef FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_
#else
#define FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// e^x for x <= 88, relative error at most 2^-23 (1.2e-7); 0 below -87 (true value < 1.7e-38); NaN for NaN; -inf gives
/// 0. Danger: x > 88 gives garbage, clamp first. Cody-Waite reduction, then 1 + r + r^2 P(r) with P of degree 4, a
/// least-maximum fit of (e^r - 1 - r) / r^2 on |r| <= ln(2)/2 (fit error 3e-9 relative).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);  // 9 bits of ln 2: n times it is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);    // the rest
  auto p = hn::Set(d, 0.0013814539f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836874544f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.041668389f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665211f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999994f));
  const auto y = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  const auto small = hn::Lt(x, hn::Set(d, -87.0f));  // false for NaN
  return hn::IfThenZeroElse(small, hn::Mul(y, hn::BitCast(d, power)));
}

/// x / (1 + e^-x); error at most 4 ulp of the result, and 2e-36 absolute where x < -87 gives -0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  const auto low = hn::Lt(x, hn::Set(d, -87.0f));
  const auto e = Exp(d, hn::Neg(hn::IfThenElse(low, hn::Set(d, -87.0f), x)));
  return hn::IfThenElse(low, hn::Set(d, -0.0f), hn::Div(x, hn::Add(hn::Set(d, 1.0f), e)));
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::simd
HWY_AFTER_NAMESPACE();

#endif
