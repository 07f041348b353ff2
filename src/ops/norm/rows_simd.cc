// SPDX-License-Identifier: Apache-2.0
// One row at a time: a pass for the statistics, a pass for the result; both read x in pieces converted to fp32 in L1.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/rows_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h first
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"
#include "ops/norm/rows.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::norm {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// A multiple of 4 vectors of every length.
constexpr int64_t kPiece = 512;

// sum of fn(x[i]) in a fixed order: four vectors of partial sums, then the lanes.
template <class Fn>
HWY_INLINE float Sum(const void* x, DType dtype, int64_t n, Fn fn) {
  const DF d;
  const int64_t L = int64_t(hn::Lanes(d));
  HWY_ALIGN float piece[kPiece];
  VF sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    fs::LoadRow(fs::At(x, dtype, i), dtype, m, piece);
    int64_t l = 0;
    for (; l + 4 * L <= m; l += 4 * L) {
      for (int64_t u = 0; u < 4; ++u) sum[u] = hn::Add(sum[u], fn(hn::Load(d, piece + l + u * L)));
    }
    for (; l < m; l += L) {
      const VF v = fn(hn::Load(d, piece + l));
      // Only the last vector of a row can be partial; its stale lanes are selected away.
      sum[0] = hn::Add(sum[0], m - l >= L ? v : hn::IfThenElseZero(hn::FirstN(d, size_t(m - l)), v));
    }
  }
  const VF total = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
  return hn::GetLane(hn::SumOfLanes(d, total));
}

struct Statistics {
  float mean = 0;
  float rstd = 0;
};

HWY_INLINE Statistics Measure(Form form, float eps, const void* x, DType dtype, int64_t n) {
  const DF d;
  Statistics s;
  if (form == Form::kLayer) s.mean = Sum(x, dtype, n, [](VF v) HWY_ATTR { return v; }) / float(n);
  const VF mean = hn::Set(d, s.mean);
  const float squares = Sum(x, dtype, n, [mean](VF v) HWY_ATTR {
    const VF c = hn::Sub(v, mean);
    return hn::Mul(c, c);
  });
  s.rstd = 1.0f / std::sqrt(squares / float(n) + eps);
  return s;
}

// y from x in pieces; T is the type whose rounding r() means.
template <class T>
HWY_INLINE void Normalise(const Args& a, const Row& row, const Statistics& s, int64_t n) {
  const DF d;
  // Not cleared as a whole: a head of 128 elements would spend its time on that.
  HWY_ALIGN float x[kPiece];
  HWY_ALIGN float w[kPiece];
  HWY_ALIGN float b[kPiece];
  const VF rstd = hn::Set(d, s.rstd), mean = hn::Set(d, s.mean), one = hn::Set(d, 1.0f);
  const bool has_weight = a.weight.defined();
  const bool has_second = row.gate != nullptr || a.bias.defined();
  // LayerNorm without a weight multiplies by one, without a bias adds zero.
  if (!has_weight) std::fill(w, w + kPiece, 1.0f);
  if (!has_second) std::fill(b, b + HWY_MIN(n, kPiece), 0.0f);
  const DType in = a.x.dtype;
  const int64_t L = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    if (const int64_t whole = m / L * L; whole < m) {
      for (float* p : {x, w, b}) hn::Store(p == w && !has_weight ? one : hn::Zero(d), d, p + whole);
    }
    fs::LoadRow(fs::At(row.x, in, i), in, m, x);
    if (has_weight) fs::LoadRow(fs::At(a.weight.data, a.weight.dtype, i), a.weight.dtype, m, w);
    if (row.gate != nullptr) fs::LoadRow(fs::At(row.gate, a.gate.dtype, i), a.gate.dtype, m, b);
    if (a.bias.defined()) fs::LoadRow(fs::At(a.bias.data, a.bias.dtype, i), a.bias.dtype, m, b);
    auto each = [&](auto fn) HWY_ATTR {
      for (int64_t l = 0; l < m; l += int64_t(hn::Lanes(d))) {
        hn::Store(fn(hn::Load(d, x + l), hn::Load(d, w + l), hn::Load(d, b + l)), d, x + l);
      }
    };
    switch (a.form) {
      case Form::kRms:
        each([&](VF v, VF wv, VF) HWY_ATTR { return hn::Mul(wv, fs::RoundTo<T>(d, hn::Mul(v, rstd))); });
        break;
      case Form::kRmsZeroCentred:
        each([&](VF v, VF wv, VF) HWY_ATTR { return hn::Mul(hn::Mul(v, rstd), hn::Add(one, wv)); });
        break;
      case Form::kRmsSiluGate:
        each([&](VF v, VF wv, VF z) HWY_ATTR {
          const VF t = fs::RoundTo<T>(d, hn::Mul(v, rstd));
          return hn::Mul(fs::RoundTo<T>(d, hn::Mul(wv, t)), fs::Silu(d, z));
        });
        break;
      case Form::kRmsSigmoidGate:
        each([&](VF v, VF wv, VF z) HWY_ATTR { return hn::Mul(hn::Mul(wv, hn::Mul(v, rstd)), fs::Sigmoid(d, z)); });
        break;
      case Form::kLayer:
        each([&](VF v, VF wv, VF bv) HWY_ATTR { return hn::Add(hn::Mul(hn::Mul(hn::Sub(v, mean), rstd), wv), bv); });
        break;
      case Form::kUnweighted:
        each([&](VF v, VF, VF) HWY_ATTR { return hn::Mul(v, rstd); });
        break;
    }
    fs::StoreRow(x, m, fs::At(row.y, a.y.dtype, i), a.y.dtype);
  }
}

// residual <- r(residual + x)
HWY_INLINE void AddResidual(const Args& a, const Row& row, int64_t n) {
  const DF d;
  HWY_ALIGN float x[kPiece] = {};
  HWY_ALIGN float r[kPiece] = {};
  const DType dtype = a.x.dtype;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    fs::LoadRow(fs::At(row.x, dtype, i), dtype, m, x);
    fs::LoadRow(fs::At(row.residual, dtype, i), dtype, m, r);
    for (int64_t l = 0; l < m; l += int64_t(hn::Lanes(d))) {
      hn::Store(hn::Add(hn::Load(d, r + l), hn::Load(d, x + l)), d, x + l);
    }
    fs::StoreRow(x, m, fs::At(row.residual, dtype, i), dtype);
  }
}

void Run(const Args& a, const Row& given, int64_t n) {
  Row row = given;
  if (row.residual != nullptr) {
    AddResidual(a, row, n);
    row.x = row.residual;
  }
  const Statistics s = Measure(a.form, a.eps, row.x, a.x.dtype, n);
  fs::WithFloatType(a.x.dtype,
                    [&](auto* type) HWY_ATTR { Normalise<std::remove_pointer_t<decltype(type)>>(a, row, s, n); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::norm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::norm {
HWY_EXPORT(Run);
void NormRow(const Args& args, const Row& row, int64_t n) { HWY_DYNAMIC_DISPATCH(Run)(args, row, n); }
}  // namespace fluvial::ops::norm
#endif
