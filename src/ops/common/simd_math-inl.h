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
  // Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low mantissa bits: no conversion is needed. Far
  // below the range this is garbage, which `small` removes.
  const auto magic = hn::Set(d, 0x1.8p23f);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);  // 9 bits of ln 2: n times it is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);    // the rest
  // Estrin's form: the chain of dependent operations is what costs here.
  const auto r2 = hn::Mul(r, r);
  const auto low = hn::MulAdd(r, hn::Set(d, 0.166665211f), hn::Set(d, 0.49999994f));
  const auto high = hn::MulAdd(r, hn::Set(d, 0.00836874544f), hn::Set(d, 0.041668389f));
  const auto p = hn::MulAdd(hn::MulAdd(r2, hn::Set(d, 0.0013814539f), high), r2, low);
  const auto y = hn::Add(hn::MulAdd(r2, p, r), hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, 127)));
  const auto small = hn::Lt(x, hn::Set(d, -87.0f));  // false for NaN
  return hn::IfThenZeroElse(small, hn::Mul(y, hn::BitCast(d, power)));
}

/// x / (1 + e^-x); error at most 4 ulp of the result, and 2e-36 absolute where x < -87 gives what -87 gives.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  const auto lowest = hn::Set(d, -87.0f);
  const auto clamped = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);  // hands NaN on
  return hn::Div(clamped, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(clamped))));
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::simd
HWY_AFTER_NAMESPACE();

#endif
