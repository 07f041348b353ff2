// SPDX-License-Identifier: Apache-2.0
// PagePool: reference counts of key/value pages. A page belongs to every sequence and every cached prefix whose tokens
// it holds; it is written only while it has one owner (the planner copies it otherwise).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/free_list.h"

namespace fluvial::engine {

class PagePool {
 public:
  /// `on_free` is called for every page that nobody owns any more.
  PagePool(int32_t pages, std::function<void(int32_t)> on_free);

  int32_t total() const { return static_cast<int32_t>(refs_.size()); }
  int32_t free() const { return free_.free(); }
  /// Pages of running sequences, and pages that only the cache (or a copy under way) holds.
  int32_t used() const { return used_; }
  int32_t cached() const { return total() - free() - used_; }
  int32_t refs(int32_t page) const { return refs_[static_cast<size_t>(page)]; }
  int32_t users(int32_t page) const { return users_[static_cast<size_t>(page)]; }

  /// A free page for one sequence; -1 when there is none.
  int32_t Take();
  /// One more sequence, one sequence less.
  void Use(int32_t page);
  void Unuse(int32_t page);
  /// One more owner that is no sequence, one less.
  void Hold(int32_t page);
  void Unhold(int32_t page);

 private:
  FreeList free_;
  std::vector<int32_t> refs_;   // all owners
  std::vector<int32_t> users_;  // sequences among them
  int32_t used_ = 0;
  std::function<void(int32_t)> on_free_;
};

}  // namespace fluvial::engine
