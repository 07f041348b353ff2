// SPDX-License-Identifier: Apache-2.0
// Streaming softmax attention over tiles of 64 keys, for every Highway target: packing of keys and values, scores, the
// running softmax, accumulation. Which rows and keys meet is the operator's business.
//
// Arithmetic of one row, the same whatever the row's company:
//   score  s_j = scale * (fma chain over the head dimension in rising order)
//   tile   m' = max(m, max_j s_j); p_j = exp(s_j - m'); l = l * exp(m - m') + (lane sums of p);
//          acc = acc * exp(m - m'), then fma chain over the tile's keys in rising order
#if defined(FLUVIAL_OPS_COMMON_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_COMMON_ATTENTION_TILES_INL_H_
#undef FLUVIAL_OPS_COMMON_ATTENTION_TILES_INL_H_
#else
#define FLUVIAL_OPS_COMMON_ATTENTION_TILES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "ops/common/attention_tiles.h"
#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::attention {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Columns of a panel. Packed tiles are stored panel by panel, so that the inner loops read memory in order.
constexpr int64_t kPanel = 32;
static_assert(hn::MaxLanes(D()) <= 16, "panels and padding are made for vectors of at most 16 lanes");

#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
/// Stores the 128-bit blocks of v (fp32) at to, to + step, ...
template <class DV>
HWY_INLINE void StoreBlocks(DV d, hn::Vec<DV> v, float* to, int64_t step) {
  if constexpr (hn::MaxLanes(DV()) <= 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<DV> half;
    StoreBlocks(half, hn::LowerHalf(half, v), to, step);
    StoreBlocks(half, hn::UpperHalf(half, v), to + static_cast<int64_t>(hn::MaxLanes(half)) / 4 * step, step);
  }
}
#endif

/// Packs the tile's keys transposed: unit c of key j goes to kt[panel j / kPanel][c][j % kPanel], zero for j >= nk;
/// row_of(j) points at key j. A unit is one fp32 number, or for bf16 two neighbouring dimensions in one 32-bit word:
/// half the shuffles and half the cache.
template <class T>
struct Units {
  static constexpr bool kPairs = std::is_same_v<T, BFloat16>;
  static int64_t Count(int64_t d_qk) { return kPairs ? (d_qk + 1) / 2 : d_qk; }
};

HWY_INLINE float LoadUnit(const float* row, int64_t c, int64_t) { return row[c]; }
HWY_INLINE float LoadUnit(const Float16* row, int64_t c, int64_t) { return ToFloat(row[c]); }
HWY_INLINE float LoadUnit(const BFloat16* row, int64_t c, int64_t d_qk) {
  const uint32_t high = 2 * c + 1 < d_qk ? row[2 * c + 1].bits : 0u;
  return std::bit_cast<float>(high << 16 | row[2 * c].bits);
}

HWY_INLINE V LoadUnits(D d, const float* row, int64_t c) { return hn::LoadU(d, row + c); }
HWY_INLINE V LoadUnits(D d, const Float16* row, int64_t c) { return fs::LoadF32(d, row + c); }
HWY_INLINE V LoadUnits(D d, const BFloat16* row, int64_t c) {
  const hn::RebindToUnsigned<D> du;
  // Little-endian: the even dimension is the low half.
  return hn::BitCast(d, hn::LoadU(du, reinterpret_cast<const uint32_t*>(row + 2 * c)));
}

template <class T, class Row>
void PackKeys(const Row& row_of, int64_t d_qk, int64_t nk, float* HWY_RESTRICT kt) {
  const int64_t units = Units<T>::Count(d_qk);
  auto at = [&](int64_t c, int64_t j) { return kt + j / kPanel * units * kPanel + c * kPanel + j % kPanel; };
  int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  const D d;
  const hn::Repartition<uint64_t, D> d64;
  constexpr int64_t kLanes = hn::MaxLanes(D());
  const int64_t whole = Units<T>::kPairs ? d_qk / 2 : d_qk;
  for (; j + 4 <= nk; j += 4) {
    const T* row[4];
    for (int r = 0; r < 4; ++r) row[r] = row_of(j + r);
    int64_t c = 0;
    for (; c + kLanes <= whole; c += kLanes) {
      const V a0 = LoadUnits(d, row[0], c), a1 = LoadUnits(d, row[1], c);
      const V a2 = LoadUnits(d, row[2], c), a3 = LoadUnits(d, row[3], c);
      // 4x4 transposes inside each 128-bit block: block i of the e-th result holds unit c + 4 i + e of the four keys.
      const auto l01 = hn::BitCast(d64, hn::InterleaveLower(d, a0, a1));
      const auto u01 = hn::BitCast(d64, hn::InterleaveUpper(d, a0, a1));
      const auto l23 = hn::BitCast(d64, hn::InterleaveLower(d, a2, a3));
      const auto u23 = hn::BitCast(d64, hn::InterleaveUpper(d, a2, a3));
      float* to = at(c, j);
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(d64, l01, l23)), to, 4 * kPanel);
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(d64, l01, l23)), to + kPanel, 4 * kPanel);
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveLower(d64, u01, u23)), to + 2 * kPanel, 4 * kPanel);
      StoreBlocks(d, hn::BitCast(d, hn::InterleaveUpper(d64, u01, u23)), to + 3 * kPanel, 4 * kPanel);
    }
    for (; c < units; ++c) {
      for (int r = 0; r < 4; ++r) *at(c, j + r) = LoadUnit(row[r], c, d_qk);
    }
  }
#endif
  for (; j < nk; ++j) {
    const T* row = row_of(j);
    for (int64_t c = 0; c < units; ++c) *at(c, j) = LoadUnit(row, c, d_qk);
  }
  for (; j < kTile; ++j) {
    for (int64_t c = 0; c < units; ++c) *at(c, j) = 0.0f;
  }
}

/// Column c of value j in fp32, zero beyond d_v, at v[panel c / kPanel][j][c % kPanel].
HWY_INLINE int64_t PackedValue(int64_t j, int64_t c) { return c / kPanel * kTile * kPanel + j * kPanel + c % kPanel; }

/// Packs the tile's values in fp32; row_of(j) points at value j. Rows >= nk are left as they are.
template <class T, class Row>
void PackValues(const Row& row_of, int64_t d_v, int64_t nk, float* HWY_RESTRICT v) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), padded = PaddedDim(d_v);
  for (int64_t j = 0; j < nk; ++j) {
    const T* row = row_of(j);
    int64_t c = 0;
    for (; c + lanes <= d_v; c += lanes) hn::StoreU(fs::LoadF32(d, row + c), d, v + PackedValue(j, c));
    if (c < d_v) {
      hn::StoreU(fs::LoadF32Tail(d, row + c, static_cast<size_t>(d_v - c)), d, v + PackedValue(j, c));
      c += lanes;
    }
    for (; c < padded; c += lanes) hn::StoreU(hn::Zero(d), d, v + PackedValue(j, c));
  }
}

// Rows in flight of the two multiplications: 32 vector registers carry 8 rows x 2 vectors, 16 registers half of it.
constexpr int kFastRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

/// s[r][j] = q_r . k_j for R rows and all keys of the tile, NV vectors of keys at a time. The chain over the head
/// dimension is the same for both kinds of units.
template <bool kPairs, int R, int NV>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT kt, int64_t d_qk,
                          float* HWY_RESTRICT s) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t units = kPairs ? (d_qk + 1) / 2 : d_qk;
  for (int64_t j = 0; j < kTile; j += NV * lanes) {
    const float* from[NV];
    for (int n = 0; n < NV; ++n) {
      const int64_t at = j + n * lanes;
      from[n] = kt + at / kPanel * units * kPanel + at % kPanel;
    }
    V acc[R][NV];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::Zero(d);
    }
    auto step = [&](int64_t c, const V(&k)[NV]) HWY_ATTR {
      for (int r = 0; r < R; ++r) {
        const V x = hn::Set(d, q[r * d_qk + c]);
        for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(x, k[n], acc[r][n]);
      }
    };
    if constexpr (kPairs) {
      const auto high = hn::Set(du, 0xffff0000u);
      for (int64_t c = 0; c < d_qk; c += 2) {
        V even[NV], odd[NV];
        for (int n = 0; n < NV; ++n) {
          const auto pair = hn::BitCast(du, hn::LoadU(d, from[n] + c / 2 * kPanel));
          even[n] = hn::BitCast(d, hn::ShiftLeft<16>(pair));
          odd[n] = hn::BitCast(d, hn::And(pair, high));
        }
        step(c, even);
        if (c + 1 < d_qk) step(c + 1, odd);
      }
    } else {
      for (int64_t c = 0; c < d_qk; ++c) {
        V k[NV];
        for (int n = 0; n < NV; ++n) k[n] = hn::LoadU(d, from[n] + c * kPanel);
        step(c, k);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < NV; ++n) hn::StoreU(acc[r][n], d, s + r * kTile + j + n * lanes);
    }
  }
}

template <bool kPairs>
void Scores(const float* q, const float* kt, int64_t d_qk, int64_t rows, float* s) {
  int64_t r = 0;
  auto step = [&](auto count, auto vectors) HWY_ATTR {
    constexpr int R = decltype(count)::value, NV = decltype(vectors)::value;
    for (; r + R <= rows; r += R) ScoreTile<kPairs, R, NV>(q + r * d_qk, kt, d_qk, s + r * kTile);
  };
  step(std::integral_constant<int, kFastRows>(), std::integral_constant<int, 2>());
  step(std::integral_constant<int, kFastRows / 2>(), std::integral_constant<int, 4>());
  step(std::integral_constant<int, 1>(), std::integral_constant<int, 4>());
}

/// One tile of the running softmax: s becomes p; returns exp(m_old - m_new). Lanes >= valid count as not there.
HWY_INLINE float SoftmaxTile(float* HWY_RESTRICT s, int64_t valid, float scale, float* m, float* l) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V vscale = hn::Set(d, scale);
  V largest = hn::Set(d, kMinusInfinity);
  for (int64_t j = 0; j < kTile; j += lanes) {
    V x = hn::Mul(hn::LoadU(d, s + j), vscale);
    if (j + lanes > valid) {
      const size_t n = static_cast<size_t>(std::max<int64_t>(valid - j, 0));
      x = hn::IfThenElse(hn::FirstN(d, n), x, hn::Set(d, kMinusInfinity));
    }
    largest = hn::Max(largest, x);
    hn::StoreU(x, d, s + j);
  }
  const float m_new = std::max(*m, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const V vm = hn::Set(d, m_new);
  V sum = hn::Zero(d);
  for (int64_t j = 0; j < kTile; j += lanes) {
    const V p = fs::Exp(d, hn::Sub(hn::LoadU(d, s + j), vm));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, s + j);
  }
  const float alpha = hn::GetLane(fs::Exp(d, hn::Set(d, *m - m_new)));
  *l = *l * alpha + hn::GetLane(hn::SumOfLanes(d, sum));
  *m = m_new;
  return alpha;
}

/// acc[r] = acc[r] * alpha[r] + sum over j < nk of p[r][j] * v[j], NV vectors of R rows. value(j, c) points at column
/// c.
template <int R, int NV, class Value>
HWY_INLINE void AccumulateVectors(const float* HWY_RESTRICT p, const float* alpha, int64_t nk, const Value& value,
                                  int64_t c, int64_t padded, float* HWY_RESTRICT acc) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[R][NV];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) {
      sum[r][n] = hn::Mul(hn::LoadU(d, acc + r * padded + c + n * lanes), hn::Set(d, alpha[r]));
    }
  }
  for (int64_t j = 0; j < nk; ++j) {
    V v[NV];
    for (int n = 0; n < NV; ++n) v[n] = fs::LoadF32(d, value(j, c + n * lanes));
    for (int r = 0; r < R; ++r) {
      const V x = hn::Set(d, p[r * kTile + j]);
      for (int n = 0; n < NV; ++n) sum[r][n] = hn::MulAdd(x, v[n], sum[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < NV; ++n) hn::StoreU(sum[r][n], d, acc + r * padded + c + n * lanes);
  }
}

template <class Value>
void Accumulate(const float* p, const float* alpha, int64_t rows, int64_t nk, const Value& value, int64_t width,
                int64_t padded, float* acc) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t r = 0;
  auto step = [&](auto count, auto vectors) HWY_ATTR {
    constexpr int R = decltype(count)::value, NV = decltype(vectors)::value;
    for (; r + R <= rows; r += R) {
      const float* pr = p + r * kTile;
      float* to = acc + r * padded;
      int64_t c = 0;
      for (; c + NV * lanes <= width; c += NV * lanes) {
        AccumulateVectors<R, NV>(pr, alpha + r, nk, value, c, padded, to);
      }
      for (; c < width; c += lanes) AccumulateVectors<R, 1>(pr, alpha + r, nk, value, c, padded, to);
    }
  };
  step(std::integral_constant<int, kFastRows>(), std::integral_constant<int, 2>());
  step(std::integral_constant<int, kFastRows / 2>(), std::integral_constant<int, 4>());
  step(std::integral_constant<int, 1>(), std::integral_constant<int, 4>());
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::attention
HWY_AFTER_NAMESPACE();

#endif
