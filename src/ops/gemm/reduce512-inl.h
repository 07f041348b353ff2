// SPDX-License-Identifier: Apache-2.0
// Sums of the 16 lanes of many vectors at once. No include guard and no namespace: included inside a namespace of code
// that is compiled for AVX-512 (cpu_simd.cc once, cpu_avx512bf16.cc once).
//
// Every sum adds lanes l and l+8, then l+4, l+2, l+1, however many vectors are summed together, so a tile's shape
// never shows in a result.

// out[v] = sum of lanes of in[v], v < count; count <= 16. `out` has room for 16.
template <int count>
inline __attribute__((always_inline)) void SumLanes512(const __m512* in, float* out) {
  static_assert(count >= 1 && count <= 16);
  // The masked form: that of GCC 12's header without a mask warns of an uninitialised value.
  constexpr __mmask16 kAll = 0xffff;
  const __m512 zero = _mm512_setzero_ps();
  // Results leave the last step with lane 4t + j of vector order j + 4t transposed: feed them transposed.
  auto at = [&](int position) {
    const int v = position % 4 * 4 + position / 4;
    return v < count ? in[v] : zero;
  };
  __m512 quarter[4];
#pragma GCC unroll 4
  for (int t = 0; t < 4; ++t) {
    const __m512 a = at(4 * t), b = at(4 * t + 1), c = at(4 * t + 2), d = at(4 * t + 3);
    const __m512 ab =
        _mm512_add_ps(_mm512_maskz_shuffle_f32x4(kAll, a, b, 0x44), _mm512_maskz_shuffle_f32x4(kAll, a, b, 0xee));
    const __m512 cd =
        _mm512_add_ps(_mm512_maskz_shuffle_f32x4(kAll, c, d, 0x44), _mm512_maskz_shuffle_f32x4(kAll, c, d, 0xee));
    quarter[t] =
        _mm512_add_ps(_mm512_maskz_shuffle_f32x4(kAll, ab, cd, 0x88), _mm512_maskz_shuffle_f32x4(kAll, ab, cd, 0xdd));
  }
  const __m512 p =
      _mm512_add_ps(_mm512_shuffle_ps(quarter[0], quarter[1], 0x44), _mm512_shuffle_ps(quarter[0], quarter[1], 0xee));
  const __m512 q =
      _mm512_add_ps(_mm512_shuffle_ps(quarter[2], quarter[3], 0x44), _mm512_shuffle_ps(quarter[2], quarter[3], 0xee));
  _mm512_storeu_ps(out, _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xdd)));
}

// out[v] = sum of lanes of in[v] for v < count; `out` has room for count rounded up to 16.
template <int count>
inline __attribute__((always_inline)) void SumLanesMany512(const __m512* in, float* out) {
  if constexpr (count <= 16) {
    SumLanes512<count>(in, out);
  } else {
    SumLanes512<16>(in, out);
    SumLanesMany512<count - 16>(in + 16, out + 16);
  }
}
