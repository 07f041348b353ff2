// SPDX-License-Identifier: Apache-2.0
// FreeList: which numbers of a range are free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace fluvial::engine {

/// Hands out first..first+count-1; the lowest free number first, so that memory is touched in order.
class FreeList {
 public:
  FreeList() = default;
  FreeList(int32_t first, int32_t count) {
    heap_.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) heap_.push_back(first + i);  // ascending: already a min-heap
  }

  int32_t free() const { return static_cast<int32_t>(heap_.size()); }

  /// -1 when none is free.
  int32_t Take() {
    if (heap_.empty()) return -1;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const int32_t number = heap_.back();
    heap_.pop_back();
    return number;
  }

  /// Danger: `number` must have come from Take and not have been given back since.
  void Give(int32_t number) {
    heap_.push_back(number);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

 private:
  std::vector<int32_t> heap_;  // min-heap
};

}  // namespace fluvial::engine
