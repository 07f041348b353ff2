// SPDX-License-Identifier: Apache-2.0
// Per-target (Highway) fp32 functions that several operators share. Include inside foreach_target files only.
#if defined(FLUVIAL_OPS_COMMON_FLOAT_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_COMMON_FLOAT_MATH_INL_H_
#undef FLUVIAL_OPS_COMMON_FLOAT_MATH_INL_H_
#else
#define FLUVIAL_OPS_COMMON_FLOAT_MATH_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// exp(-x), infinity from -x = 104 on (above that Highway's Exp is undefined). Danger: NaN gives 0.
template <class D>
HWY_INLINE hn::Vec<D> ExpNegative(D d, hn::Vec<D> x) {
  const auto top = hn::Set(d, 104.0f);
  const auto z = hn::Neg(x);
  return hn::Exp(d, hn::IfThenElse(hn::Gt(z, top), top, z));
}

// 1 / (1 + exp(-x)); NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(one, hn::Add(one, ExpNegative(d, x))));
}

// x / (1 + exp(-x)).
template <class D>
HWY_INLINE hn::Vec<D> Silu(D d, hn::Vec<D> x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), ExpNegative(d, x)));
}

// x above 20, else log(1 + exp(x)).
template <class D>
HWY_INLINE hn::Vec<D> Softplus(D d, hn::Vec<D> x) {
  const auto limit = hn::Set(d, 20.0f);
  const auto soft = hn::Log1p(d, hn::Exp(d, hn::Min(x, limit)));
  // The comparison is written so that NaN takes the branch that keeps it.
  return hn::IfThenElse(hn::Le(x, limit), soft, x);
}

// Error function. Below 1: x P(x^2); up to 4: 1 - exp(-x^2) Q(1 / (1 + x/2)); then 1. P and Q are our own minimax fits
// (relative error 1.2e-9 and 4e-10 before fp32 rounding).
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

// 0.5 x (1 + erf(x / sqrt 2)).
template <class D>
HWY_INLINE hn::Vec<D> Gelu(D d, hn::Vec<D> x) {
  const auto half = hn::Mul(x, hn::Set(d, 0.5f));
  return hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f))), half);
}

// tanh; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> SafeTanh(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class D>
HWY_INLINE hn::Vec<D> GeluTanh(D d, hn::Vec<D> x) {
  const auto cube = hn::Mul(hn::Mul(x, x), x);
  const auto inner = hn::Mul(hn::Set(d, 0.79788456080286536f), hn::MulAdd(cube, hn::Set(d, 0.044715f), x));
  const auto half = hn::Mul(x, hn::Set(d, 0.5f));
  // x^3 may overflow to infinity, whose tanh is still 1.
  return hn::MulAdd(half, SafeTanh(d, inner), half);
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops
HWY_AFTER_NAMESPACE();
#endif
