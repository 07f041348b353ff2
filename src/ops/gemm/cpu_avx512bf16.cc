// SPDX-License-Identifier: Apache-2.0
// bf16 x bf16 by vdpbf16ps: c += x[2l] w[2l] + x[2l+1] w[2l+1] in each of 16 fp32 lanes. Compiled with -mavx512bf16 and
// entered only after HaveBf16Kernel() has asked the CPU. Highway 1.0 has no target with this instruction.
//
// The instruction rounds to nearest even whatever the control register says, and takes subnormal inputs and gives
// subnormal results as zero (Intel SDM, VDPBF16PS). Same lane order for every tile shape, as in cpu_simd.cc.
#include "ops/gemm/kernels.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

namespace fluvial::ops::gemm {
namespace {

#include "ops/gemm/reduce512-inl.h"

constexpr int64_t kLanes = 32;  // bf16 values per register

inline __attribute__((always_inline)) __m512bh Load(const uint16_t* p, __mmask32 mask) {
  return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
}
inline __attribute__((always_inline)) __m512bh Load(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

template <int MR, int NR>
__attribute__((noinline)) void Tile(const uint16_t* x, int64_t xs, const uint16_t* w, int64_t ws, int64_t k, float* c,
                                    int64_t ldc, bool first) {
  __m512 acc[MR * NR];
#pragma GCC unroll 24
  for (int v = 0; v < MR * NR; ++v) acc[v] = _mm512_setzero_ps();
  auto step = [&](int64_t l, auto... mask) __attribute__((always_inline)) {
    __m512bh wv[NR];
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) wv[j] = Load(w + j * ws + l, mask...);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const __m512bh xv = Load(x + i * xs + l, mask...);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) acc[i * NR + j] = _mm512_dpbf16_ps(acc[i * NR + j], xv, wv[j]);
    }
  };
  int64_t l = 0;
  for (; l + kLanes <= k; l += kLanes) step(l);
  if (l < k) step(l, static_cast<__mmask32>((uint64_t{1} << (k - l)) - 1));

  float sums[(MR * NR + 15) / 16 * 16];
  SumLanesMany512<MR * NR>(acc, sums);
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) {
      float& out = c[i * ldc + j];
      out = first ? sums[i * NR + j] : out + sums[i * NR + j];
    }
  }
}

template <int MR, int NR>
void Rows(const uint16_t* x, int64_t xs, const uint16_t* w, int64_t ws, int64_t n, int64_t k, float* c, int64_t ldc,
          bool first) {
  int64_t j = 0;
  for (; j + NR <= n; j += NR) Tile<MR, NR>(x, xs, w + j * ws, ws, k, c + j, ldc, first);
  for (; j < n; ++j) Tile<MR, 1>(x, xs, w + j * ws, ws, k, c + j, ldc, first);
}

void Block(const void* x_void, int64_t xs, const void* w_void, int64_t ws, int64_t m, int64_t n, int64_t k, float* c,
           int64_t ldc, bool first) {
  const uint16_t* x = static_cast<const uint16_t*>(x_void);
  const uint16_t* w = static_cast<const uint16_t*>(w_void);
  int64_t i = 0;
  for (; i + 8 <= m; i += 8) Rows<8, 3>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
  for (; i + 4 <= m; i += 4) Rows<4, 6>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
  for (; i + 2 <= m; i += 2) Rows<2, 8>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
  for (; i < m; ++i) Rows<1, 8>(x + i * xs, xs, w, ws, n, k, c + i * ldc, ldc, first);
}

}  // namespace

bool HaveBf16Kernel() {
  static const bool have = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return have;
}

Kernel Bf16Kernel() { return {Block, DType::kBF16, DType::kBF16, 2048, 8}; }

}  // namespace fluvial::ops::gemm

#else

namespace fluvial::ops::gemm {
bool HaveBf16Kernel() { return false; }
Kernel Bf16Kernel() { return {nullptr, DType::kBF16, DType::kBF16, 2048, 8}; }
}  // namespace fluvial::ops::gemm

#endif
