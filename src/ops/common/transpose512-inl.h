// SPDX-License-Identifier: Apache-2.0
// Transposition of 16 x 16 four-byte elements in AVX-512 registers. No include guard and no namespace: included inside
// a namespace of code that is compiled for AVX-512.

// rows[i] lane j -> rows[j] lane i. Four levels of 16 shuffles: 4-byte, 8-byte, then 16-byte units twice.
inline __attribute__((always_inline)) void Transpose16(__m512 (&rows)[16]) {
  // The masked forms: those of GCC 12's header without a mask warn of an uninitialised value.
  constexpr __mmask16 kAll = 0xffff;
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_maskz_unpacklo_ps(kAll, rows[i], rows[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_ps(kAll, rows[i], rows[i + 1]);
  }
  // Now block b of t[4g], t[4g+1] holds columns 4b.. of rows 4g, 4g+1; pair them with those of rows 4g+2, 4g+3.
#pragma GCC unroll 4
  for (int g = 0; g < 16; g += 4) {
    const __m512d a = _mm512_castps_pd(t[g]), b = _mm512_castps_pd(t[g + 1]);
    const __m512d c = _mm512_castps_pd(t[g + 2]), d = _mm512_castps_pd(t[g + 3]);
    constexpr __mmask8 kAll8 = 0xff;
    rows[g] = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(kAll8, a, c));
    rows[g + 1] = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(kAll8, a, c));
    rows[g + 2] = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(kAll8, b, d));
    rows[g + 3] = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(kAll8, b, d));
  }
  // Block b of rows[4g + q] is column 4b + q of rows 4g..4g+3: gather the four g of each column.
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const __m512 even01 = _mm512_maskz_shuffle_f32x4(kAll, rows[q], rows[4 + q], 0x88);
    const __m512 odd01 = _mm512_maskz_shuffle_f32x4(kAll, rows[q], rows[4 + q], 0xdd);
    const __m512 even23 = _mm512_maskz_shuffle_f32x4(kAll, rows[8 + q], rows[12 + q], 0x88);
    const __m512 odd23 = _mm512_maskz_shuffle_f32x4(kAll, rows[8 + q], rows[12 + q], 0xdd);
    t[q] = _mm512_maskz_shuffle_f32x4(kAll, even01, even23, 0x88);
    t[4 + q] = _mm512_maskz_shuffle_f32x4(kAll, odd01, odd23, 0x88);
    t[8 + q] = _mm512_maskz_shuffle_f32x4(kAll, even01, even23, 0xdd);
    t[12 + q] = _mm512_maskz_shuffle_f32x4(kAll, odd01, odd23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = t[i];
}
