// SPDX-License-Identifier: Apache-2.0
// Rows in pieces that stay in L1: memory -> fp32, the function, r(), memory. Three passes over a piece cost less than
// one loop per combination of types costs in code.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/elementwise/rows_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h first
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"
#include "ops/elementwise/rows.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::elementwise {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// A multiple of every vector length. The lanes between n and the end of the last vector hold old finite values.
constexpr int64_t kPiece = 512;

// y = r( fn(a) ), in pieces.
template <class Fn>
HWY_INLINE void Unary(In x, Out y, int64_t n, Fn fn) {
  const DF d;
  HWY_ALIGN float a[kPiece] = {};
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    fs::LoadRow(fs::At(x.data, x.dtype, i), x.dtype, m, a);
    for (int64_t l = 0; l < m; l += int64_t(hn::Lanes(d))) hn::Store(fn(hn::Load(d, a + l)), d, a + l);
    fs::StoreRow(a, m, fs::At(y.data, y.dtype, i), y.dtype);
  }
}

template <class Fn>
HWY_INLINE void Binary(In x, In z, Out y, int64_t n, Fn fn) {
  const DF d;
  HWY_ALIGN float a[kPiece] = {};
  HWY_ALIGN float b[kPiece] = {};
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    fs::LoadRow(fs::At(x.data, x.dtype, i), x.dtype, m, a);
    fs::LoadRow(fs::At(z.data, z.dtype, i), z.dtype, m, b);
    for (int64_t l = 0; l < m; l += int64_t(hn::Lanes(d))) {
      hn::Store(fn(hn::Load(d, a + l), hn::Load(d, b + l)), d, a + l);
    }
    fs::StoreRow(a, m, fs::At(y.data, y.dtype, i), y.dtype);
  }
}

void Apply(Function f, In x, Out y, int64_t n) {
  const DF d;
  switch (f) {
    case Function::kSigmoid:
      return Unary(x, y, n, [d](VF v) HWY_ATTR { return fs::Sigmoid(d, v); });
    case Function::kSilu:
      return Unary(x, y, n, [d](VF v) HWY_ATTR { return fs::Silu(d, v); });
    case Function::kGelu:
      return Unary(x, y, n, [d](VF v) HWY_ATTR { return fs::Gelu(d, v); });
    case Function::kGeluTanh:
      return Unary(x, y, n, [d](VF v) HWY_ATTR { return fs::GeluTanh(d, v); });
    case Function::kSoftplus:
      return Unary(x, y, n, [d](VF v) HWY_ATTR { return fs::Softplus(d, v); });
  }
}

template <class T>
HWY_INLINE void GluTyped(const GluArgs& form, In gate, In up, Out y, int64_t n) {
  const DF d;
  switch (form.form) {
    case GluArgs::Form::kSwiGlu:
      return Binary(gate, up, y, n, [d](VF g, VF u) HWY_ATTR { return hn::Mul(fs::RoundTo<T>(d, fs::Silu(d, g)), u); });
    case GluArgs::Form::kClamped: {
      const VF limit = hn::Set(d, form.limit), low = hn::Neg(limit);
      return Binary(gate, up, y, n, [=](VF g, VF u) HWY_ATTR {
        // Comparisons that a NaN fails, so that it stays.
        g = hn::IfThenElse(hn::Gt(g, limit), limit, g);
        u = hn::IfThenElse(hn::Gt(u, limit), limit, hn::IfThenElse(hn::Lt(u, low), low, u));
        return hn::Mul(fs::RoundTo<T>(d, fs::Silu(d, g)), u);
      });
    }
    case GluArgs::Form::kSitu: {
      const VF beta = hn::Set(d, form.beta), linear = hn::Set(d, form.linear_beta);
      return Binary(gate, up, y, n, [=](VF g, VF u) HWY_ATTR {
        const VF left = hn::Mul(hn::Mul(beta, fs::SafeTanh(d, hn::Div(g, beta))), fs::Sigmoid(d, g));
        return hn::Mul(left, hn::Mul(linear, fs::SafeTanh(d, hn::Div(u, linear))));
      });
    }
  }
}

void Glu(const GluArgs& form, In gate, In up, Out y, int64_t n) {
  fs::WithFloatType(
      y.dtype, [&](auto* type) HWY_ATTR { GluTyped<std::remove_pointer_t<decltype(type)>>(form, gate, up, y, n); });
}

template <class T>
HWY_INLINE void SigmoidMulTyped(In x, In gate, bool single, Out y, int64_t n) {
  const DF d;
  if (!single) {
    return Binary(x, gate, y, n, [d](VF v, VF g) HWY_ATTR { return hn::Mul(v, fs::RoundTo<T>(d, fs::Sigmoid(d, g))); });
  }
  HWY_ALIGN float lanes[hn::MaxLanes(d)] = {};
  fs::LoadRow(gate.data, gate.dtype, 1, lanes);
  const VF factor = hn::Set(d, hn::GetLane(fs::RoundTo<T>(d, fs::Sigmoid(d, hn::Load(d, lanes)))));
  Unary(x, y, n, [factor](VF v) HWY_ATTR { return hn::Mul(v, factor); });
}

void SigmoidMul(In x, In gate, bool single, Out y, int64_t n) {
  fs::WithFloatType(y.dtype, [&](auto* type) HWY_ATTR {
    SigmoidMulTyped<std::remove_pointer_t<decltype(type)>>(x, gate, single, y, n);
  });
}

void Add(In a, In b, Out y, int64_t n) {
  Binary(a, b, y, n, [](VF p, VF q) HWY_ATTR { return hn::Add(p, q); });
}

void Scale(In x, float scale, Out y, int64_t n) {
  const VF factor = hn::Set(DF(), scale);
  Unary(x, y, n, [factor](VF v) HWY_ATTR { return hn::Mul(v, factor); });
}

void Cast(In x, Out y, int64_t n) {
  if (x.dtype == y.dtype) {
    std::memmove(y.data, x.data, size_t(n) * SizeOf(x.dtype));
    return;
  }
  Unary(x, y, n, [](VF v) HWY_ATTR { return v; });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::elementwise
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::elementwise {

HWY_EXPORT(Apply);
HWY_EXPORT(Glu);
HWY_EXPORT(SigmoidMul);
HWY_EXPORT(Add);
HWY_EXPORT(Scale);
HWY_EXPORT(Cast);

void ApplyRow(Function f, In x, Out y, int64_t n) { HWY_DYNAMIC_DISPATCH(Apply)(f, x, y, n); }
void GluRow(const GluArgs& form, In gate, In up, Out y, int64_t n) { HWY_DYNAMIC_DISPATCH(Glu)(form, gate, up, y, n); }
void SigmoidMulRow(In x, In gate, bool single, Out y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SigmoidMul)(x, gate, single, y, n);
}
void AddRow(In a, In b, Out y, int64_t n) { HWY_DYNAMIC_DISPATCH(Add)(a, b, y, n); }
void ScaleRow(In x, float scale, Out y, int64_t n) { HWY_DYNAMIC_DISPATCH(Scale)(x, scale, y, n); }
void CastRow(In x, Out y, int64_t n) { HWY_DYNAMIC_DISPATCH(Cast)(x, y, n); }

}  // namespace fluvial::ops::elementwise
#endif
