// SPDX-License-Identifier: Apache-2.0
// Internal to this room: where a tile's keys and values lie in the pages.
#if defined(FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_
#undef FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_
#else
#define FLUVIAL_OPS_PAGED_ATTENTION_CPU_TILES_INL_H_
#endif

#include <algorithm>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ops/paged_attention/cpu_simd.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::paged_attention::internal {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE const T* KvRow(const PageView& view, const Block& b, int64_t position) {
  return static_cast<const T*>(view.data) + int64_t{b.pages[position / b.page_size]} * view.page_stride +
         position % b.page_size * view.row_stride;
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
