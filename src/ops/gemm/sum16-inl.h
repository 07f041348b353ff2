// SPDX-License-Identifier: Apache-2.0
// Sums of the 16 lanes of 16 AVX-512 registers at once. No include guard and no namespace: included inside a namespace
// of code that is compiled for AVX-512 (cpu_simd.cc once, cpu_avx512bf16.cc once).
//
// Every sum adds lanes l and l+8, then l+4, l+2, l+1, whatever its neighbours are: a blend keeps one half of each of
// two registers in place, a shuffle crosses the other halves, one addition serves both.

// Lane v of the result = sum of the lanes of in[16 v .. 16 v + 15].
inline __attribute__((always_inline)) __m512 SumLanes16(const float* in) {
  const __m512i cross4 = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  const __m512i cross1 = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
  // The masked form: that of GCC 12's header without a mask warns of an uninitialised value.
  constexpr __mmask16 kAll = 0xffff;
  auto add8 = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_maskz_shuffle_f32x4(kAll, a, b, 0x4e));
  };
  auto add4 = [cross4](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_permutex2var_ps(a, cross4, b));
  };
  auto add2 = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e));
  };
  auto add1 = [cross1](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a, b), _mm512_permutex2var_ps(a, cross1, b));
  };
  // Bits of a register's number choose its half at each level: 8s first, so that results come out in order.
  auto four = [&](int v) __attribute__((always_inline)) {
    auto load = [in](int r) __attribute__((always_inline)) { return _mm512_loadu_ps(in + 16 * r); };
    return add4(add8(load(v), load(v + 8)), add8(load(v + 4), load(v + 12)));
  };
  return add1(add2(four(0), four(2)), add2(four(1), four(3)));
}
