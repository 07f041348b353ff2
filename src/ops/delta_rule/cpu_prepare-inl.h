// SPDX-License-Identifier: Apache-2.0
// Rows of a call decoded to fp32: conversions, norms, gates and beta forms. Included per Highway target.
#if defined(FLUVIAL_OPS_DELTA_RULE_CPU_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_DELTA_RULE_CPU_PREPARE_INL_H_
#undef FLUVIAL_OPS_DELTA_RULE_CPU_PREPARE_INL_H_
#else
#define FLUVIAL_OPS_DELTA_RULE_CPU_PREPARE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"
#include "ops/delta_rule/cpu_simd.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::delta_rule {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

template <class T>
HWY_INLINE void LoadRowOf(const T* from, int64_t n, float* to, int64_t padded) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(fs::LoadF32(d, from + i), d, to + i);
  for (; i < n; ++i) to[i] = ToFloat(from[i]);
  for (; i < padded; ++i) to[i] = 0;
}

/// `n` elements from element `offset` on, as fp32, then zeros up to `padded`.
HWY_INLINE void LoadRow(const TensorView& t, int64_t offset, int64_t n, float* to, int64_t padded) {
  switch (t.dtype) {
    case DType::kF32:
      return LoadRowOf(static_cast<const float*>(t.data) + offset, n, to, padded);
    case DType::kBF16:
      return LoadRowOf(static_cast<const BFloat16*>(t.data) + offset, n, to, padded);
    default:
      return LoadRowOf(static_cast<const Float16*>(t.data) + offset, n, to, padded);
  }
}

template <class T>
HWY_INLINE void StoreRowOf(const float* from, int64_t n, T* to) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fs::StoreF32(hn::LoadU(d, from + i), d, to + i);
  for (; i < n; ++i) to[i] = FromFloat<T>(from[i]);
}

HWY_INLINE void StoreRow(const TensorView& t, int64_t offset, const float* from, int64_t n) {
  switch (t.dtype) {
    case DType::kF32:
      return StoreRowOf(from, n, static_cast<float*>(t.data) + offset);
    case DType::kBF16:
      return StoreRowOf(from, n, static_cast<BFloat16*>(t.data) + offset);
    default:
      return StoreRowOf(from, n, static_cast<Float16*>(t.data) + offset);
  }
}

HWY_INLINE float LoadScalar(const TensorView& t, int64_t offset) {
  switch (t.dtype) {
    case DType::kF32:
      return static_cast<const float*>(t.data)[offset];
    case DType::kBF16:
      return ToFloat(static_cast<const BFloat16*>(t.data)[offset]);
    default:
      return ToFloat(static_cast<const Float16*>(t.data)[offset]);
  }
}

/// x * factor / norm, in place over `padded` floats.
HWY_INLINE void NormaliseRow(const Problem& p, float factor, float* x, int64_t padded) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (p.norm != NormForm::kNone) {
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < padded; i += lanes) {
      const auto e = hn::Load(d, x + i);
      sum = hn::MulAdd(e, e, sum);
    }
    const float s = hn::GetLane(hn::SumOfLanes(d, sum));
    factor /= std::sqrt(p.norm == NormForm::kL2Add ? s + p.norm_eps : std::max(s, p.norm_eps));
  }
  if (factor == 1.0f) return;
  const auto f = hn::Set(d, factor);
  for (int64_t i = 0; i < padded; i += lanes) hn::Store(hn::Mul(hn::Load(d, x + i), f), d, x + i);
}

/// 1 / (1 + e^-x), exactly 0 where e^x is below 1e-38.
HWY_INLINE VF Sigmoid(DF d, VF x) {
  const auto e = fs::Exp(d, hn::Neg(hn::Abs(x)));
  const auto y = hn::Add(hn::Set(d, 1.0f), e);
#if HWY_TARGET <= HWY_AVX3
  // An estimate of 14 bits and one step of Newton's: within an ulp, at a third of a division's time.
  const auto estimate = hn::ApproximateReciprocal(y);
  const auto positive = hn::Mul(estimate, hn::NegMulAdd(y, estimate, hn::Set(d, 2.0f)));
#else
  const auto positive = hn::Div(hn::Set(d, 1.0f), y);
#endif
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(e, positive), positive);
}

/// log(1 + e^x); the identity above 20.
HWY_INLINE VF Softplus(DF d, VF x) {
  const auto soft = hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, fs::Exp(d, hn::Neg(hn::Abs(x)))));
  const auto result = hn::IfThenElse(hn::Gt(x, hn::Set(d, 20.0f)), x, soft);
  // Max and Log1p may drop a NaN, which must reach the output to be noticed.
  return hn::Add(result, hn::Sub(x, x));
}

/// Log decays in place: x over `padded` floats; bias may be null and is read over `n` floats.
HWY_INLINE void GateRow(const Problem& p, float exp_a_log, const float* bias, int64_t n, float* x, int64_t padded) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (p.gate == GateForm::kLog) return;
  const bool softplus = p.gate == GateForm::kSoftplus;
  const auto outside = hn::Set(d, softplus ? -exp_a_log : p.lower_bound);
  const auto inside = hn::Set(d, softplus ? 1.0f : exp_a_log);
  for (int64_t i = 0; i < padded; i += lanes) {
    auto y = hn::Load(d, x + i);
    if (bias != nullptr) {
      y = hn::Add(y, i + lanes <= n ? hn::LoadU(d, bias + i)
                                    : fs::LoadF32Tail(d, bias + i, static_cast<size_t>(std::max<int64_t>(n - i, 0))));
    }
    y = hn::Mul(y, inside);
    hn::Store(hn::Mul(outside, softplus ? Softplus(d, y) : Sigmoid(d, y)), d, x + i);
  }
  for (int64_t i = n; i < padded; ++i) x[i] = 0;
}

HWY_INLINE float ExpALog(const HeadCall& c) {
  return c.problem->has_a_log ? std::exp(static_cast<const float*>(c.args->a_log.data)[c.head]) : 1.0f;
}

HWY_INLINE void PrefetchRow(const TensorView& x, int64_t offset, int64_t n) {
  const int64_t size = static_cast<int64_t>(SizeOf(x.dtype));
  const char* at = static_cast<const char*>(x.data) + offset * size;
  for (int64_t byte = 0; byte < n * size; byte += 64) hwy::Prefetch(at + byte);
}

/// Rows lie a whole token apart - a page or more - where hardware prefetchers do not follow: asks for the q, k and gate
/// rows of `chunk` tokens some way behind row `t`. Not further: at such pitches few cache sets hold all of them.
HWY_INLINE void PrefetchRows(const HeadCall& c, int64_t t, int64_t chunk, int64_t end) {
  const Problem& p = *c.problem;
  const int64_t key_head = c.head / (p.hv / p.hk), ahead = p.kda() ? 32 : 64;
  for (int64_t i = t + ahead; i < std::min(t + ahead + chunk, end); ++i) {
    PrefetchRow(c.args->q, i * c.args->q.stride(0) + key_head * p.k, p.k);
    PrefetchRow(c.args->k, i * c.args->k.stride(0) + key_head * p.k, p.k);
    if (p.kda()) PrefetchRow(c.args->gate, i * c.args->gate.stride(0) + c.head * p.k, p.k);
  }
}

/// Columns v0 .. v0+width of v and out, rows t .. t+count: what the next panel will touch.
HWY_INLINE void PrefetchPanel(const HeadCall& c, int64_t t, int64_t count, int64_t v0, int64_t width) {
  const int64_t n = std::min(width, c.v_end - v0);
  for (int64_t i = t; i < t + count; ++i) {
    PrefetchRow(c.args->v, i * c.args->v.stride(0) + c.head * c.problem->v + v0, n);
    PrefetchRow(c.args->out, i * c.args->out.stride(0) + c.head * c.problem->v + v0, n);
  }
}

/// PrefetchPanel for the panel behind (t, v0): to the right, or the first one of the next chunk.
HWY_INLINE void PrefetchNextPanel(const HeadCall& c, int64_t t, int64_t count, int64_t v0, int64_t width, int64_t end) {
  if (v0 + width < c.v_end)
    PrefetchPanel(c, t, count, v0 + width, width);
  else
    PrefetchPanel(c, t + count, std::min(count, end - t - count), c.v_begin, width);
}

/// beta, and GDN's g, of rows t .. t+count of one head, padded to a multiple of kLanePad beyond `rows` by tokens
/// without effect (beta = g = 0). KDA leaves g alone.
HWY_INLINE void PrepareScalars(const HeadCall& c, int64_t t, int64_t count, int64_t rows, float* g, float* beta) {
  const Problem& p = *c.problem;
  const Args& a = *c.args;
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), padded = PadTo(rows, kLanePad);
  for (int64_t i = 0; i < count; ++i) beta[i] = LoadScalar(a.beta, (t + i) * a.beta.stride(0) + c.head);
  for (int64_t i = count; i < padded; ++i) beta[i] = 0;
  if (p.beta != BetaForm::kProbability) {
    const auto factor = hn::Set(d, p.beta == BetaForm::kTwoSigmoid ? 2.0f : 1.0f);
    for (int64_t i = 0; i < padded; i += lanes)
      hn::Store(hn::Mul(factor, Sigmoid(d, hn::Load(d, beta + i))), d, beta + i);
    for (int64_t i = count; i < padded; ++i) beta[i] = 0;
  }
  if (p.kda()) return;
  const float bias = p.has_dt_bias ? static_cast<const float*>(a.dt_bias.data)[c.head] : 0;
  for (int64_t i = 0; i < count; ++i) g[i] = LoadScalar(a.gate, (t + i) * a.gate.stride(0) + c.head) + bias;
  for (int64_t i = count; i < padded; ++i) g[i] = 0;
  GateRow(p, ExpALog(c), nullptr, count, g, padded);
}

/// Rows t .. t+count of one head; up to `rows` tokens without effect (k = q = g = 0) follow.
/// q and k [rows, kp] normalised (q times scale); KDA: g [rows, kp]; beta and GDN's g as PrepareScalars does.
HWY_INLINE void PrepareRows(const HeadCall& c, int64_t t, int64_t count, int64_t rows, int64_t kp, float* q, float* k,
                            float* g, float* beta) {
  const Problem& p = *c.problem;
  const Args& a = *c.args;
  const int64_t key_head = c.head / (p.hv / p.hk);
  const float exp_a_log = ExpALog(c);
  const float* bias = p.kda() && p.has_dt_bias ? static_cast<const float*>(a.dt_bias.data) + c.head * p.k : nullptr;
  PrepareScalars(c, t, count, rows, g, beta);
  for (int64_t i = 0; i < count; ++i) {
    LoadRow(a.q, (t + i) * a.q.stride(0) + key_head * p.k, p.k, q + i * kp, kp);
    NormaliseRow(p, p.scale, q + i * kp, kp);
    LoadRow(a.k, (t + i) * a.k.stride(0) + key_head * p.k, p.k, k + i * kp, kp);
    NormaliseRow(p, 1.0f, k + i * kp, kp);
    if (!p.kda()) continue;
    LoadRow(a.gate, (t + i) * a.gate.stride(0) + c.head * p.k, p.k, g + i * kp, kp);
    GateRow(p, exp_a_log, bias, p.k, g + i * kp, kp);
  }
  for (int64_t i = count; i < rows; ++i) {
    std::fill(q + i * kp, q + (i + 1) * kp, 0.0f);
    std::fill(k + i * kp, k + (i + 1) * kp, 0.0f);
    if (p.kda()) std::fill(g + i * kp, g + (i + 1) * kp, 0.0f);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::delta_rule
HWY_AFTER_NAMESPACE();

#endif
