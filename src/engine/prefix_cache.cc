// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fluvial::engine {

PrefixCache::PrefixCache(int32_t capacity, PagePool& pages, FreeList& slots, std::function<void(int32_t)> on_slot_free)
    : capacity_(capacity), pages_(pages), slots_(slots), on_slot_free_(std::move(on_slot_free)) {}

PrefixCache::Entry* PrefixCache::Lookup(const Prefix& prefix, int64_t length) const {
  const auto [begin, end] = index_.equal_range(prefix.Hash(length));
  for (auto it = begin; it != end; ++it) {
    if (it->second->length == length && Prefix::Agree(prefix, *it->second->prefix, length)) return it->second;
  }
  return nullptr;
}

PrefixCache::Entry* PrefixCache::Find(const Prefix& prefix, int64_t longest) {
  longest = std::min(longest, prefix.size());
  for (auto it = lengths_.upper_bound(longest); it != lengths_.begin();) {
    --it;
    Entry* entry = Lookup(prefix, it->first);
    if (entry == nullptr) continue;
    proven_.splice(proven_.end(), entry->probation ? probation_ : proven_, entry->at);
    entry->probation = false;
    return entry;
  }
  return nullptr;
}

bool PrefixCache::Has(const Prefix& prefix, int64_t length) const { return Lookup(prefix, length) != nullptr; }

int64_t PrefixCache::Common(const Prefix& prefix) const {
  int64_t common = 0;
  const Prefix* last = nullptr;
  for (const List* list : {&probation_, &proven_}) {
    for (const auto& entry : *list) {
      if (entry->prefix.get() == last) continue;
      last = entry->prefix.get();
      common = std::max(common, Prefix::Common(prefix, *last));
    }
  }
  return common;
}

bool PrefixCache::MakeRoom() {
  if (slots_used() < capacity_) return true;
  for (const List* list : {&probation_, &proven_}) {
    for (const auto& entry : *list) {
      if (entry->pins > 0) continue;
      Evict(*entry);
      return true;
    }
  }
  return false;
}

PrefixCache::Entry* PrefixCache::Insert(std::shared_ptr<const Prefix> prefix, int64_t length,
                                        std::vector<int32_t> pages, int32_t slot, bool probation) {
  FLUVIAL_CHECK(slots_used() < capacity_);
  auto owned = std::make_unique<Entry>();
  Entry* entry = owned.get();
  entry->prefix = std::move(prefix);
  entry->length = length;
  entry->pages = std::move(pages);
  entry->slot = slot;
  entry->probation = probation;
  for (const int32_t page : entry->pages) pages_.Hold(page);
  List& list = probation ? probation_ : proven_;
  entry->at = list.insert(list.end(), std::move(owned));
  index_.emplace(entry->prefix->Hash(length), entry);
  ++lengths_[length];
  return entry;
}

void PrefixCache::Free(Entry& entry, List& list) {
  const int32_t slot = entry.slot;
  list.erase(entry.at);
  slots_.Give(slot);
  if (on_slot_free_) on_slot_free_(slot);
}

void PrefixCache::Evict(Entry& entry) {
  const auto [begin, end] = index_.equal_range(entry.prefix->Hash(entry.length));
  index_.erase(std::find_if(begin, end, [&](const auto& e) { return e.second == &entry; }));
  if (const auto it = lengths_.find(entry.length); --it->second == 0) lengths_.erase(it);
  for (const int32_t page : entry.pages) pages_.Unhold(page);
  entry.pages.clear();
  List& list = entry.probation ? probation_ : proven_;
  if (entry.pins == 0) return Free(entry, list);
  entry.indexed = false;
  evicted_.splice(evicted_.end(), list, entry.at);
}

void PrefixCache::Unpin(Entry& entry) {
  FLUVIAL_CHECK(entry.pins > 0);
  if (--entry.pins == 0 && !entry.indexed) Free(entry, evicted_);
}

bool PrefixCache::EvictForPage() {
  // Whoever shares a page of an entry shares all pages before it, so an entry frees a page exactly when it is the only
  // owner of its last one.
  for (const List* list : {&probation_, &proven_}) {
    for (const auto& entry : *list) {
      if (entry->pages.empty() || pages_.refs(entry->pages.back()) > 1) continue;
      Evict(*entry);
      return true;
    }
  }
  return false;
}

void PrefixCache::EvictHolders(int32_t page) {
  for (const List* list : {&probation_, &proven_}) {
    for (auto it = list->begin(); it != list->end();) {
      Entry& entry = **it++;
      if (std::find(entry.pages.begin(), entry.pages.end(), page) != entry.pages.end()) Evict(entry);
    }
  }
}

void PrefixCache::Forget(const Prefix& prefix) {
  for (const List* list : {&probation_, &proven_}) {
    for (auto it = list->begin(); it != list->end();) {
      Entry& entry = **it++;
      if (Prefix::Agree(prefix, *entry.prefix, entry.length)) Evict(entry);
    }
  }
}

void PrefixCache::Clear() {
  for (const List* list : {&probation_, &proven_}) {
    while (!list->empty()) Evict(*list->front());
  }
}

}  // namespace fluvial::engine
