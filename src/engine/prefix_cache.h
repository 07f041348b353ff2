// SPDX-License-Identifier: Apache-2.0
// PrefixCache: prompts' pages and state snapshots kept for later prompts that begin alike.
//
// An entry is the state of a model after an exact number of tokens: the pages that hold their keys and values, and the
// slot that holds the recurrent state. A hit takes a whole entry or nothing; there is no entry without its snapshot.
// Nobody writes an entry's slot, and pages that an entry holds are copied before anybody else writes them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/page_pool.h"
#include "engine/prefix.h"

namespace fluvial::engine {

class PrefixCache {
 public:
  struct Entry {
    std::shared_ptr<const Prefix> prefix;  ///< its first `length` tokens
    int64_t length = 0;
    std::vector<int32_t> pages;  ///< the last one may hold more tokens than `length`
    int32_t slot = -1;
    int32_t pins = 0;        ///< sequences whose next step reads the slot
    bool indexed = true;     ///< false: evicted while pinned; only the slot is left
    bool probation = false;  ///< a place chosen by distance alone that nobody has asked for yet
    std::list<std::unique_ptr<Entry>>::iterator at;
  };

  /// At most `capacity` entries, evicted ones that are still pinned included. Slots come from and go back to `slots`,
  /// with a call of `on_slot_free`; `capacity` of them are never taken by anybody else.
  PrefixCache(int32_t capacity, PagePool& pages, FreeList& slots, std::function<void(int32_t)> on_slot_free);

  /// The longest entry of at most `longest` tokens that agrees with `prefix`; nullptr when there is none. Counts as
  /// use.
  Entry* Find(const Prefix& prefix, int64_t longest);
  /// Tokens that `prefix` has in common with any prompt that entries came from, with or without a snapshot there.
  int64_t Common(const Prefix& prefix) const;
  /// True when there is an entry of exactly `length` tokens of `prefix`.
  bool Has(const Prefix& prefix, int64_t length) const;

  /// Makes room for one more entry: evicts the least useful unpinned one when full. False when all are pinned.
  bool MakeRoom();
  /// Adds an entry after MakeRoom; it takes over `slot` and holds `pages`.
  Entry* Insert(std::shared_ptr<const Prefix> prefix, int64_t length, std::vector<int32_t> pages, int32_t slot,
                bool probation);

  void Pin(Entry& entry) { ++entry.pins; }
  void Unpin(Entry& entry);

  /// Evicts an entry whose end frees a page. False when no entry does.
  bool EvictForPage();
  /// Evicts every entry that holds `page`.
  void EvictHolders(int32_t page);
  /// Evicts every entry that is a part of `prefix`: its tokens led to numbers that are not finite.
  void Forget(const Prefix& prefix);
  void Clear();

  int32_t entries() const { return static_cast<int32_t>(index_.size()); }
  /// Slots that entries hold, evicted ones that are still pinned included.
  int32_t slots_used() const { return static_cast<int32_t>(probation_.size() + proven_.size() + evicted_.size()); }
  int32_t capacity() const { return capacity_; }

  /// For tests: every entry, evicted ones included.
  template <class F>
  void ForEach(F&& f) const {
    for (const auto* list : {&probation_, &proven_, &evicted_}) {
      for (const auto& e : *list) f(*e);
    }
  }

 private:
  using List = std::list<std::unique_ptr<Entry>>;

  Entry* Lookup(const Prefix& prefix, int64_t length) const;
  void Evict(Entry& entry);
  void Free(Entry& entry, List& list);

  int32_t capacity_ = 0;
  PagePool& pages_;
  FreeList& slots_;
  std::function<void(int32_t)> on_slot_free_;
  // Oldest use first.
  List probation_, proven_;
  List evicted_;
  std::unordered_multimap<uint64_t, Entry*> index_;  // by hash of the tokens
  std::map<int64_t, int32_t> lengths_;               // length -> entries of that length
};

}  // namespace fluvial::engine
