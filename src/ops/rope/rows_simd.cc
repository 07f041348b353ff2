// SPDX-License-Identifier: Apache-2.0
// Rotation of one head. Products and sums are kept apart (no FMA): transformers rounds between them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope/rows_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h first
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/common/simd_io-inl.h"
#include "ops/rope/rows.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::rope {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// Pairs per piece; a multiple of every vector length.
constexpr int64_t kPiece = 256;

template <class T>
HWY_INLINE void RotateTyped(const void* x, DType in, void* y, DType out, const float* cos, const float* sin,
                            int64_t half) {
  const DF d;
  HWY_ALIGN float a[kPiece] = {};
  HWY_ALIGN float b[kPiece] = {};
  HWY_ALIGN float c[kPiece] = {};
  HWY_ALIGN float s[kPiece] = {};
  for (int64_t i = 0; i < half; i += kPiece) {
    const int64_t m = std::min(kPiece, half - i);
    fs::LoadRow(fs::At(x, in, i), in, m, a);
    fs::LoadRow(fs::At(x, in, half + i), in, m, b);
    std::memcpy(c, cos + i, size_t(m) * sizeof(float));
    std::memcpy(s, sin + i, size_t(m) * sizeof(float));
    for (int64_t l = 0; l < m; l += int64_t(hn::Lanes(d))) {
      const VF av = hn::Load(d, a + l), bv = hn::Load(d, b + l);
      const VF cv = fs::RoundTo<T>(d, hn::Load(d, c + l)), sv = fs::RoundTo<T>(d, hn::Load(d, s + l));
      auto product = [d](VF p, VF q) HWY_ATTR { return fs::RoundTo<T>(d, hn::Mul(p, q)); };
      hn::Store(hn::Sub(product(av, cv), product(bv, sv)), d, a + l);
      hn::Store(hn::Add(product(bv, cv), product(av, sv)), d, b + l);
    }
    fs::StoreRow(a, m, fs::At(y, out, i), out);
    fs::StoreRow(b, m, fs::At(y, out, half + i), out);
  }
}

void Rotate(const void* x, DType in, void* y, DType out, const float* cos, const float* sin, int64_t half,
            Rounding rounding) {
  if (rounding == Rounding::kFp32) return RotateTyped<float>(x, in, y, out, cos, sin, half);
  fs::WithFloatType(in, [&](auto* type) HWY_ATTR {
    RotateTyped<std::remove_pointer_t<decltype(type)>>(x, in, y, out, cos, sin, half);
  });
}

void Copy(const void* x, DType in, void* y, DType out, int64_t n) {
  if (in == out) {
    if (x != y) std::memcpy(y, x, size_t(n) * SizeOf(in));
    return;
  }
  HWY_ALIGN float a[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    fs::LoadRow(fs::At(x, in, i), in, m, a);
    fs::StoreRow(a, m, fs::At(y, out, i), out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::rope
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::rope {
HWY_EXPORT(Rotate);
HWY_EXPORT(Copy);
void RotateHead(const void* x, DType in, void* y, DType out, const float* cos, const float* sin, int64_t half,
                Rounding rounding) {
  HWY_DYNAMIC_DISPATCH(Rotate)(x, in, y, out, cos, sin, half, rounding);
}
void CopyTail(const void* x, DType in, void* y, DType out, int64_t n) { HWY_DYNAMIC_DISPATCH(Copy)(x, in, y, out, n); }
}  // namespace fluvial::ops::rope
#endif
