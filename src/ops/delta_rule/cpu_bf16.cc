// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/cpu_bf16.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace fluvial::ops::delta_rule::bf16 {

#if defined(__AVX512BF16__)
namespace {

inline __m512 Dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// Words of `low` and `high` interleaved: lane i is (low[i], high[i]).
inline __m512i Pair(__m512 low, __m512 high) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

template <int kVectors, Start kStart>
inline void Tile(int64_t pairs, const uint32_t* a, int64_t a_row, int64_t a_depth, const uint32_t* b, int64_t b_pitch,
                 float* c, int64_t c_pitch, const float* scale, uint32_t* rounded) {
  constexpr int kRows = 8;
  __m512 sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) {
      if constexpr (kStart == Start::kZero)
        sum[m][n] = _mm512_setzero_ps();
      else
        sum[m][n] = _mm512_load_ps(c + m * c_pitch + 16 * n);
      if constexpr (kStart == Start::kScale) sum[m][n] = _mm512_mul_ps(sum[m][n], _mm512_set1_ps(scale[m]));
    }
  }
  for (int64_t d = 0; d < pairs; ++d) {
    __m512i row[kVectors];
    for (int n = 0; n < kVectors; ++n) row[n] = _mm512_load_si512(b + d * b_pitch + 16 * n);
    const uint32_t* column = a + d * a_depth;
    for (int m = 0; m < kRows; ++m) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(column[m * a_row]));
      for (int n = 0; n < kVectors; ++n) sum[m][n] = Dot(sum[m][n], x, row[n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kVectors; ++n) _mm512_store_ps(c + m * c_pitch + 16 * n, sum[m][n]);
  }
  if (rounded == nullptr) return;
  for (int m = 0; m < kRows; m += 2) {
    for (int n = 0; n < kVectors; ++n) {
      _mm512_store_si512(rounded + m / 2 * c_pitch + 16 * n, Pair(sum[m][n], sum[m + 1][n]));
    }
  }
}

template <Start kStart>
void GemmOf(int64_t rows, int64_t pairs, const uint32_t* a, int64_t a_row, int64_t a_depth, const uint32_t* b, float* c,
            const float* scale, uint32_t* rounded) {
  for (int64_t m = 0; m < rows; m += 8) {
    Tile<2, kStart>(pairs, a + m * a_row, a_row, a_depth, b, kWidth, c + m * kWidth, kWidth,
                    scale == nullptr ? nullptr : scale + m, rounded == nullptr ? nullptr : rounded + m / 2 * kWidth);
  }
}

}  // namespace

void Gemm(Start start, int64_t rows, int64_t pairs, const uint32_t* a, int64_t a_row, int64_t a_depth,
          const uint32_t* b, float* c, const float* scale, uint32_t* rounded) {
  switch (start) {
    case Start::kZero:
      return GemmOf<Start::kZero>(rows, pairs, a, a_row, a_depth, b, c, scale, rounded);
    case Start::kKeep:
      return GemmOf<Start::kKeep>(rows, pairs, a, a_row, a_depth, b, c, scale, rounded);
    case Start::kScale:
      return GemmOf<Start::kScale>(rows, pairs, a, a_row, a_depth, b, c, scale, rounded);
  }
}

void LowerGemm(int64_t rows, int64_t pairs, const uint32_t* a, int64_t a_row, const uint32_t* b, float* c,
               int64_t pitch) {
  for (int64_t i = 0; i < rows; i += 8) {
    int64_t j = 0;
    for (; j + 16 < i + 8; j += 32) {
      Tile<2, Start::kZero>(pairs, a + i * a_row, a_row, 1, b + j, pitch, c + i * pitch + j, pitch, nullptr, nullptr);
    }
    for (; j < i + 8; j += 16) {
      Tile<1, Start::kZero>(pairs, a + i * a_row, a_row, 1, b + j, pitch, c + i * pitch + j, pitch, nullptr, nullptr);
    }
  }
}

void PairRows(const float* x, int64_t rows, int64_t n, uint32_t* to) {
  for (int64_t r = 0; r < rows; r += 2) {
    for (int64_t i = 0; i < n; i += 16) {
      _mm512_store_si512(to + r / 2 * n + i, Pair(_mm512_load_ps(x + r * n + i), _mm512_load_ps(x + (r + 1) * n + i)));
    }
  }
}

void PairRows16(const uint16_t* x, int64_t rows, int64_t n, uint32_t* to) {
  for (int64_t r = 0; r < rows; r += 2) {
    for (int64_t i = 0; i < n; i += 16) {
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(x + r * n + i)));
      const __m512i high =
          _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(x + (r + 1) * n + i)));
      _mm512_store_si512(to + r / 2 * n + i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

void Round(const float* x, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_load_ps(x + i))));
  }
}

void TokenRows128(int64_t rows, const uint16_t* from, uint16_t* to, const float* a, const float* k, const float* ak,
                  const float* aq, float kq, float beta, const float* v, float* out) {
  constexpr int kVectors = 8;
  for (int64_t r = 0; r < rows; ++r, from += 128) {
    // The pool comes from memory: a few KiB ahead hides its latency.
    for (int i = 0; i < 4; ++i) _mm_prefetch(reinterpret_cast<const char*>(from + 24 * 128 + 32 * i), _MM_HINT_T0);
    __m512 s[kVectors];
    __m512 dot[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int i = 0; i < kVectors; ++i) {
      s[i] = reinterpret_cast<__m512>(_mm512_slli_epi32(
          _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16 * i))), 16));
      dot[i & 1] = _mm512_fmadd_ps(s[i], _mm512_load_ps(ak + 16 * i), dot[i & 1]);
      sum[i & 1] = _mm512_fmadd_ps(s[i], _mm512_load_ps(aq + 16 * i), sum[i & 1]);
    }
    const float d = beta * (v[r] - _mm512_reduce_add_ps(_mm512_add_ps(dot[0], dot[1])));
    out[r] = _mm512_reduce_add_ps(_mm512_add_ps(sum[0], sum[1])) + d * kq;
    if (to == nullptr) continue;
    const __m512 dv = _mm512_set1_ps(d);
    for (int i = 0; i < kVectors; ++i) {
      s[i] = _mm512_fmadd_ps(s[i], _mm512_load_ps(a + 16 * i), _mm512_mul_ps(dv, _mm512_load_ps(k + 16 * i)));
    }
    for (int i = 0; i < kVectors; i += 2) {
      _mm512_storeu_si512(to + 128 * r + 16 * i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(s[i + 1], s[i])));
    }
  }
}

float SumSquares(const uint16_t* x, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 e = reinterpret_cast<__m512>(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(x + i))), 16));
    sum = _mm512_fmadd_ps(e, e, sum);
  }
  return _mm512_reduce_add_ps(sum);
}

#else  // never called: CpuHasBf16() is false in such a build

void Gemm(Start, int64_t, int64_t, const uint32_t*, int64_t, int64_t, const uint32_t*, float*, const float*,
          uint32_t*) {}
void LowerGemm(int64_t, int64_t, const uint32_t*, int64_t, const uint32_t*, float*, int64_t) {}
void PairRows(const float*, int64_t, int64_t, uint32_t*) {}
void PairRows16(const uint16_t*, int64_t, int64_t, uint32_t*) {}
void Round(const float*, int64_t, uint16_t*) {}
void TokenRows128(int64_t, const uint16_t*, uint16_t*, const float*, const float*, const float*, const float*, float,
                  float, const float*, float*) {}
float SumSquares(const uint16_t*, int64_t) { return 0; }

#endif

}  // namespace fluvial::ops::delta_rule::bf16
