// SPDX-License-Identifier: Apache-2.0
// Internal to this room: how a tile of keys and values comes from the pages into the layout of the inner loops.
#if defined(FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_
#undef FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_
#else
#define FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"
#include "ops/paged_attention/cpu_simd.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::paged_attention::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Columns of a panel. Packed tiles are stored panel by panel, so that the inner loops read memory in order.
constexpr int64_t kPanel = 32;
static_assert(hn::MaxLanes(D()) <= 16, "panels and padding are made for vectors of at most 16 lanes");

template <class T>
HWY_INLINE const T* KvRow(const PageView& view, const Block& b, int64_t position) {
  return static_cast<const T*>(view.data) + int64_t{b.pages[position / b.page_size]} * view.page_stride +
         position % b.page_size * view.row_stride;
}

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

/// Packs the tile's keys transposed: unit c of key j goes to kt[panel j / kPanel][c][j % kPanel], zero for j >= nk. A
/// unit is one fp32 number, or for bf16 two neighbouring dimensions in one 32-bit word: half the shuffles and half the
/// cache.
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

template <class T>
void PackKeys(const Block& b, int64_t k0, int64_t nk, float* HWY_RESTRICT kt) {
  const int64_t units = Units<T>::Count(b.d_qk);
  auto at = [&](int64_t c, int64_t j) { return kt + j / kPanel * units * kPanel + c * kPanel + j % kPanel; };
  int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  const D d;
  const hn::Repartition<uint64_t, D> d64;
  constexpr int64_t kLanes = hn::MaxLanes(D());
  const int64_t whole = Units<T>::kPairs ? b.d_qk / 2 : b.d_qk;
  for (; j + 4 <= nk; j += 4) {
    const T* row[4];
    for (int r = 0; r < 4; ++r) row[r] = KvRow<T>(b.k, b, k0 + j + r);
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
      for (int r = 0; r < 4; ++r) *at(c, j + r) = LoadUnit(row[r], c, b.d_qk);
    }
  }
#endif
  for (; j < nk; ++j) {
    const T* row = KvRow<T>(b.k, b, k0 + j);
    for (int64_t c = 0; c < units; ++c) *at(c, j) = LoadUnit(row, c, b.d_qk);
  }
  for (; j < kTile; ++j) {
    for (int64_t c = 0; c < units; ++c) *at(c, j) = 0.0f;
  }
}

/// Column c of value j in fp32, zero beyond d_v, at v[panel c / kPanel][j][c % kPanel].
HWY_INLINE int64_t PackedValue(int64_t j, int64_t c) { return c / kPanel * kTile * kPanel + j * kPanel + c % kPanel; }

template <class T>
void PackValues(const Block& b, int64_t k0, int64_t nk, float* HWY_RESTRICT v) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), padded = PaddedDim(b.d_v);
  for (int64_t j = 0; j < nk; ++j) {
    const T* row = KvRow<T>(b.v, b, k0 + j);
    int64_t c = 0;
    for (; c + lanes <= b.d_v; c += lanes) hn::StoreU(fs::LoadF32(d, row + c), d, v + PackedValue(j, c));
    if (c < b.d_v) {
      hn::StoreU(fs::LoadF32Tail(d, row + c, static_cast<size_t>(b.d_v - c)), d, v + PackedValue(j, c));
      c += lanes;
    }
    for (; c < padded; c += lanes) hn::StoreU(hn::Zero(d), d, v + PackedValue(j, c));
  }
}

/// Asks for the rows of a tile ahead of their use: pages are too short for the hardware to see a stream.
template <class T>
void PrefetchTile(const PageView& view, const Block& b, int64_t k0, int64_t width) {
  const int64_t end = std::min(k0 + kTile, b.keys());
  for (int64_t j = k0; j < end; ++j) {
    const char* row = reinterpret_cast<const char*>(KvRow<T>(view, b, j));
    const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(row + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::paged_attention::internal
HWY_AFTER_NAMESPACE();

#endif
