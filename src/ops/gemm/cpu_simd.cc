// SPDX-License-Identifier: Apache-2.0
// fp32 kernels on any instruction set: dot products along K, many rows of x times many rows of w per register tile.
//
// One lane order for every tile shape: lane l of an output's accumulator takes k = l, l + L, l + 2L, ... (L lanes), a
// short tail is padded with zeros, the lanes are summed by one fixed tree. See gemm.h: "Order of the sum".
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/cpu_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h first
#include <hwy/highway.h>

#include <cstring>

#include "ops/common/float_io-inl.h"
#include "ops/gemm/kernels.h"

#if HWY_ARCH_X86
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::gemm {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using fluvial::ops::HWY_NAMESPACE::LoadF;
using fluvial::ops::HWY_NAMESPACE::StoreF;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define FLUVIAL_GEMM_512 1
#include "ops/gemm/reduce512-inl.h"
#else
#define FLUVIAL_GEMM_512 0
#endif

// 32 registers of AVX-512 hold 24 sums; 16 registers hold 12.
constexpr bool kWide = FLUVIAL_GEMM_512;

template <int count>
HWY_INLINE void Reduce(const VF* acc, float* out) {
#if FLUVIAL_GEMM_512
  __m512 raw[count];
#pragma GCC unroll 24
  for (int v = 0; v < count; ++v) raw[v] = acc[v].raw;
  SumLanesMany512<count>(raw, out);
#else
  for (int v = 0; v < count; ++v) out[v] = hn::GetLane(hn::SumOfLanes(DF(), acc[v]));
#endif
}

template <int MR, int NR, class TW>
HWY_INLINE void Step(const float* x, int64_t xs, const TW* w, int64_t ws, VF* acc) {
  const DF d;
  VF wv[NR];
#pragma GCC unroll 8
  for (int j = 0; j < NR; ++j) wv[j] = LoadF(d, w + j * ws);
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
    const VF xv = hn::LoadU(d, x + i * xs);
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i * NR + j] = hn::MulAdd(xv, wv[j], acc[i * NR + j]);
  }
}

template <int MR, int NR, class TW>
HWY_NOINLINE void Tile(const float* x, int64_t xs, const TW* w, int64_t ws, int64_t k, float* c, int64_t ldc,
                       bool first) {
  const DF d;
  constexpr int64_t L = int64_t(hn::MaxLanes(d));
  VF acc[MR * NR];
#pragma GCC unroll 24
  for (int v = 0; v < MR * NR; ++v) acc[v] = hn::Zero(d);
  int64_t l = 0;
  for (; l + L <= k; l += L) Step<MR, NR>(x + l, xs, w + l, ws, acc);
  if (l < k) {
    // Padded copies: reading past a row could leave the mapping, and 0 * NaN is NaN.
    HWY_ALIGN float xt[MR * L] = {};
    HWY_ALIGN TW wt[NR * L] = {};
    for (int i = 0; i < MR; ++i) std::memcpy(xt + i * L, x + i * xs + l, size_t(k - l) * sizeof(float));
    for (int j = 0; j < NR; ++j) std::memcpy(wt + j * L, w + j * ws + l, size_t(k - l) * sizeof(TW));
    Step<MR, NR>(xt, L, wt, L, acc);
  }
  float sums[(MR * NR + 15) / 16 * 16];
  Reduce<MR * NR>(acc, sums);
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NR; ++j) {
      float& out = c[i * ldc + j];
      out = first ? sums[i * NR + j] : out + sums[i * NR + j];
    }
  }
}

template <int MR, int NR, class TW>
HWY_INLINE void Rows(const float* x, int64_t xs, const TW* w, int64_t ws, int64_t n, int64_t k, float* c, int64_t ldc,
                     bool first) {
  int64_t j = 0;
  for (; j + NR <= n; j += NR) Tile<MR, NR>(x, xs, w + j * ws, ws, k, c + j, ldc, first);
  for (; j < n; ++j) Tile<MR, 1>(x, xs, w + j * ws, ws, k, c + j, ldc, first);
}

template <class TW>
void Block(const void* x_void, int64_t xs, const void* w_void, int64_t ws, int64_t m, int64_t n, int64_t k, float* c,
           int64_t ldc, bool first) {
  const float* x = static_cast<const float*>(x_void);
  const TW* w = static_cast<const TW*>(w_void);
  int64_t i = 0;
  if constexpr (kWide) {
    for (; i + 8 <= m; i += 8) Rows<8, 3>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
  }
  for (; i + 4 <= m; i += 4) Rows<4, kWide ? 6 : 3>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
  for (; i + 2 <= m; i += 2) Rows<2, kWide ? 8 : 4>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
  for (; i < m; ++i) Rows<1, 8>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
}

Kernel GetKernel(DType w) {
  Kernel kernel;
  kernel.w = w;
  kernel.k_block = 1024;
  kernel.tile_m = kWide ? 8 : 4;
  switch (w) {
    case DType::kBF16:
      kernel.block = Block<BFloat16>;
      break;
    case DType::kF16:
      kernel.block = Block<Float16>;
      break;
    default:
      kernel.block = Block<float>;
  }
  return kernel;
}

template <class T>
void ToFloats(const T* x, int64_t k, float* out) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  const int64_t L = int64_t(hn::Lanes(d));
  int64_t l = 0;
  for (; l + L <= k; l += L) hn::StoreU(LoadF(d, x + l), d, out + l);
  for (; l < k; ++l) hn::StoreU(LoadF(d1, x + l), d1, out + l);
}

void ToFloat(const void* x, DType dtype, int64_t k, float* out) {
  switch (dtype) {
    case DType::kBF16:
      return ToFloats(static_cast<const BFloat16*>(x), k, out);
    case DType::kF16:
      return ToFloats(static_cast<const Float16*>(x), k, out);
    default:
      return ToFloats(static_cast<const float*>(x), k, out);
  }
}

template <class TB, class TY>
void FinishTyped(const float* c, const TB* bias, int64_t n, TY* y) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  const int64_t L = int64_t(hn::Lanes(d));
  int64_t j = 0;
  if (bias == nullptr) {
    for (; j + L <= n; j += L) StoreF(hn::LoadU(d, c + j), d, y + j);
    for (; j < n; ++j) StoreF(hn::LoadU(d1, c + j), d1, y + j);
  } else {
    for (; j + L <= n; j += L) StoreF(hn::Add(hn::LoadU(d, c + j), LoadF(d, bias + j)), d, y + j);
    for (; j < n; ++j) StoreF(hn::Add(hn::LoadU(d1, c + j), LoadF(d1, bias + j)), d1, y + j);
  }
}

template <class TY>
void FinishTo(const float* c, const void* bias, DType bias_dtype, int64_t n, TY* y) {
  switch (bias_dtype) {
    case DType::kBF16:
      return FinishTyped(c, static_cast<const BFloat16*>(bias), n, y);
    case DType::kF16:
      return FinishTyped(c, static_cast<const Float16*>(bias), n, y);
    default:
      return FinishTyped(c, static_cast<const float*>(bias), n, y);
  }
}

void Finish(const float* c, const void* bias, DType bias_dtype, int64_t n, void* y, DType y_dtype) {
  switch (y_dtype) {
    case DType::kBF16:
      return FinishTo(c, bias, bias_dtype, n, static_cast<BFloat16*>(y));
    case DType::kF16:
      return FinishTo(c, bias, bias_dtype, n, static_cast<Float16*>(y));
    default:
      return FinishTo(c, bias, bias_dtype, n, static_cast<float*>(y));
  }
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

#undef FLUVIAL_GEMM_512
}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::gemm {

HWY_EXPORT(GetKernel);
HWY_EXPORT(ToFloat);
HWY_EXPORT(Finish);
HWY_EXPORT(TargetName);

Kernel SimdKernel(DType w) { return HWY_DYNAMIC_DISPATCH(GetKernel)(w); }

std::string_view SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

void ToFloatRow(const void* x, DType dtype, int64_t k, float* out) { HWY_DYNAMIC_DISPATCH(ToFloat)(x, dtype, k, out); }

void FinishRow(const float* c, const void* bias, DType bias_dtype, int64_t n, void* y, DType y_dtype) {
  HWY_DYNAMIC_DISPATCH(Finish)(c, bias, bias_dtype, n, y, y_dtype);
}

}  // namespace fluvial::ops::gemm
#endif
