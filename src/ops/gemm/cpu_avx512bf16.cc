// SPDX-License-Identifier: Apache-2.0
// bf16 x bf16 by vdpbf16ps: c += x[2l] w[2l] + x[2l+1] w[2l+1] in each of 16 fp32 lanes. Compiled with -mavx512bf16 and
// entered only after HaveBf16Kernel() has asked the CPU. Highway 1.0 has no target with this instruction.
//
// The instruction rounds to nearest even whatever the control register says, and takes subnormal inputs and gives
// subnormal results as zero (Intel SDM, VDPBF16PS).
#include "ops/gemm/kernels.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

#include <cstring>

namespace fluvial::ops::gemm {
namespace {

#include "ops/gemm/transpose512-inl.h"

constexpr int kVector = 16;  // outputs per register
constexpr int kVectors = 3;  // per panel: 8 rows x 3 = 24 of 32 registers are sums
constexpr int kLine = 32;    // bf16 values per cache line, 16 pairs
constexpr int kColumns = kVector * kVectors;

// Panel layout: [pair of k][column] pairs of bf16, 4 bytes each.
void Pack(const void* w_void, int64_t ws, int64_t n, int64_t k, void* panel_void) {
  const uint16_t* w = static_cast<const uint16_t*>(w_void);
  float* panel = static_cast<float*>(panel_void);
  for (int64_t j = 0; j < n; j += kVector) {
    const int rows = static_cast<int>(n - j < kVector ? n - j : kVector);
    for (int64_t l = 0; l < k; l += kLine) {
      const int64_t left = k - l;
      const __mmask32 mask = left >= kLine ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << left) - 1);
      __m512 row[kVector];
      if (rows == kVector && left >= kLine) {
#pragma GCC unroll 16
        for (int r = 0; r < kVector; ++r) row[r] = _mm512_loadu_ps(w + (j + r) * ws + l);
      } else {
#pragma GCC unroll 16
        for (int r = 0; r < kVector; ++r) {
          // Rows that are not there: an empty mask reads nothing.
          row[r] =
              _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(r < rows ? mask : 0, w + (j + (r < rows ? r : 0)) * ws + l));
        }
      }
      Transpose16(row);
      float* to = panel + l / 2 * kColumns + j;
      const int pairs = static_cast<int>(left >= kLine ? kVector : (left + 1) / 2);
      if (pairs == kVector) {
#pragma GCC unroll 16
        for (int p = 0; p < kVector; ++p) _mm512_storeu_ps(to + p * kColumns, row[p]);
      } else {
        for (int p = 0; p < pairs; ++p) _mm512_storeu_ps(to + p * kColumns, row[p]);
      }
    }
  }
}

inline __attribute__((always_inline)) __m512bh BroadcastPair(const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

template <int MR, int NV>
__attribute__((noinline)) void Tile(const uint16_t* x, int64_t xs, const float* panel, int64_t pairs, float* block,
                                    bool first_chunk, float* total, bool first_block, const Ahead& ahead) {
  __m512 acc[MR][NV];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      acc[i][v] = first_chunk ? _mm512_setzero_ps() : _mm512_loadu_ps(block + i * kColumns + v * kVector);
    }
  }
  auto step = [&](int64_t p) __attribute__((always_inline)) {
    __m512bh w[NV];
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) w[v] = (__m512bh)_mm512_loadu_ps(panel + p * kColumns + v * kVector);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const __m512bh xv = BroadcastPair(x + i * xs + 2 * p);
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) acc[i][v] = _mm512_dpbf16_ps(acc[i][v], xv, w[v]);
    }
  };
  if (ahead.rows > 0) {
    Prefetcher prefetch(ahead, pairs);
    for (int64_t p = 0; p < pairs; ++p) {
      prefetch.Next();
      step(p);
    }
  } else {
    for (int64_t p = 0; p < pairs; ++p) step(p);
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      const int at = i * kColumns + v * kVector;
      if (total == nullptr) {
        _mm512_storeu_ps(block + at, acc[i][v]);
      } else {
        _mm512_storeu_ps(total + at, first_block ? acc[i][v] : _mm512_add_ps(_mm512_loadu_ps(total + at), acc[i][v]));
      }
    }
  }
}

template <int NV>
void Rows(const uint16_t* x, int64_t xs, const float* panel, int64_t m, int64_t pairs, float* block, bool first_chunk,
          float* total, bool first_block, const Ahead& ahead) {
  int64_t i = 0;
  auto run = [&](auto tile, int64_t rows) {
    for (; i + rows <= m; i += rows) {
      tile(x + i * xs, xs, panel, pairs, block + i * kColumns, first_chunk,
           total == nullptr ? nullptr : total + i * kColumns, first_block,
           i == 0 && ahead.rows > 0 ? ahead : AheadOfX(x + (i + rows) * xs, xs * 2, m - i - rows, rows, pairs * 4));
    }
  };
  run(Tile<8, NV>, 8);
  run(Tile<4, NV>, 4);
  run(Tile<2, NV>, 2);
  run(Tile<1, NV>, 1);
}

void Multiply(const void* x_void, int64_t xs, const void* panel_void, int64_t m, int64_t n, int64_t k, float* block,
              bool first_chunk, float* total, bool first_block, const Ahead& ahead) {
  const uint16_t* x = static_cast<const uint16_t*>(x_void);
  const float* panel = static_cast<const float*>(panel_void);
  const int64_t pairs = (k + 1) / 2;
  if (n <= kVector) {
    Rows<1>(x, xs, panel, m, pairs, block, first_chunk, total, first_block, ahead);
  } else if (n <= 2 * kVector) {
    Rows<2>(x, xs, panel, m, pairs, block, first_chunk, total, first_block, ahead);
  } else {
    Rows<3>(x, xs, panel, m, pairs, block, first_chunk, total, first_block, ahead);
  }
}

}  // namespace

bool HaveBf16Kernel() {
  static const bool have = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return have;
}

Kernel Bf16Kernel() { return {DType::kBF16, kColumns, kVector, 2, 2, Pack, Multiply}; }

}  // namespace fluvial::ops::gemm

#else

namespace fluvial::ops::gemm {
bool HaveBf16Kernel() { return false; }
Kernel Bf16Kernel() { return {DType::kBF16, 48, 16, 2, 2, nullptr, nullptr}; }
}  // namespace fluvial::ops::gemm

#endif
