// SPDX-License-Identifier: Apache-2.0
// Open-addressing hash maps of the tokenizer: built once, then only read, from any number of threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace fluvial::text {

/// Hash of a short byte string. Not keyed: vocabularies come from model files, and a file made to collide slows
/// down only its own loading.
inline uint64_t HashBytes(std::string_view bytes) {
  uint64_t h = bytes.size() * 0x9e3779b97f4a7c15ull;
  const char* p = bytes.data();
  size_t n = bytes.size();
  const auto step = [&](uint64_t word) {
    h = (h ^ word) * 0xd6e8feb86659fd93ull;
    h ^= h >> 32;
  };
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    step(word);
  }
  if (n > 0) {
    uint64_t word = 0;
    std::memcpy(&word, p, n);
    step(word);
  }
  return Mix64(h);
}

/// Pairs of token ids -> (rank, merged id).
class PairMap {
 public:
  struct Merge {
    uint32_t rank;
    uint32_t id;
  };

  /// Room for `n` pairs at a load of at most one half.
  void Reserve(size_t n) {
    const size_t capacity = std::bit_ceil(2 * n + 2);
    if (capacity > slots_.size()) Rehash(capacity);
  }

  /// A pair given again takes its new value.
  void Put(uint32_t left, uint32_t right, Merge merge) {
    Reserve(size_ + 1);
    const uint64_t key = Key(left, right);
    const uint64_t hash = Mix64(key);
    Slot& slot = slots_[Find(key, hash)];
    if (slot.key == kEmpty) ++size_;
    slot = {key, merge};
    filter_[FilterWord(hash)] |= uint64_t{1} << (hash >> 58);
  }

  /// Null when the pair does not merge.
  const Merge* Get(uint32_t left, uint32_t right) const {
    if (slots_.empty()) return nullptr;
    const uint64_t key = Key(left, right);
    const uint64_t hash = Mix64(key);
    if ((filter_[FilterWord(hash)] >> (hash >> 58) & 1) == 0) return nullptr;
    const Slot& slot = slots_[Find(key, hash)];
    return slot.key == kEmpty ? nullptr : &slot.merge;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{0, 0};
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // ids are below 2^31, so no pair has this key

  static uint64_t Key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  size_t Find(uint64_t key, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t i = hash & mask;
    while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & mask;
    return i;
  }
  void Rehash(size_t capacity) {
    std::vector<Slot> old(capacity);
    old.swap(slots_);
    filter_.assign(std::max<size_t>(1, capacity / 8), 0);
    for (const Slot& slot : old) {
      if (slot.key == kEmpty) continue;
      const uint64_t hash = Mix64(slot.key);
      slots_[Find(slot.key, hash)] = slot;
      filter_[FilterWord(hash)] |= uint64_t{1} << (hash >> 58);
    }
  }
  size_t FilterWord(uint64_t hash) const { return (hash >> 24) & (filter_.size() - 1); }

  std::vector<Slot> slots_;
  // One bit by hash, 16 or more bits a pair: nearly all lookups miss, and this says so from a sixteenth of the memory.
  std::vector<uint64_t> filter_;
  size_t size_ = 0;
};

/// Byte strings -> ids, the strings being kept elsewhere: `text_of(id)` must give them back.
class StringIndex {
 public:
  template <class TextOf>
  void Reserve(size_t n, const TextOf& text_of) {
    const size_t capacity = std::bit_ceil(2 * n + 2);
    if (capacity <= slots_.size()) return;
    std::vector<Slot> old(capacity);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.id != kNone) slots_[Find(text_of(slot.id), slot.hash, text_of)] = slot;
    }
  }

  /// False when the string is there already (its id stays).
  template <class TextOf>
  bool Put(std::string_view text, uint32_t id, const TextOf& text_of) {
    Reserve(size_ + 1, text_of);
    const auto hash = static_cast<uint32_t>(HashBytes(text));
    Slot& slot = slots_[Find(text, hash, text_of)];
    if (slot.id != kNone) return false;
    slot = {hash, id};
    ++size_;
    return true;
  }

  /// kNone when absent.
  template <class TextOf>
  uint32_t Get(std::string_view text, const TextOf& text_of) const {
    if (slots_.empty()) return kNone;
    return slots_[Find(text, static_cast<uint32_t>(HashBytes(text)), text_of)].id;
  }

  size_t size() const { return size_; }
  static constexpr uint32_t kNone = ~uint32_t{0};

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t id = kNone;
  };
  template <class TextOf>
  size_t Find(std::string_view text, uint32_t hash, const TextOf& text_of) const {
    const size_t mask = slots_.size() - 1;
    size_t i = hash & mask;
    while (slots_[i].id != kNone && (slots_[i].hash != hash || text_of(slots_[i].id) != text)) i = (i + 1) & mask;
    return i;
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace fluvial::text
