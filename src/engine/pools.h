// SPDX-License-Identifier: Apache-2.0
// Pools: who owns the memory that sequences borrow - key/value pages and state slots - and which of it is free.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "engine/free_list.h"
#include "fluvial/status.h"
#include "models/model.h"

namespace fluvial::engine {

/// Caches of all layers for a number of pages and slots. Slot 0 is reserved and never holds a sequence.
class CachePool {
 public:
  /// kResource when the memory is not there.
  static Result<CachePool> Create(const models::CacheSpec& spec, int32_t pages, int32_t page_size, int32_t sequences,
                                  const DeviceInfo& device);

  const std::vector<models::LayerCache>& caches() const { return caches_; }
  FreeList& pages() { return pages_; }
  FreeList& slots() { return slots_; }
  int32_t total_pages() const { return total_pages_; }
  int32_t page_size() const { return page_size_; }
  uint64_t kv_bytes() const { return kv_bytes_; }
  uint64_t state_bytes() const { return state_bytes_; }

  /// Overwrites a slot's states in all layers: zeros, or NaN so that a reader of a freed slot is found out.
  void ClearSlot(int32_t slot);
  void PoisonSlot(int32_t slot);

 private:
  Status Allocate(size_t bytes, const DeviceInfo& device, void** out);
  void FillSlot(int32_t slot, int byte);

  std::vector<Buffer> buffers_;
  std::vector<models::LayerCache> caches_;
  FreeList pages_;
  FreeList slots_;
  int32_t total_pages_ = 0;
  int32_t page_size_ = 0;
  uint64_t kv_bytes_ = 0;
  uint64_t state_bytes_ = 0;
};

}  // namespace fluvial::engine
