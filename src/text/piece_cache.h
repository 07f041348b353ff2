// SPDX-License-Identifier: Apache-2.0
// PieceCache: what recent pre-tokens encoded to. Direct-mapped, one cache line an entry, a newcomer evicts. Its
// size never grows, so hostile text costs misses, not memory.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace fluvial::text {

class PieceCache {
 public:
  static constexpr size_t kEntries = 1 << 14;  // 1 MiB: about a second-level cache
  static constexpr size_t kMaxBytes = 32;
  static constexpr size_t kMaxIds = 7;

  /// A key's words and place; made once for Find and Put.
  struct Key {
    std::array<uint64_t, kMaxBytes / 8> words{};
    size_t slot = 0;
    uint8_t length = 0;
  };

  /// `piece` has 1 to kMaxBytes bytes.
  static Key KeyOf(std::string_view piece) {
    Key key;
    std::memcpy(key.words.data(), piece.data(), piece.size());
    key.length = static_cast<uint8_t>(piece.size());
    uint64_t h = piece.size();
    for (size_t i = 0; i * 8 < piece.size(); ++i) {
      h = (h ^ key.words[i]) * 0xd6e8feb86659fd93ull;
      h ^= h >> 32;
    }
    key.slot = Mix64(h) % kEntries;
    return key;
  }

  /// Null on a miss.
  const int32_t* Find(const Key& key, size_t* count) const {
    if (entries_.empty()) return nullptr;
    const Entry& entry = entries_[key.slot];
    if (entry.length != key.length || entry.words != key.words) return nullptr;
    *count = entry.count;
    return entry.ids.data();
  }

  void Put(const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > kMaxIds) return;
    if (entries_.empty()) entries_.resize(kEntries);
    Entry& entry = entries_[key.slot];
    entry.words = key.words;
    entry.length = key.length;
    entry.count = static_cast<uint8_t>(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) entry.ids[i] = ids[i];
  }

 private:
  struct alignas(64) Entry {
    std::array<uint64_t, kMaxBytes / 8> words{};
    std::array<int32_t, kMaxIds> ids{};
    uint8_t length = 0;  // 0 = empty
    uint8_t count = 0;
  };
  static_assert(sizeof(Entry) == 64);

  std::vector<Entry> entries_;
};

}  // namespace fluvial::text
