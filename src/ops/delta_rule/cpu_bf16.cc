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

// GCC keeps a tile's sums in registers only where every loop over them is gone.
#define FLUVIAL_UNROLL _Pragma("GCC unroll 16")

template <int kRows, int kVectors>
using Tile = __m512[kRows][kVectors];

template <int kRows, int kVectors>
[[gnu::always_inline]] inline void Clear(Tile<kRows, kVectors>& sum) {
  FLUVIAL_UNROLL for (int m = 0; m < kRows; ++m) {
    FLUVIAL_UNROLL for (int n = 0; n < kVectors; ++n) sum[m][n] = _mm512_setzero_ps();
  }
}

/// sum += A B over `pairs`: A(m, d) = a[m * a_row + d * a_depth], B rows `b_pitch` words apart.
template <int kRows, int kVectors>
[[gnu::always_inline]] inline void Accumulate(int64_t pairs, const uint32_t* a, int64_t a_row, int64_t a_depth,
                                              const uint32_t* b, int64_t b_pitch, Tile<kRows, kVectors>& sum) {
  for (int64_t d = 0; d < pairs; ++d) {
    __m512i row[kVectors];
    FLUVIAL_UNROLL for (int n = 0; n < kVectors; ++n) row[n] = _mm512_load_si512(b + d * b_pitch + 16 * n);
    FLUVIAL_UNROLL for (int m = 0; m < kRows; ++m) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a[m * a_row + d * a_depth]));
      FLUVIAL_UNROLL for (int n = 0; n < kVectors; ++n) sum[m][n] = Dot(sum[m][n], x, row[n]);
    }
  }
}

/// 8 rows of Sums.
[[gnu::always_inline]] inline void SumsTile(const Product& first, int64_t pairs, const float* scale,
                                            const Product& second, int64_t second_pairs, int64_t m, Tile<8, 2>& sum) {
  Clear(sum);
  Accumulate(pairs, first.a + m * first.a_row, first.a_row, 1, first.b, kWidth, sum);
  FLUVIAL_UNROLL for (int i = 0; i < 8; ++i) {
    const __m512 f = _mm512_set1_ps(scale[m + i]);
    FLUVIAL_UNROLL for (int n = 0; n < 2; ++n) sum[i][n] = _mm512_mul_ps(sum[i][n], f);
  }
  Accumulate(second_pairs, second.a + m * second.a_row, second.a_row, 1, second.b, kWidth, sum);
}

inline __m512 FromBf16(__m256i x) { return reinterpret_cast<__m512>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

inline __m512 LoadBf16(const uint16_t* x) { return FromBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))); }

inline void StoreBf16(uint16_t* to, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

inline uint32_t Columns(int64_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1; }

}  // namespace

void Sums(int64_t rows, const Product& first, int64_t pairs, const float* scale, const Product& second,
          int64_t second_pairs, float* c, Prefetcher* prefetch) {
  for (int64_t m = 0; m < rows; m += 8) {
    prefetch->Tile();
    Tile<8, 2> sum;
    SumsTile(first, pairs, scale, second, second_pairs, m, sum);
    FLUVIAL_UNROLL for (int i = 0; i < 8; ++i) {
      FLUVIAL_UNROLL for (int n = 0; n < 2; ++n) _mm512_store_ps(c + (m + i) * kWidth + 16 * n, sum[i][n]);
    }
  }
}

void SumsOut(const Product& first, int64_t pairs, const float* scale, const Product& second, int64_t second_pairs,
             int64_t count, int64_t columns, uint16_t* out, int64_t pitch, Prefetcher* prefetch) {
  const __mmask32 wanted = Columns(columns);
  for (int64_t m = 0; m < count; m += 8) {
    prefetch->Tile();
    Tile<8, 2> sum;
    SumsTile(first, pairs, scale, second, second_pairs, m, sum);
    FLUVIAL_UNROLL for (int i = 0; i < 8; ++i) {
      if (m + i < count) {
        _mm512_mask_storeu_epi16(out + (m + i) * pitch, wanted,
                                 reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(sum[i][1], sum[i][0])));
      }
    }
  }
}

void Solve(const float* a, const float* beta, const float* x, int64_t count, int64_t columns, const uint16_t* v,
           int64_t pitch, const float* out, uint32_t* u, uint32_t* w) {
  constexpr int kRows = 16;
  for (int n = 0; n < 2; ++n) {
    const auto wanted = static_cast<__mmask16>(Columns(columns) >> (16 * n));
    __m512 r[kRows];
    FLUVIAL_UNROLL for (int i = 0; i < kRows; ++i) {
      const __m256i row = _mm256_maskz_loadu_epi16(i < count ? wanted : __mmask16{0}, v + i * pitch + 16 * n);
      r[i] =
          _mm512_mul_ps(_mm512_set1_ps(beta[i]), _mm512_sub_ps(FromBf16(row), _mm512_load_ps(x + i * kWidth + 16 * n)));
    }
    FLUVIAL_UNROLL for (int j = 0; j < kRows - 1; ++j) {
      FLUVIAL_UNROLL for (int i = j + 1; i < kRows; ++i) {
        r[i] = _mm512_fnmadd_ps(_mm512_set1_ps(a[i * kRows + j]), r[j], r[i]);
      }
    }
    FLUVIAL_UNROLL for (int i = 0; i < kRows; i += 2) {
      _mm512_store_si512(u + i / 2 * kWidth + 16 * n, Pair(r[i], r[i + 1]));
    }
    if (w == nullptr) continue;
    FLUVIAL_UNROLL for (int i = 0; i < kRows; i += 2) {
      _mm512_store_si512(w + i / 2 * kWidth + 16 * n, Pair(_mm512_mul_ps(_mm512_set1_ps(out[i]), r[i]),
                                                           _mm512_mul_ps(_mm512_set1_ps(out[i + 1]), r[i + 1])));
    }
  }
}

void Update(int64_t kp, int64_t pairs, const uint32_t* keys, const uint32_t* b, const float* decay, float* s,
            uint32_t* rounded, Prefetcher* prefetch) {
  for (int64_t m = 0; m < kp; m += 8) {
    prefetch->Tile();
    Tile<8, 2> sum;
    FLUVIAL_UNROLL for (int i = 0; i < 8; ++i) {
      const __m512 f = _mm512_set1_ps(decay[m + i]);
      FLUVIAL_UNROLL for (int n = 0; n < 2; ++n) {
        sum[i][n] = _mm512_mul_ps(f, _mm512_load_ps(s + (m + i) * kWidth + 16 * n));
      }
    }
    Accumulate(pairs, keys + m, 1, kp, b, kWidth, sum);
    FLUVIAL_UNROLL for (int i = 0; i < 8; ++i) {
      FLUVIAL_UNROLL for (int n = 0; n < 2; ++n) _mm512_store_ps(s + (m + i) * kWidth + 16 * n, sum[i][n]);
    }
    FLUVIAL_UNROLL for (int i = 0; i < 8; i += 2) {
      FLUVIAL_UNROLL for (int n = 0; n < 2; ++n) {
        _mm512_store_si512(rounded + (m + i) / 2 * kWidth + 16 * n, Pair(sum[i][n], sum[i + 1][n]));
      }
    }
  }
}

namespace {

template <int kRows, int kVectors>
inline void LowerTile(int64_t pairs, const uint32_t* a, int64_t a_row, const uint32_t* b, float* c, int64_t pitch) {
  Tile<kRows, kVectors> sum;
  Clear(sum);
  Accumulate(pairs, a, a_row, 1, b, pitch, sum);
  FLUVIAL_UNROLL for (int m = 0; m < kRows; ++m) {
    FLUVIAL_UNROLL for (int n = 0; n < kVectors; ++n) _mm512_store_ps(c + m * pitch + 16 * n, sum[m][n]);
  }
}

}  // namespace

void LowerGemm(int64_t rows, int64_t pairs, const uint32_t* a, int64_t a_row, const uint32_t* b, float* c,
               int64_t pitch) {
  for (int64_t i = 0; i < rows; i += 16) {
    // Sixteen sums at a time in either form: fewer wait for one another.
    int64_t j = 0;
    for (; j + 16 < i + 16; j += 32) {
      LowerTile<8, 2>(pairs, a + i * a_row, a_row, b + j, c + i * pitch + j, pitch);
      LowerTile<8, 2>(pairs, a + (i + 8) * a_row, a_row, b + j, c + (i + 8) * pitch + j, pitch);
    }
    for (; j < i + 16; j += 16) LowerTile<16, 1>(pairs, a + i * a_row, a_row, b + j, c + i * pitch + j, pitch);
  }
}

bool KdaFactors(int64_t rows, int64_t kp, const uint16_t* q, const uint16_t* k, const float* q_norm,
                const float* k_norm, const float* a, float least, float most, uint16_t* q16, uint16_t* k16,
                uint16_t* i16, uint32_t* r, float* decay) {
  const __m512 two = _mm512_set1_ps(2.0f);
  __m512 lowest = _mm512_set1_ps(1.0f), highest = _mm512_setzero_ps();
  for (int64_t c = 0; c < kp; c += 16) {
    alignas(64) float inverse[64][16];
    __m512 e = _mm512_set1_ps(1.0f);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = i * kp + c;
      e = _mm512_mul_ps(e, _mm512_load_ps(a + at));
      // 1 / e: an estimate of 14 bits and one step of Newton's. Infinite for e = 0, which `least` excludes.
      const __m512 estimate = _mm512_rcp14_ps(e);
      const __m512 inv = _mm512_mul_ps(estimate, _mm512_fnmadd_ps(e, estimate, two));
      const __m512 key = _mm512_mul_ps(LoadBf16(k + at), _mm512_set1_ps(k_norm[i]));
      const __m512 query = _mm512_mul_ps(LoadBf16(q + at), _mm512_set1_ps(q_norm[i]));
      highest = _mm512_max_ps(highest, _mm512_abs_ps(key));
      StoreBf16(k16 + at, _mm512_mul_ps(key, e));
      StoreBf16(q16 + at, _mm512_mul_ps(query, e));
      const __m512 x = _mm512_mul_ps(key, inv);
      StoreBf16(i16 + at, x);
      _mm512_store_ps(inverse[i], x);
    }
    lowest = _mm512_min_ps(lowest, e);
    _mm512_store_ps(decay + c, e);
    for (int64_t i = 0; i < rows; i += 2) {
      _mm512_store_si512(r + i / 2 * kp + c, Pair(_mm512_mul_ps(e, _mm512_load_ps(inverse[i])),
                                                  _mm512_mul_ps(e, _mm512_load_ps(inverse[i + 1]))));
    }
  }
  // Written so that a NaN is not usable either.
  return _mm512_reduce_min_ps(lowest) >= least && _mm512_reduce_max_ps(highest) <= most;
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

void Sums(int64_t, const Product&, int64_t, const float*, const Product&, int64_t, float*, Prefetcher*) {}
void SumsOut(const Product&, int64_t, const float*, const Product&, int64_t, int64_t, int64_t, uint16_t*, int64_t,
             Prefetcher*) {}
void Solve(const float*, const float*, const float*, int64_t, int64_t, const uint16_t*, int64_t, const float*,
           uint32_t*, uint32_t*) {}
void Update(int64_t, int64_t, const uint32_t*, const uint32_t*, const float*, float*, uint32_t*, Prefetcher*) {}
void LowerGemm(int64_t, int64_t, const uint32_t*, int64_t, const uint32_t*, float*, int64_t) {}
bool KdaFactors(int64_t, int64_t, const uint16_t*, const uint16_t*, const float*, const float*, const float*, float,
                float, uint16_t*, uint16_t*, uint16_t*, uint32_t*, float*) {
  return false;
}
void PairRows(const float*, int64_t, int64_t, uint32_t*) {}
void PairRows16(const uint16_t*, int64_t, int64_t, uint32_t*) {}
void Round(const float*, int64_t, uint16_t*) {}
void TokenRows128(int64_t, const uint16_t*, uint16_t*, const float*, const float*, const float*, const float*, float,
                  float, const float*, float*) {}
float SumSquares(const uint16_t*, int64_t) { return 0; }

#endif

}  // namespace fluvial::ops::delta_rule::bf16
