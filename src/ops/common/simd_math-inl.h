// SPDX-License-Identifier: Apache-2.0
// fp32 functions of vectors that several operators share. All hand NaN on: a NaN must reach the logits to be noticed.
// Tested against fp64 in simd_math_test.cc (Exp, Sigmoid, Silu) and in ops/elementwise (all but Exp).
#if defined(FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_
#undef FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_
#else
#define FLUVIAL_OPS_COMMON_SIMD_MATH_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
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

/// 1 + e^-x for x >= -88; what -88 gives below that; NaN for NaN. (Not an unqualified Exp: Highway's would be found,
/// too.)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V OnePlusExpNegative(D d, V x) {
  const auto lowest = hn::Set(d, -88.0f);
  const auto clamped = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);  // hands NaN on
  return hn::Add(hn::Set(d, 1.0f), simd::HWY_NAMESPACE::Exp(d, hn::Neg(clamped)));
}

/// 1 / (1 + e^-x); error at most 4 ulp of the result; 0 below -88 (true value < 6.1e-39).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const auto y = hn::Div(hn::Set(d, 1.0f), OnePlusExpNegative(d, x));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -88.0f)), y);
}

/// x / (1 + e^-x); error at most 4 ulp of the result; 0 below -88 (true magnitude < 5.4e-37).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  const auto y = hn::Div(x, OnePlusExpNegative(d, x));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -88.0f)), y);
}

/// x above 20, else log(1 + exp(x)).
template <class D>
HWY_INLINE hn::Vec<D> Softplus(D d, hn::Vec<D> x) {
  const auto limit = hn::Set(d, 20.0f);
  const auto soft = hn::Log1p(d, hn::Exp(d, hn::Min(x, limit)));
  // The comparison is written so that NaN takes the branch that keeps it.
  return hn::IfThenElse(hn::Le(x, limit), soft, x);
}

/// Error function. Below 1: x P(x^2); up to 4: 1 - exp(-x^2) Q(1 / (1 + x/2)); then 1. P and Q are our own minimax fits
/// (relative error 1.2e-9 and 4e-10 before fp32 rounding).
template <class D>
HWY_INLINE hn::Vec<D> Erf(D d, hn::Vec<D> x) {
  auto horner = [d](hn::Vec<D> t, const auto& c) HWY_ATTR {
    auto p = hn::Set(d, c[0]);
    for (size_t i = 1; i < sizeof(c) / sizeof(c[0]); ++i) p = hn::MulAdd(p, t, hn::Set(d, c[i]));
    return p;
  };
  constexpr float kP[] = {7.853857747e-05f, -8.010192533e-04f, 5.188327561e-03f, -2.685381187e-02f,
                          1.128358515e-01f, -3.761262582e-01f, 1.128379166e+00f};
  constexpr float kQ[] = {1.190161565e-01f, -4.701521325e-01f, 5.618736728e-01f, -1.025929188e-01f,
                          3.473611518e-01f, 2.598016536e-01f,  2.848962511e-01f, -1.531881451e-04f};
  const auto one = hn::Set(d, 1.0f);
  const auto a = hn::Min(hn::Abs(x), hn::Set(d, 4.0f));
  const auto a2 = hn::Mul(a, a);
  const auto small = hn::Mul(a, horner(a2, kP));
  const auto t = hn::Div(one, hn::MulAdd(a, hn::Set(d, 0.5f), one));
  const auto large = hn::NegMulAdd(hn::Exp(d, hn::Neg(a2)), horner(t, kQ), one);
  const auto magnitude = hn::IfThenElse(hn::Lt(a, one), small, large);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(magnitude, x));
}

/// 0.5 x (1 + erf(x / sqrt 2)).
template <class D>
HWY_INLINE hn::Vec<D> Gelu(D d, hn::Vec<D> x) {
  const auto half = hn::Mul(x, hn::Set(d, 0.5f));
  return hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f))), half);
}

/// tanh; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> SafeTanh(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class D>
HWY_INLINE hn::Vec<D> GeluTanh(D d, hn::Vec<D> x) {
  const auto cube = hn::Mul(hn::Mul(x, x), x);
  const auto inner = hn::Mul(hn::Set(d, 0.79788456080286536f), hn::MulAdd(cube, hn::Set(d, 0.044715f), x));
  const auto half = hn::Mul(x, hn::Set(d, 0.5f));
  // x^3 may overflow to infinity, whose tanh is still 1.
  return hn::MulAdd(half, SafeTanh(d, inner), half);
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::simd
HWY_AFTER_NAMESPACE();

#endif
