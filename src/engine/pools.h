// SPDX-License-Identifier: Apache-2.0
// CachePool: the memory that sequences borrow - key/value pages and state slots. Which of it is free is the planner's
// business.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "fluvial/status.h"
#include "models/model.h"

namespace fluvial::engine {

class CachePool {
 public:
  /// Shapes of all layers' caches, without memory. `slots` includes slot 0, which never holds a sequence.
  static std::vector<models::LayerCache> Layout(const models::CacheSpec& spec, int32_t pages, int32_t page_size,
                                                int32_t slots);

  /// kResource when the memory is not there.
  static Result<CachePool> Create(const models::CacheSpec& spec, int32_t pages, int32_t page_size, int32_t slots,
                                  const DeviceInfo& device);

  const std::vector<models::LayerCache>& caches() const { return caches_; }
  int32_t total_pages() const { return total_pages_; }
  int32_t page_size() const { return page_size_; }
  uint64_t kv_bytes() const { return kv_bytes_; }
  uint64_t state_bytes() const { return state_bytes_; }

  /// Copies a page in all layers, in stream order.
  Status CopyPage(Stream& stream, int32_t from, int32_t to);

  /// Overwrites a slot's states in all layers: zeros, or NaN so that a reader of a freed slot is found out.
  void ClearSlot(int32_t slot);
  void PoisonSlot(int32_t slot);
  void PoisonPage(int32_t page);

 private:
  void FillSlot(int32_t slot, int byte);

  std::vector<Buffer> buffers_;
  std::vector<models::LayerCache> caches_;
  DeviceKind kind_ = DeviceKind::kCpu;
  int32_t total_pages_ = 0;
  int32_t page_size_ = 0;
  uint64_t kv_bytes_ = 0;
  uint64_t state_bytes_ = 0;
};

}  // namespace fluvial::engine
