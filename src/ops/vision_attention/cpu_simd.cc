// SPDX-License-Identifier: Apache-2.0
#include "ops/vision_attention/cpu_simd.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/vision_attention/cpu_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/attention_tiles-inl.h"
#include "ops/common/simd_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::vision_attention {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
namespace ft = fluvial::ops::attention::HWY_NAMESPACE;
using attention::kTile;

template <class T>
void Tile(const Block& b, int64_t k0, const CpuScratch& w) {
  const int64_t nk = std::min(kTile, b.keys - k0), padded = attention::PaddedDim(b.d);
  const T* k = static_cast<const T*>(b.k) + k0 * b.k_token;
  const T* v = static_cast<const T*>(b.v) + k0 * b.v_token;
  ft::PackKeys<T>([&](int64_t j) HWY_ATTR { return k + j * b.k_token; }, b.d, nk, w.kt);
  ft::Scores<ft::Units<T>::kPairs>(w.q, w.kt, b.d, b.queries, w.s);
  float alpha[kCpuRows];
  for (int64_t r = 0; r < b.queries; ++r) {
    alpha[r] = ft::SoftmaxTile(w.s + r * kTile, nk, b.scale, w.m + r, w.l + r);
  }
  ft::PackValues<T>([&](int64_t j) HWY_ATTR { return v + j * b.v_token; }, b.d, nk, w.v);
  ft::Accumulate(
      w.s, alpha, b.queries, nk, [&](int64_t j, int64_t c) { return w.v + ft::PackedValue(j, c); }, padded, padded,
      w.acc);
}

template <class T>
void Rows(const Block& b, const CpuScratch& w) {
  const hn::ScalableTag<float> d;
  const int64_t padded = attention::PaddedDim(b.d), lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < b.queries; ++r) {
    fs::LoadRow(static_cast<const T*>(b.q) + r * b.q_token, b.io, b.d, w.q + r * b.d);
  }
  std::fill_n(w.acc, b.queries * padded, 0.0f);
  std::fill_n(w.m, b.queries, ft::kMinusInfinity);
  std::fill_n(w.l, b.queries, 0.0f);
  for (int64_t k0 = 0; k0 < b.keys; k0 += kTile) Tile<T>(b, k0, w);
  for (int64_t r = 0; r < b.queries; ++r) {
    float* acc = w.acc + r * padded;
    const auto l = hn::Set(d, w.l[r]);
    for (int64_t c = 0; c < padded; c += lanes) hn::StoreU(hn::Div(hn::LoadU(d, acc + c), l), d, acc + c);
    fs::StoreRow(acc, b.d, static_cast<T*>(b.out) + r * b.out_token, b.io);
    if (b.lse != nullptr) b.lse[r * b.lse_token] = w.m[r] + std::log(w.l[r]);
  }
}

void AttendBlockT(const Block& b, const CpuScratch& w) {
  fs::WithFloatType(b.io, [&](auto* type) HWY_ATTR { Rows<std::remove_pointer_t<decltype(type)>>(b, w); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::vision_attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::vision_attention {

HWY_EXPORT(AttendBlockT);

void AttendBlock(const Block& b, const CpuScratch& w) { HWY_DYNAMIC_DISPATCH(AttendBlockT)(b, w); }

}  // namespace fluvial::ops::vision_attention
#endif
