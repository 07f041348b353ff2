// SPDX-License-Identifier: Apache-2.0
// Loads and stores of fp32 / bf16 / fp16 arrays as vectors of fp32, for every Highway target. The conversions give the
// same bits as base/float16.h (round to nearest even; NaN stays NaN), tested over all patterns in simd_io_test.cc.
// Highway's own conversions are used only where one instruction does it: elsewhere their rounding differs between
// targets and releases.
//
// Include after hwy/highway.h inside a foreach_target file; everything lives in hwy's per-target namespace.
#if defined(FLUVIAL_OPS_COMMON_SIMD_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_COMMON_SIMD_IO_INL_H_
#undef FLUVIAL_OPS_COMMON_SIMD_IO_INL_H_
#else
#define FLUVIAL_OPS_COMMON_SIMD_IO_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using VF = hn::Vec<D>;

/// x86 from F16C on (part of Highway's AVX2 target) converts fp16 in one instruction, rounding to nearest even.
inline constexpr bool kHardwareF16 = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;

// ---- loads: Lanes(d) elements, any alignment ----

template <class D>
HWY_INLINE VF<D> LoadF32(D d, const float* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE VF<D> LoadF32(D d, const BFloat16* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)))));
}

template <class D>
HWY_INLINE VF<D> LoadF32(D d, const Float16* p) {
  if constexpr (kHardwareF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  } else {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> du16;
    const auto u = hn::PromoteTo(du, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p)));
    const auto sign = hn::ShiftLeft<16>(hn::And(u, hn::Set(du, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(u, hn::Set(du, 0x7fffu)));
    // Scaling by 2^112 re-biases the exponent and normalises denormals, both exactly; infinity and NaN get exponent
    // 255.
    const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
    const auto special = hn::Ge(hn::BitCast(d, magnitude), hn::BitCast(d, hn::Set(du, 0x0f800000u)));
    const auto infinite = hn::Or(magnitude, hn::Set(du, 0x7f800000u));
    return hn::BitCast(d, hn::Or(hn::IfThenElse(hn::RebindMask(du, special), infinite, scaled), sign));
  }
}

// ---- stores ----

template <class D>
HWY_INLINE void StoreF32(VF<D> v, D d, float* p) {
  hn::StoreU(v, d, p);
}

/// fp32 bits rounded to bf16 in the upper half; the lower half is not cleared.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> BF16InUpperHalf(D, VF<D> v) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;  // integer compare: Ne(v, v) is false for NaN on AVX in Highway 1.0
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(u, hn::Set(du, 0x400000u));
  const auto magnitude = hn::BitCast(di, hn::And(u, hn::Set(du, 0x7fffffffu)));
  const auto nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(di, 0x7f800000)));
  return hn::IfThenElse(nan, quiet, rounded);
}

template <class D>
HWY_INLINE void StoreF32(VF<D> v, D d, BFloat16* p) {
  const hn::Rebind<uint16_t, D> du16;
  hn::StoreU(hn::TruncateTo(du16, hn::ShiftRight<16>(BF16InUpperHalf(d, v))), du16, reinterpret_cast<uint16_t*>(p));
}

template <class D>
HWY_INLINE void StoreF32(VF<D> v, D d, Float16* p) {
  if constexpr (kHardwareF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
  } else {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> du16;
    const auto u = hn::BitCast(du, v);
    const auto a = hn::And(u, hn::Set(du, 0x7fffffffu));
    const auto ai = hn::BitCast(di, a);  // non-negative, so signed compares are right
    const auto sign = hn::ShiftRight<16>(hn::And(u, hn::Set(du, 0x80000000u)));
    const auto odd = hn::And(hn::ShiftRight<13>(a), hn::Set(du, 1u));
    const auto normal =
        hn::ShiftRight<13>(hn::Sub(hn::Add(a, hn::Add(odd, hn::Set(du, 0xfffu))), hn::Set(du, 0x38000000u)));
    // Below 2^-14 adding 0.5 lets the FPU round at bit 2^-24.
    const auto shifted = hn::BitCast(du, hn::Add(hn::BitCast(d, a), hn::Set(d, 0.5f)));
    const auto denormal = hn::Sub(shifted, hn::Set(du, 0x3f000000u));
    const auto nan_bits = hn::Or(hn::And(hn::ShiftRight<13>(a), hn::Set(du, 0x3ffu)), hn::Set(du, 0x7e00u));
    auto bits = hn::IfThenElse(hn::RebindMask(du, hn::Lt(ai, hn::Set(di, 0x38800000))), denormal, normal);
    bits = hn::IfThenElse(hn::RebindMask(du, hn::Gt(ai, hn::Set(di, 0x477fefff))), hn::Set(du, 0x7c00u), bits);
    bits = hn::IfThenElse(hn::RebindMask(du, hn::Gt(ai, hn::Set(di, 0x7f800000))), nan_bits, bits);
    hn::StoreU(hn::TruncateTo(du16, hn::Or(bits, sign)), du16, reinterpret_cast<uint16_t*>(p));
  }
}

// ---- tails: n < Lanes(d) elements, nothing beyond them is touched; missing lanes load as zero ----

template <class D, class T>
HWY_INLINE VF<D> LoadF32Tail(D d, const T* p, size_t n) {
  HWY_ALIGN T buffer[hn::MaxLanes(d)] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return LoadF32(d, buffer);
}

template <class D, class T>
HWY_INLINE void StoreF32Tail(VF<D> v, D d, T* p, size_t n) {
  HWY_ALIGN T buffer[hn::MaxLanes(d)];
  StoreF32(v, d, buffer);
  std::memcpy(p, buffer, n * sizeof(T));
}

/// v rounded to T and back: what a store followed by a load gives.
template <class T, class D>
HWY_INLINE VF<D> RoundTo(D d, VF<D> v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::And(BF16InUpperHalf(d, v), hn::Set(du, 0xffff0000u)));
  } else {
    HWY_ALIGN T buffer[hn::MaxLanes(d)];
    StoreF32(v, d, buffer);
    return LoadF32(d, buffer);
  }
}

// ---- rows whose type is known at run time ----

/// Calls fn with a typed null pointer of the C++ type behind `dtype`: fp32, bf16 or fp16, nothing else.
template <class Fn>
HWY_INLINE void WithFloatType(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kBF16:
      return fn(static_cast<BFloat16*>(nullptr));
    case DType::kF16:
      return fn(static_cast<Float16*>(nullptr));
    default:
      return fn(static_cast<float*>(nullptr));
  }
}

/// Address of element i; P is void* or const void*.
template <class P>
HWY_INLINE P At(P data, DType dtype, int64_t i) {
  return reinterpret_cast<P>(reinterpret_cast<uintptr_t>(data) + uintptr_t(i) * SizeOf(dtype));
}

/// out[0..n) = in[0..n) as fp32.
inline void LoadRow(const void* in, DType dtype, int64_t n, float* out) {
  WithFloatType(dtype, [&](auto* type) HWY_ATTR {
    const hn::ScalableTag<float> d;
    const hn::CappedTag<float, 1> d1;
    const auto* from = static_cast<decltype(type)>(const_cast<void*>(in));
    const int64_t lanes = int64_t(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) hn::StoreU(LoadF32(d, from + i), d, out + i);
    for (; i < n; ++i) hn::StoreU(LoadF32(d1, from + i), d1, out + i);
  });
}

/// out[0..n) = in[0..n) rounded to nearest even.
inline void StoreRow(const float* in, int64_t n, void* out, DType dtype) {
  WithFloatType(dtype, [&](auto* type) HWY_ATTR {
    const hn::ScalableTag<float> d;
    const hn::CappedTag<float, 1> d1;
    auto* to = static_cast<decltype(type)>(out);
    const int64_t lanes = int64_t(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) StoreF32(hn::LoadU(d, in + i), d, to + i);
    for (; i < n; ++i) StoreF32(hn::LoadU(d1, in + i), d1, to + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::simd
HWY_AFTER_NAMESPACE();

#endif
