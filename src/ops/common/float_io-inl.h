// SPDX-License-Identifier: Apache-2.0
// Per-target (Highway) loads and stores of fp32, bf16 and fp16 memory as fp32 vectors, round to nearest even.
// Include inside foreach_target files only.
#if defined(FLUVIAL_OPS_COMMON_FLOAT_IO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_COMMON_FLOAT_IO_INL_H_
#undef FLUVIAL_OPS_COMMON_FLOAT_IO_INL_H_
#else
#define FLUVIAL_OPS_COMMON_FLOAT_IO_INL_H_
#endif

#include <hwy/highway.h>

#include <type_traits>

#include "base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Highway 1.0 truncates fp16 and mishandles its infinities where the instruction set has no conversion (x86 before
// F16C, which is part of its AVX2 target): those go through base/float16.h.
inline constexpr bool kEmulatedF16 =
    HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2);

template <class D>
HWY_INLINE hn::Vec<D> LoadF([[maybe_unused]] D d, const float* p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadF([[maybe_unused]] D d, const BFloat16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)))));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadF([[maybe_unused]] D d, const Float16* p) {
  if constexpr (kEmulatedF16) {
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = ToFloat(p[i]);
    return hn::Load(d, lanes);
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}

template <class D>
HWY_INLINE void StoreF(hn::Vec<D> v, D d, float* p) {
  hn::StoreU(v, d, p);
}

template <class D>
HWY_INLINE void StoreF(hn::Vec<D> v, [[maybe_unused]] D d, BFloat16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<int32_t, D> di32;
  const auto u = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(d32, 0x7fffu))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(d32, 0x40u));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  // At most 0xffff and not negative as int32, so the saturating conversion is exact.
  const auto bits = hn::DemoteTo(d16, hn::BitCast(di32, hn::IfThenElse(nan, quiet, rounded)));
  hn::StoreU(bits, d16, reinterpret_cast<uint16_t*>(p));
}

template <class D>
HWY_INLINE void StoreF(hn::Vec<D> v, D d, Float16* p) {
  if constexpr (kEmulatedF16) {
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = ToFloat16(lanes[i]);
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
  }
}

// The value that r() leaves in fp32: rounded to T and back.
template <class T, class D>
HWY_INLINE hn::Vec<D> RoundTo([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (sizeof(T) == 4) {
    return v;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::Rebind<uint32_t, D> d32;
    const auto u = hn::BitCast(d32, v);
    const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1u));
    const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(d32, 0x7fffu)));
    const auto quiet = hn::Or(u, hn::Set(d32, 0x400000u));
    const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
    return hn::BitCast(d, hn::And(hn::IfThenElse(nan, quiet, rounded), hn::Set(d32, 0xffff0000u)));
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(d)];
    StoreF(v, d, lanes);
    return LoadF(d, lanes);
  }
}

// Calls fn with a typed null pointer of the C++ type behind `dtype`: fp32, bf16 or fp16, nothing else.
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

// out[0..n) = in[0..n) as fp32.
template <class T>
HWY_INLINE void LoadRow(const T* in, int64_t n, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const int64_t L = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + L <= n; i += L) hn::StoreU(LoadF(d, in + i), d, out + i);
  for (; i < n; ++i) hn::StoreU(LoadF(d1, in + i), d1, out + i);
}

// out[0..n) = in[0..n) rounded to nearest even.
template <class T>
HWY_INLINE void StoreRow(const float* in, int64_t n, T* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const int64_t L = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + L <= n; i += L) StoreF(hn::LoadU(d, in + i), d, out + i);
  for (; i < n; ++i) StoreF(hn::LoadU(d1, in + i), d1, out + i);
}

inline void LoadRow(const void* in, DType dtype, int64_t n, float* out) {
  WithFloatType(dtype,
                [&](auto* type) HWY_ATTR { LoadRow(static_cast<decltype(type)>(const_cast<void*>(in)), n, out); });
}

inline void StoreRow(const float* in, int64_t n, void* out, DType dtype) {
  WithFloatType(dtype, [&](auto* type) HWY_ATTR { StoreRow(in, n, static_cast<decltype(type)>(out)); });
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops
HWY_AFTER_NAMESPACE();
#endif
