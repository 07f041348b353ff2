// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_attention/cpu_simd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/paged_attention/cpu_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"
#include "ops/paged_attention/cpu_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::paged_attention::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Rows in flight of the two multiplications: 32 vector registers carry 8 rows x 2 vectors, 16 registers half of it.
constexpr int kFastRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

/// s[r][j] = q_r . k_j for R rows and all keys of the tile, NV vectors of keys at a time. The chain over the head
/// dimension is the same for both kinds of units.
template <bool kPairs, int R, int NV>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT kt, int64_t d_qk,
                          float* HWY_RESTRICT s) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t units = kPairs ? (d_qk + 1) / 2 : d_qk;
  for (int64_t j = 0; j < kTile; j += NV * lanes) {
    const float* from[NV];
    for (int n = 0; n < NV; ++n) {
      const int64_t at = j + n * lanes;
      from[n] = kt + at / kPanel * units * kPanel + at % kPanel;
    }
    V acc[R][NV];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::Zero(d);
    }
    auto step = [&](int64_t c, const V(&k)[NV]) HWY_ATTR {
      for (int r = 0; r < R; ++r) {
        const V x = hn::Set(d, q[r * d_qk + c]);
        for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(x, k[n], acc[r][n]);
      }
    };
    if constexpr (kPairs) {
      const auto high = hn::Set(du, 0xffff0000u);
      for (int64_t c = 0; c < d_qk; c += 2) {
        V even[NV], odd[NV];
        for (int n = 0; n < NV; ++n) {
          const auto pair = hn::BitCast(du, hn::LoadU(d, from[n] + c / 2 * kPanel));
          even[n] = hn::BitCast(d, hn::ShiftLeft<16>(pair));
          odd[n] = hn::BitCast(d, hn::And(pair, high));
        }
        step(c, even);
        if (c + 1 < d_qk) step(c + 1, odd);
      }
    } else {
      for (int64_t c = 0; c < d_qk; ++c) {
        V k[NV];
        for (int n = 0; n < NV; ++n) k[n] = hn::LoadU(d, from[n] + c * kPanel);
        step(c, k);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < NV; ++n) hn::StoreU(acc[r][n], d, s + r * kTile + j + n * lanes);
    }
  }
}

template <bool kPairs>
void Scores(const float* q, const float* kt, int64_t d_qk, int64_t rows, float* s) {
  int64_t r = 0;
  auto step = [&](auto count, auto vectors) HWY_ATTR {
    constexpr int R = decltype(count)::value, NV = decltype(vectors)::value;
    for (; r + R <= rows; r += R) ScoreTile<kPairs, R, NV>(q + r * d_qk, kt, d_qk, s + r * kTile);
  };
  step(std::integral_constant<int, kFastRows>(), std::integral_constant<int, 2>());
  step(std::integral_constant<int, kFastRows / 2>(), std::integral_constant<int, 4>());
  step(std::integral_constant<int, 1>(), std::integral_constant<int, 4>());
}

/// One tile of the running softmax: s becomes p; returns exp(m_old - m_new). Lanes >= valid count as not there.
HWY_INLINE float SoftmaxTile(float* HWY_RESTRICT s, int64_t valid, float scale, float* m, float* l) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V vscale = hn::Set(d, scale);
  V largest = hn::Set(d, kMinusInfinity);
  for (int64_t j = 0; j < kTile; j += lanes) {
    V x = hn::Mul(hn::LoadU(d, s + j), vscale);
    if (j + lanes > valid) {
      const size_t n = static_cast<size_t>(std::max<int64_t>(valid - j, 0));
      x = hn::IfThenElse(hn::FirstN(d, n), x, hn::Set(d, kMinusInfinity));
    }
    largest = hn::Max(largest, x);
    hn::StoreU(x, d, s + j);
  }
  const float m_new = std::max(*m, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const V vm = hn::Set(d, m_new);
  V sum = hn::Zero(d);
  for (int64_t j = 0; j < kTile; j += lanes) {
    const V p = fs::Exp(d, hn::Sub(hn::LoadU(d, s + j), vm));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, s + j);
  }
  const float alpha = hn::GetLane(fs::Exp(d, hn::Set(d, *m - m_new)));
  *l = *l * alpha + hn::GetLane(hn::SumOfLanes(d, sum));
  *m = m_new;
  return alpha;
}

/// acc[r] = acc[r] * alpha[r] + sum over j < nk of p[r][j] * v[j], NV vectors of R rows. value(j, c) points at column
/// c.
template <int R, int NV, class Value>
HWY_INLINE void AccumulateVectors(const float* HWY_RESTRICT p, const float* alpha, int64_t nk, const Value& value,
                                  int64_t c, int64_t padded, float* HWY_RESTRICT acc) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[R][NV];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) {
      sum[r][n] = hn::Mul(hn::LoadU(d, acc + r * padded + c + n * lanes), hn::Set(d, alpha[r]));
    }
  }
  for (int64_t j = 0; j < nk; ++j) {
    V v[NV];
    for (int n = 0; n < NV; ++n) v[n] = fs::LoadF32(d, value(j, c + n * lanes));
    for (int r = 0; r < R; ++r) {
      const V x = hn::Set(d, p[r * kTile + j]);
      for (int n = 0; n < NV; ++n) sum[r][n] = hn::MulAdd(x, v[n], sum[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) hn::StoreU(sum[r][n], d, acc + r * padded + c + n * lanes);
  }
}

template <class Value>
void Accumulate(const float* p, const float* alpha, int64_t rows, int64_t nk, const Value& value, int64_t width,
                int64_t padded, float* acc) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t r = 0;
  auto step = [&](auto count, auto vectors) HWY_ATTR {
    constexpr int R = decltype(count)::value, NV = decltype(vectors)::value;
    for (; r + R <= rows; r += R) {
      const float* pr = p + r * kTile;
      float* to = acc + r * padded;
      int64_t c = 0;
      for (; c + NV * lanes <= width; c += NV * lanes) {
        AccumulateVectors<R, NV>(pr, alpha + r, nk, value, c, padded, to);
      }
      for (; c < width; c += lanes) AccumulateVectors<R, 1>(pr, alpha + r, nk, value, c, padded, to);
    }
  };
  step(std::integral_constant<int, kFastRows>(), std::integral_constant<int, 2>());
  step(std::integral_constant<int, kFastRows / 2>(), std::integral_constant<int, 4>());
  step(std::integral_constant<int, 1>(), std::integral_constant<int, 4>());
}

template <class T>
void AttendTile(const Block& b, int64_t k0, const Scratch& w, const Partial& to) {
  const int64_t padded = PaddedDim(b.d_v), lanes = static_cast<int64_t>(hn::Lanes(D()));
  const int64_t nk = std::min(kTile, b.keys() - k0);
  // Rows before r0 end before this tile.
  const int64_t r0 = std::max<int64_t>(0, k0 - b.position) * b.heads, rows = b.rows() - r0;
  // Few rows: the time goes into fetching the cache, so the next reads start before this tile's arithmetic.
  const bool decode = b.rows() <= 2 * kFastRows;
  if (decode) PrefetchTile<T>(b.v, b, k0, b.d_v);
  PackKeys<T>(b, k0, nk, w.kt);
  if (decode) PrefetchTile<T>(b.k, b, k0 + kTile, b.d_qk);
  Scores<Units<T>::kPairs>(w.q + r0 * b.d_qk, w.kt, b.d_qk, rows, w.s);
  float alpha[kMaxRows];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t valid = std::min(kTile, b.position + (r0 + r) / b.heads + 1 - k0);
    alpha[r] = SoftmaxTile(w.s + r * kTile, valid, b.scale, to.m + r0 + r, to.l + r0 + r);
  }
  // Converting the values first pays when several register blocks of rows use them; odd widths need the padding.
  const bool pack = rows > 2 * kFastRows || b.d_v % lanes != 0;
  if (pack) PackValues<T>(b, k0, nk, w.v);
  const T* direct[kTile];
  if (!pack) {
    for (int64_t j = 0; j < nk; ++j) direct[j] = KvRow<T>(b.v, b, k0 + j);
  }
  // Rows that see the same number of keys go together: all of them, except in tiles on the diagonal.
  for (int64_t r = 0; r < rows;) {
    const int64_t valid = std::min(kTile, b.position + (r0 + r) / b.heads + 1 - k0);
    const int64_t end = valid == kTile ? rows : std::min(rows, ((r0 + r) / b.heads + 1) * b.heads - r0);
    float* acc = to.acc + (r0 + r) * padded;
    if (pack) {
      Accumulate(
          w.s + r * kTile, alpha + r, end - r, valid, [&](int64_t j, int64_t c) { return w.v + PackedValue(j, c); },
          padded, padded, acc);
    } else {
      Accumulate(
          w.s + r * kTile, alpha + r, end - r, valid, [&](int64_t j, int64_t c) { return direct[j] + c; }, b.d_v,
          padded, acc);
    }
    r = end;
  }
}

void ClearT(int64_t rows, int64_t padded, const Partial& to) {
  std::fill_n(to.m, rows, kMinusInfinity);
  std::fill_n(to.l, rows, 0.0f);
  std::fill_n(to.acc, rows * padded, 0.0f);
}

void AttendSpanT(const Block& b, int64_t span, const Scratch& w, const Partial& to) {
  ClearT(b.rows(), PaddedDim(b.d_v), to);
  const int64_t end = std::min((span + 1) * kSpan, b.keys());
  fs::WithFloatType(b.kv, [&](auto type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t k0 = span * kSpan; k0 < end; k0 += kTile) AttendTile<T>(b, k0, w, to);
  });
}

void MergeT(int64_t rows, int64_t padded, const Partial& total, const Partial& next) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r) {
    if (next.m[r] == kMinusInfinity && next.l[r] == 0.0f) continue;  // the row ends before this span
    const float m = std::max(total.m[r], next.m[r]);
    const V old_weight = fs::Exp(d, hn::Set(d, total.m[r] - m)), new_weight = fs::Exp(d, hn::Set(d, next.m[r] - m));
    total.l[r] = total.l[r] * hn::GetLane(old_weight) + next.l[r] * hn::GetLane(new_weight);
    total.m[r] = m;
    float* acc = total.acc + r * padded;
    for (int64_t c = 0; c < padded; c += lanes) {
      const V x = hn::Mul(hn::LoadU(d, acc + c), old_weight);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, next.acc + r * padded + c), new_weight, x), d, acc + c);
    }
  }
}

void LoadQueriesT(const Block& b, const Scratch& w) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  fs::WithFloatType(b.io, [&](auto type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t r = 0; r < b.rows(); ++r) {
      const T* from = static_cast<const T*>(b.q) + r / b.heads * b.q_token + r % b.heads * b.q_head;
      float* to = w.q + r * b.d_qk;
      int64_t c = 0;
      for (; c + lanes <= b.d_qk; c += lanes) hn::StoreU(fs::LoadF32(d, from + c), d, to + c);
      for (; c < b.d_qk; ++c) to[c] = ToFloat(from[c]);
    }
  });
}

void FinishT(const Block& b, const Partial& total) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), padded = PaddedDim(b.d_v);
  fs::WithFloatType(b.io, [&](auto type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t r = 0; r < b.rows(); ++r) {
      const int64_t query = r / b.heads, head = r % b.heads;
      T* to = static_cast<T*>(b.out) + query * b.out_token + head * b.out_head;
      const float* acc = total.acc + r * padded;
      const V l = hn::Set(d, total.l[r]);
      int64_t c = 0;
      for (; c + lanes <= b.d_v; c += lanes) fs::StoreF32(hn::Div(hn::LoadU(d, acc + c), l), d, to + c);
      if (c < b.d_v) {
        fs::StoreF32Tail(hn::Div(hn::LoadU(d, acc + c), l), d, to + c, static_cast<size_t>(b.d_v - c));
      }
      if (b.lse != nullptr) b.lse[query * b.lse_token + head * b.lse_head] = total.m[r] + std::log(total.l[r]);
    }
  });
}

void ConvertRowT(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  fs::WithFloatType(from_dtype, [&](auto from_type) {
    fs::WithFloatType(to_dtype, [&](auto to_type) {
      const auto* a = static_cast<const std::remove_pointer_t<decltype(from_type)>*>(from);
      using T = std::remove_pointer_t<decltype(to_type)>;
      T* b = static_cast<T*>(to);
      int64_t c = 0;
      for (; c + lanes <= n; c += lanes) fs::StoreF32(fs::LoadF32(d, a + c), d, b + c);
      if (c < n) {
        const size_t left = static_cast<size_t>(n - c);
        fs::StoreF32Tail(fs::LoadF32Tail(d, a + c, left), d, b + c, left);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::paged_attention::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::paged_attention::internal {

HWY_EXPORT(LoadQueriesT);
HWY_EXPORT(AttendSpanT);
HWY_EXPORT(ClearT);
HWY_EXPORT(MergeT);
HWY_EXPORT(FinishT);
HWY_EXPORT(ConvertRowT);

void LoadQueries(const Block& b, const Scratch& w) { HWY_DYNAMIC_DISPATCH(LoadQueriesT)(b, w); }
void AttendSpan(const Block& b, int64_t span, const Scratch& w, const Partial& to) {
  HWY_DYNAMIC_DISPATCH(AttendSpanT)(b, span, w, to);
}
void Clear(int64_t rows, int64_t padded, const Partial& total) { HWY_DYNAMIC_DISPATCH(ClearT)(rows, padded, total); }
void Merge(int64_t rows, int64_t padded, const Partial& total, const Partial& next) {
  HWY_DYNAMIC_DISPATCH(MergeT)(rows, padded, total, next);
}
void Finish(const Block& b, const Partial& total) { HWY_DYNAMIC_DISPATCH(FinishT)(b, total); }
void ConvertRow(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(n) * SizeOf(to_dtype));
  } else {
    HWY_DYNAMIC_DISPATCH(ConvertRowT)(from, from_dtype, to, to_dtype, n);
  }
}

}  // namespace fluvial::ops::paged_attention::internal
#endif
