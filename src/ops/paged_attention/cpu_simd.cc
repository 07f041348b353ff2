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
#include "ops/common/attention_tiles-inl.h"
#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"
#include "ops/paged_attention/cpu_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::paged_attention::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;

using attention::HWY_NAMESPACE::Accumulate;
using attention::HWY_NAMESPACE::D;
using attention::HWY_NAMESPACE::kFastRows;
using attention::HWY_NAMESPACE::kMinusInfinity;
using attention::HWY_NAMESPACE::PackedValue;
using attention::HWY_NAMESPACE::PackKeys;
using attention::HWY_NAMESPACE::PackValues;
using attention::HWY_NAMESPACE::Scores;
using attention::HWY_NAMESPACE::SoftmaxTile;
using attention::HWY_NAMESPACE::Units;
using attention::HWY_NAMESPACE::V;

template <class T>
void AttendTile(const Block& b, int64_t k0, const Scratch& w, const Partial& to) {
  const int64_t padded = PaddedDim(b.d_v), lanes = static_cast<int64_t>(hn::Lanes(D()));
  const int64_t nk = std::min(kTile, b.keys() - k0);
  // Rows before r0 end before this tile.
  const int64_t r0 = std::max<int64_t>(0, k0 - b.position) * b.heads, rows = b.rows() - r0;
  // Few rows: the time goes into fetching the cache, so the next reads start before this tile's arithmetic.
  const bool decode = b.rows() <= 2 * kFastRows;
  if (decode) PrefetchTile<T>(b.v, b, k0, b.d_v);
  PackKeys<T>([&](int64_t j) HWY_ATTR { return KvRow<T>(b.k, b, k0 + j); }, b.d_qk, nk, w.kt);
  if (decode) PrefetchTile<T>(b.k, b, k0 + kTile, b.d_qk);
  Scores<Units<T>::kPairs>(w.q + r0 * b.d_qk, w.kt, b.d_qk, rows, w.s);
  float alpha[kMaxRows];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t valid = std::min(kTile, b.position + (r0 + r) / b.heads + 1 - k0);
    alpha[r] = SoftmaxTile(w.s + r * kTile, valid, b.scale, to.m + r0 + r, to.l + r0 + r);
  }
  // Converting the values first pays when several register blocks of rows use them; odd widths need the padding.
  const bool pack = rows > 2 * kFastRows || b.d_v % lanes != 0;
  if (pack) PackValues<T>([&](int64_t j) HWY_ATTR { return KvRow<T>(b.v, b, k0 + j); }, b.d_v, nk, w.v);
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
