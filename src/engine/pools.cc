// SPDX-License-Identifier: Apache-2.0
#include "engine/pools.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace fluvial::engine {
namespace {

size_t PitchBytes(const TensorView& view) { return static_cast<size_t>(view.stride(0)) * SizeOf(view.dtype); }

char* Element(const TensorView& view, int32_t index) {
  return static_cast<char*>(view.data) + static_cast<size_t>(index) * PitchBytes(view);
}

}  // namespace

std::vector<models::LayerCache> CachePool::Layout(const models::CacheSpec& spec, int32_t pages, int32_t page_size,
                                                  int32_t slots) {
  std::vector<models::LayerCache> out;
  for (const models::LayerCacheSpec& layer : spec.layers) {
    models::LayerCache cache;
    if (layer.linear()) {
      cache.conv = TensorView(nullptr, spec.conv, {slots, layer.conv_width - 1, layer.conv_channels});
      cache.recurrent = TensorView(nullptr, spec.recurrent, {slots, layer.value_heads, layer.v, layer.k});
    } else {
      cache.k_pages = TensorView(nullptr, spec.kv, {pages, layer.kv_heads, page_size, layer.d_qk});
      if (layer.d_v > 0) cache.v_pages = TensorView(nullptr, spec.kv, {pages, layer.kv_heads, page_size, layer.d_v});
    }
    out.push_back(cache);
  }
  return out;
}

Result<CachePool> CachePool::Create(const models::CacheSpec& spec, int32_t pages, int32_t page_size, int32_t slots,
                                    const DeviceInfo& device) {
  CachePool pool;
  pool.kind_ = device.kind;
  pool.page_size_ = page_size;
  pool.total_pages_ = pages;
  pool.caches_ = Layout(spec, pages, page_size, slots);
  for (models::LayerCache& cache : pool.caches_) {
    for (TensorView* view : {&cache.conv, &cache.recurrent, &cache.k_pages, &cache.v_pages}) {
      if (view->rank == 0) continue;
      const size_t bytes = static_cast<size_t>(view->elements()) * SizeOf(view->dtype);
      FLUVIAL_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(device.kind, bytes, device.index));
      view->data = buffer.data();
      pool.buffers_.push_back(std::move(buffer));
      const bool state = view == &cache.conv || view == &cache.recurrent;
      (state ? pool.state_bytes_ : pool.kv_bytes_) += bytes;
    }
  }
  return pool;
}

Status CachePool::CopyPage(Stream& stream, int32_t from, int32_t to) {
  FLUVIAL_CHECK(from >= 0 && from < total_pages_ && to >= 0 && to < total_pages_);
  for (const models::LayerCache& cache : caches_) {
    for (const TensorView* view : {&cache.k_pages, &cache.v_pages}) {
      if (!view->defined()) continue;
      FLUVIAL_RETURN_IF_ERROR(Copy(stream, Element(*view, to), kind_, Element(*view, from), kind_, PitchBytes(*view)));
    }
  }
  return Status::Ok();
}

void CachePool::FillSlot(int32_t slot, int byte) {
  FLUVIAL_CHECK(slot > 0);
  if (kind_ != DeviceKind::kCpu) return;  // a fresh sequence reads zeros, not its slot: filling is a second safeguard
  for (const models::LayerCache& cache : caches_) {
    for (const TensorView* view : {&cache.conv, &cache.recurrent}) {
      if (view->defined()) std::memset(Element(*view, slot), byte, PitchBytes(*view));
    }
  }
}

void CachePool::ClearSlot(int32_t slot) { FillSlot(slot, 0); }
// All bits set is a NaN in every floating type.
void CachePool::PoisonSlot(int32_t slot) { FillSlot(slot, 0xff); }

void CachePool::PoisonPage(int32_t page) {
  if (kind_ != DeviceKind::kCpu) return;
  for (const models::LayerCache& cache : caches_) {
    for (const TensorView* view : {&cache.k_pages, &cache.v_pages}) {
      if (view->defined()) std::memset(Element(*view, page), 0xff, PitchBytes(*view));
    }
  }
}

}  // namespace fluvial::engine
