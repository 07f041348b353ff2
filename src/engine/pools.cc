// SPDX-License-Identifier: Apache-2.0
#include "engine/pools.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/check.h"

namespace fluvial::engine {

FreeList::FreeList(int32_t first, int32_t count) {
  heap_.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) heap_.push_back(first + i);  // ascending: already a min-heap
}

int32_t FreeList::Take() {
  if (heap_.empty()) return -1;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const int32_t number = heap_.back();
  heap_.pop_back();
  return number;
}

void FreeList::Give(int32_t number) {
  heap_.push_back(number);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

Status CachePool::Allocate(size_t bytes, const DeviceInfo& device, void** out) {
  FLUVIAL_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(device.kind, bytes, device.index));
  *out = buffer.data();
  buffers_.push_back(std::move(buffer));
  return Status::Ok();
}

Result<CachePool> CachePool::Create(const models::CacheSpec& spec, int32_t pages, int32_t page_size, int32_t sequences,
                                    const DeviceInfo& device) {
  CachePool pool;
  pool.page_size_ = page_size;
  pool.total_pages_ = pages;
  pool.pages_ = FreeList(0, pages);
  pool.slots_ = FreeList(1, sequences);
  const int64_t slots = int64_t{sequences} + 1;
  for (const models::LayerCacheSpec& layer : spec.layers) {
    models::LayerCache cache;
    if (layer.linear()) {
      cache.conv = TensorView(nullptr, spec.conv, {slots, layer.conv_width - 1, layer.conv_channels});
      cache.recurrent = TensorView(nullptr, spec.recurrent, {slots, layer.value_heads, layer.v, layer.k});
    } else {
      cache.k_pages = TensorView(nullptr, spec.kv, {pages, layer.kv_heads, page_size, layer.d_qk});
      if (layer.d_v > 0) cache.v_pages = TensorView(nullptr, spec.kv, {pages, layer.kv_heads, page_size, layer.d_v});
    }
    for (TensorView* view : {&cache.conv, &cache.recurrent, &cache.k_pages, &cache.v_pages}) {
      if (view->rank == 0) continue;
      const size_t bytes = static_cast<size_t>(view->elements()) * SizeOf(view->dtype);
      FLUVIAL_RETURN_IF_ERROR(pool.Allocate(bytes, device, &view->data));
      (layer.linear() ? pool.state_bytes_ : pool.kv_bytes_) += bytes;
    }
    pool.caches_.push_back(cache);
  }
  return pool;
}

void CachePool::FillSlot(int32_t slot, int byte) {
  FLUVIAL_CHECK(slot > 0);
  for (const models::LayerCache& cache : caches_) {
    for (const TensorView* view : {&cache.conv, &cache.recurrent}) {
      if (!view->defined()) continue;
      const size_t pitch = static_cast<size_t>(view->stride(0)) * SizeOf(view->dtype);
      std::memset(static_cast<char*>(view->data) + static_cast<size_t>(slot) * pitch, byte, pitch);
    }
  }
}

void CachePool::ClearSlot(int32_t slot) { FillSlot(slot, 0); }
// All bits set is a NaN in every floating type.
void CachePool::PoisonSlot(int32_t slot) { FillSlot(slot, 0xff); }

}  // namespace fluvial::engine
