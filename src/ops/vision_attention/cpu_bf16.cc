// SPDX-License-Identifier: Apache-2.0
#include "ops/vision_attention/cpu_bf16.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#endif

namespace fluvial::ops::vision_attention {

#if defined(__AVX512BF16__)
namespace {

#include "ops/common/transpose512-inl.h"

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f;
// The running maximum moves only when a tile exceeds it by this many powers of two: sums stay far from overflow, and
// most tiles need no reduction across lanes and no rescaling.
constexpr float kSlack = 8;

#define FLUVIAL_INLINE inline __attribute__((always_inline))

FLUVIAL_INLINE __m512 Dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// 2^x for x <= 126: relative error 2^-18, exactly 1 at 0, 0 far below, NaN for NaN. Polynomial: a least-maximum fit
/// on |f| <= 1/2.
FLUVIAL_INLINE __m512 Exp2(__m512 x) {
  // The order of operands hands NaN on.
  x = _mm512_max_ps(_mm512_set1_ps(-1000), x);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 y = _mm512_fmadd_ps(f, _mm512_set1_ps(0.00958285309f), _mm512_set1_ps(0.0559064246f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.240240986f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.693124193f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1));
  return _mm512_scalef_ps(y, n);
}

__mmask32 MaskOf(int64_t left) {
  return left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : static_cast<__mmask32>((uint64_t{1} << left) - 1);
}

/// k[pair][key] from rows of d elements; keys >= nk and an odd last dimension are zero.
void PackKeys(const uint16_t* rows, int64_t stride, int64_t nk, int64_t d, uint32_t* to) {
  const int64_t pairs = (d + 1) / 2;
  for (int64_t j = 0; j < nk; j += 16) {
    for (int64_t c = 0; c < pairs; c += 16) {
      const __mmask32 mask = MaskOf(d - 2 * c);
      __m512 row[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        // Rows that are not there: an empty mask reads nothing.
        const bool there = j + r < nk;
        row[r] = _mm512_castsi512_ps(
            _mm512_maskz_loadu_epi16(there ? mask : 0, there ? rows + (j + r) * stride + 2 * c : rows));
      }
      Transpose16(row);
      const int64_t count = std::min<int64_t>(16, pairs - c);
      for (int64_t i = 0; i < count; ++i)
        _mm512_store_ps(reinterpret_cast<float*>(to + (c + i) * kBf16Keys + j), row[i]);
    }
  }
}

/// v[key pair][c] from rows of d elements; missing keys and columns are zero.
void PackValues(const uint16_t* rows, int64_t stride, int64_t nk, int64_t d, uint32_t* to) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                       5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const int64_t padded = Bf16Scratch::Padded(d);
  for (int64_t j = 0; j < nk; j += 2) {
    const uint16_t* a = rows + j * stride;
    const bool two = j + 1 < nk;
    const uint16_t* b = two ? a + stride : a;
    uint32_t* row = to + j / 2 * padded;
    for (int64_t c = 0; c < d; c += 32) {
      const __mmask32 mask = MaskOf(d - c);
      const __m512i x = _mm512_maskz_loadu_epi16(mask, a + c), y = _mm512_maskz_loadu_epi16(two ? mask : 0, b + c);
      _mm512_store_si512(row + c, _mm512_permutex2var_epi16(x, low, y));
      if (c + 16 < padded) _mm512_store_si512(row + c + 16, _mm512_permutex2var_epi16(x, high, y));
    }
  }
}

/// Fetches the rows of the next head into L2, a few at each step of the computation.
class Ahead {
 public:
  explicit Ahead(const Block& b) : b_(b), left_(b.next_head ? std::min(b.queries, b.keys) : 0) {}
  void Step() {
    for (int i = 0; i < 3 && left_ > 0; ++i, ++at_, --left_) {
      Row(b_.q, at_ * b_.q_token);
      Row(b_.k, at_ * b_.k_token);
      Row(b_.v, at_ * b_.v_token);
    }
  }

 private:
  void Row(const void* base, int64_t offset) const {
    const char* row = reinterpret_cast<const char*>(static_cast<const uint16_t*>(base) + offset + b_.d);
    const int64_t bytes = b_.d * 2;
    for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(row + i, _MM_HINT_T1);
    _mm_prefetch(row + bytes - 1, _MM_HINT_T1);
  }
  const Block& b_;
  int64_t left_, at_ = 0;
};

/// Running softmax of rows against the tile that is in scratch.k.
struct RowState {
  float* m;
  float* l;
  float* alpha;
  uint32_t* p;
};

/// Scores and probabilities of R rows against NV vectors of keys; keys beyond `last` of the last vector are not there.
template <int R, int NV>
__attribute__((noinline)) void Probabilities(const uint32_t* q, int64_t pairs, const uint32_t* k, __m512 scale,
                                             __mmask16 last, const RowState& to) {
  __m512 acc[R][NV];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  for (int64_t c = 0; c < pairs; ++c) {
    __m512i key[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) key[v] = _mm512_load_si512(k + c * kBf16Keys + 16 * v);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(q[r * pairs + c]));
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[r][v] = Dot(acc[r][v], x, key[v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[r][v] = _mm512_mul_ps(acc[r][v], scale);
    acc[r][NV - 1] = _mm512_mask_blend_ps(last, _mm512_set1_ps(kMinusInfinity), acc[r][NV - 1]);
    __m512 largest = acc[r][0];
#pragma GCC unroll 4
    for (int v = 1; v < NV; ++v) largest = _mm512_max_ps(largest, acc[r][v]);
    float m = to.m[r];
    float alpha = 1;
    __m512 l = _mm512_load_ps(to.l + 16 * r);
    if (__builtin_expect(_mm512_cmp_ps_mask(largest, _mm512_set1_ps(m + kSlack), _CMP_GT_OQ) != 0, 0)) {
      const float next = _mm512_reduce_max_ps(largest);
      // The first tile has nothing to rescale.
      alpha = m == kMinusInfinity ? 0 : std::exp2(m - next);
      l = _mm512_mul_ps(l, _mm512_set1_ps(alpha));
      to.m[r] = m = next;
    }
    to.alpha[r] = alpha;
    const __m512 vm = _mm512_set1_ps(m);
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[r][v] = Exp2(_mm512_sub_ps(acc[r][v], vm));
    __m512 sum = acc[r][0];
#pragma GCC unroll 4
    for (int v = 1; v < NV; ++v) sum = _mm512_add_ps(sum, acc[r][v]);
    _mm512_store_ps(to.l + 16 * r, _mm512_add_ps(l, sum));
    uint32_t* p = to.p + r * (kBf16Keys / 2);
#pragma GCC unroll 2
    for (int v = 0; v < NV; v += 2) {
      const __m512 upper = v + 1 < NV ? acc[r][v + 1 < NV ? v + 1 : v] : _mm512_setzero_ps();
      _mm512_store_si512(p + 8 * v, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, acc[r][v])));
    }
  }
}

template <int NV>
void AllProbabilities(const Block& b, const Bf16Scratch& w, int64_t row, int64_t rows, __m512 scale, __mmask16 last,
                      Ahead& ahead) {
  const int64_t pairs = (b.d + 1) / 2;
  int64_t r = row;
  const int64_t end = row + rows;
  auto run = [&](auto kernel, int64_t step) {
    for (; r + step <= end; r += step) {
      ahead.Step();
      kernel(w.q + r * pairs, pairs, w.k, scale, last,
             RowState{w.m + r, w.l + 16 * r, w.alpha + r, w.p + r * (kBf16Keys / 2)});
    }
  };
  run(Probabilities<6, NV>, 6);
  run(Probabilities<4, NV>, 4);
  run(Probabilities<2, NV>, 2);
  run(Probabilities<1, NV>, 1);
}

/// acc[r] = acc[r] * alpha[r] + sum over `steps` pairs of keys, R rows and NV vectors of columns.
template <int R, int NV>
__attribute__((noinline)) void Accumulate(const uint32_t* p, const float* alpha, int64_t steps, const uint32_t* v,
                                          int64_t padded, float* acc) {
  __m512 sum[R][NV];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const __m512 a = _mm512_set1_ps(alpha[r]);
#pragma GCC unroll 5
    for (int n = 0; n < NV; ++n) sum[r][n] = _mm512_mul_ps(_mm512_load_ps(acc + r * padded + 16 * n), a);
  }
  for (int64_t j = 0; j < steps; ++j) {
    __m512i value[NV];
#pragma GCC unroll 5
    for (int n = 0; n < NV; ++n) value[n] = _mm512_load_si512(v + j * padded + 16 * n);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(p[r * (kBf16Keys / 2) + j]));
#pragma GCC unroll 5
      for (int n = 0; n < NV; ++n) sum[r][n] = Dot(sum[r][n], x, value[n]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 5
    for (int n = 0; n < NV; ++n) _mm512_store_ps(acc + r * padded + 16 * n, sum[r][n]);
  }
}

template <int NV>
void AccumulateColumns(const Bf16Scratch& w, int64_t row, int64_t rows, int64_t steps, int64_t column, int64_t padded,
                       Ahead& ahead) {
  constexpr int kRows = NV == 4 ? 6 : NV == 5 ? 4 : 8;  // 16 to 24 of 32 registers are sums
  int64_t r = row;
  const int64_t end = row + rows;
  auto run = [&](auto kernel, int64_t step) {
    for (; r + step <= end; r += step) {
      ahead.Step();
      kernel(w.p + r * (kBf16Keys / 2), w.alpha + r, steps, w.v + column, padded, w.acc + r * padded + column);
    }
  };
  run(Accumulate<kRows, NV>, kRows);
  run(Accumulate<4, NV>, 4);
  run(Accumulate<2, NV>, 2);
  run(Accumulate<1, NV>, 1);
}

/// One tile of keys for all rows of the block, in groups of rows whose scratch stays in L1.
void Tile(const Block& b, int64_t k0, const Bf16Scratch& w, Ahead& ahead) {
  constexpr int64_t kGroup = 48;
  const int64_t nk = std::min(kBf16Keys, b.keys - k0), padded = Bf16Scratch::Padded(b.d);
  PackKeys(static_cast<const uint16_t*>(b.k) + k0 * b.k_token, b.k_token, nk, b.d, w.k);
  PackValues(static_cast<const uint16_t*>(b.v) + k0 * b.v_token, b.v_token, nk, b.d, w.v);
  const __m512 scale = _mm512_set1_ps(b.scale * kLog2E);
  const auto last = static_cast<__mmask16>(0xffffu >> (15 - (nk - 1) % 16));
  for (int64_t row = 0; row < b.queries; row += kGroup) {
    const int64_t rows = std::min(kGroup, b.queries - row);
    switch ((nk + 15) / 16) {
      case 1:
        AllProbabilities<1>(b, w, row, rows, scale, last, ahead);
        break;
      case 2:
        AllProbabilities<2>(b, w, row, rows, scale, last, ahead);
        break;
      case 3:
        AllProbabilities<3>(b, w, row, rows, scale, last, ahead);
        break;
      default:
        AllProbabilities<4>(b, w, row, rows, scale, last, ahead);
    }
    const int64_t steps = (nk + 1) / 2;
    int64_t c = 0;
    while (c < padded) {
      const int64_t vectors = (padded - c) / 16;
      switch (vectors == 5 ? 5 : vectors >= 4 ? 4 : vectors) {
        case 5:
          AccumulateColumns<5>(w, row, rows, steps, c, padded, ahead);
          c += 80;
          break;
        case 4:
          AccumulateColumns<4>(w, row, rows, steps, c, padded, ahead);
          c += 64;
          break;
        case 3:
          AccumulateColumns<3>(w, row, rows, steps, c, padded, ahead);
          c += 48;
          break;
        case 2:
          AccumulateColumns<2>(w, row, rows, steps, c, padded, ahead);
          c += 32;
          break;
        default:
          AccumulateColumns<1>(w, row, rows, steps, c, padded, ahead);
          c += 16;
      }
    }
  }
}

}  // namespace

void AttendBlockBf16(const Block& b, const Bf16Scratch& w) {
  const int64_t pairs = (b.d + 1) / 2, padded = Bf16Scratch::Padded(b.d);
  for (int64_t r = 0; r < b.queries; ++r) {
    const uint16_t* from = static_cast<const uint16_t*>(b.q) + r * b.q_token;
    w.q[r * pairs + pairs - 1] = 0;
    std::memcpy(w.q + r * pairs, from, static_cast<size_t>(b.d) * 2);
  }
  std::fill_n(w.acc, b.queries * padded, 0.0f);
  std::fill_n(w.l, b.queries * 16, 0.0f);
  std::fill_n(w.m, b.queries, kMinusInfinity);
  Ahead ahead(b);
  for (int64_t k0 = 0; k0 < b.keys; k0 += kBf16Keys) Tile(b, k0, w, ahead);
  for (int64_t r = 0; r < b.queries; ++r) {
    const float l = _mm512_reduce_add_ps(_mm512_load_ps(w.l + 16 * r));
    const __m512 divisor = _mm512_set1_ps(l);
    uint16_t* to = static_cast<uint16_t*>(b.out) + r * b.out_token;
    for (int64_t c = 0; c < b.d; c += 16) {
      const __m512 x = _mm512_div_ps(_mm512_load_ps(w.acc + r * padded + c), divisor);
      const auto mask = static_cast<__mmask16>(b.d - c >= 16 ? 0xffffu : (1u << (b.d - c)) - 1);
      _mm256_mask_storeu_epi16(to + c, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    }
    if (b.lse != nullptr) b.lse[r * b.lse_token] = w.m[r] * 0.69314718f + std::log(l);
  }
}

#else  // never called: the body refuses in such a build

void AttendBlockBf16(const Block&, const Bf16Scratch&) {}

#endif

}  // namespace fluvial::ops::vision_attention
