// SPDX-License-Identifier: Apache-2.0
#include "engine/page_pool.h"

#include <utility>

#include "base/check.h"

namespace fluvial::engine {

PagePool::PagePool(int32_t pages, std::function<void(int32_t)> on_free)
    : free_(0, pages),
      refs_(static_cast<size_t>(pages), 0),
      users_(static_cast<size_t>(pages), 0),
      on_free_(std::move(on_free)) {}

int32_t PagePool::Take() {
  const int32_t page = free_.Take();
  if (page >= 0) Use(page);
  return page;
}

void PagePool::Use(int32_t page) {
  Hold(page);
  if (users_[static_cast<size_t>(page)]++ == 0) ++used_;
}

void PagePool::Unuse(int32_t page) {
  FLUVIAL_CHECK(users_[static_cast<size_t>(page)] > 0);
  if (--users_[static_cast<size_t>(page)] == 0) --used_;
  Unhold(page);
}

void PagePool::Hold(int32_t page) { ++refs_[static_cast<size_t>(page)]; }

void PagePool::Unhold(int32_t page) {
  FLUVIAL_CHECK(refs_[static_cast<size_t>(page)] > 0);
  if (--refs_[static_cast<size_t>(page)] > 0) return;
  free_.Give(page);
  if (on_free_) on_free_(page);
}

}  // namespace fluvial::engine
