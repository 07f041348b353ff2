// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace fluvial::text {
namespace {

constexpr uint32_t kNone = Vocabulary::kNone;
constexpr size_t kShort = 64;  // up to here a linear search for the lowest rank beats a heap

}  // namespace

void Vocabulary::Reserve(size_t tokens, size_t bytes) {
  entries_.reserve(tokens);
  blob_.reserve(bytes);
  alphabet_.Reserve(tokens, TextOf());
}

Status Vocabulary::Add(uint32_t id, std::string_view bytes, bool in_alphabet) {
  if (id > kMaxId) {
    return Status::UnusableModel("token id " + std::to_string(id) + " is above the largest allowed, " +
                                 std::to_string(kMaxId));
  }
  if (Has(id)) return Status::UnusableModel("token id " + std::to_string(id) + " is given twice");
  if (blob_.size() + bytes.size() >= kNone) return Status::UnusableModel("the vocabulary is larger than 4 GiB");
  if (id >= entries_.size()) entries_.resize(id + 1);
  entries_[id] = {static_cast<uint32_t>(blob_.size()), static_cast<uint32_t>(bytes.size())};
  blob_ += bytes;
  if (!(in_alphabet ? alphabet_ : raw_).Put(bytes, id, TextOf())) {
    entries_[id] = {};
    return Status::UnusableModel("the token of id " + std::to_string(id) + " is given twice");
  }
  return Status::Ok();
}

void Bpe::Finish(bool by_rank, bool whole_piece_first) {
  by_rank_ = by_rank;
  whole_piece_first_ = whole_piece_first;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[byte] = vocabulary_.Find({&c, 1});
  }
  byte_pairs_.assign(256 * 256, {kNone, kNone});
  for (int left = 0; left < 256; ++left) {
    for (int right = 0; right < 256; ++right) {
      PairMap::Merge& pair = byte_pairs_[left << 8 | right];
      if (by_rank) {
        const std::array<char, 2> text = {static_cast<char>(left), static_cast<char>(right)};
        const uint32_t id = vocabulary_.Find({text.data(), text.size()});
        pair = {id, id};
      } else if (const PairMap::Merge* m = pairs_.Get(byte_ids_[left], byte_ids_[right])) {
        pair = *m;
      }
    }
  }
}

void Bpe::Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const {
  if (piece.size() > PieceCache::kMaxBytes) return EncodeUncached(piece, scratch, out);
  if (piece.empty()) return;
  const PieceCache::Key key = PieceCache::KeyOf(piece);
  size_t count = 0;
  if (const int32_t* ids = scratch->cache.Find(key, &count)) {
    out->insert(out->end(), ids, ids + count);
    return;
  }
  const size_t before = out->size();
  EncodeUncached(piece, scratch, out);
  scratch->cache.Put(key, std::span<const int32_t>(*out).subspan(before));
}

void Bpe::EncodeUncached(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const {
  if (whole_piece_first_) {
    if (const uint32_t id = vocabulary_.Find(piece); id != kNone) {
      out->push_back(static_cast<int32_t>(id));
      return;
    }
  }
  const auto merge = [&](const auto& lookup) {
    if (piece.size() <= kShort) {
      MergeShort(piece, lookup, out);
    } else {
      MergeLong(piece, lookup, scratch, out);
    }
  };
  if (by_rank_) {
    merge([&](uint32_t, uint32_t, size_t start, size_t end) {
      const uint32_t id = vocabulary_.Find(piece.substr(start, end - start));
      return PairMap::Merge{id, id};
    });
  } else {
    merge([&](uint32_t left, uint32_t right, size_t, size_t) {
      const PairMap::Merge* m = pairs_.Get(left, right);
      return m != nullptr ? *m : PairMap::Merge{kNone, kNone};
    });
  }
}

template <class Lookup>
void Bpe::MergeShort(std::string_view piece, const Lookup& lookup, std::vector<int32_t>* out) const {
  struct Symbol {
    uint32_t id, start, rank, merged;  // rank and merged id of the pair with the right neighbour
  };
  std::array<Symbol, kShort + 1> symbols;  // the one behind the last holds only where the piece ends
  size_t n = 0;
  for (size_t i = 0; i < piece.size(); ++i) {
    const uint32_t id = byte_ids_[static_cast<uint8_t>(piece[i])];
    if (id != kNone) symbols[n++] = {id, static_cast<uint32_t>(i), kNone, kNone};
  }
  symbols[n] = {kNone, static_cast<uint32_t>(piece.size()), kNone, kNone};
  for (size_t i = 0; i + 1 < n; ++i) {
    const PairMap::Merge& m = BytePair(piece, symbols[i].start, symbols[i + 1].start);
    symbols[i].rank = m.rank;
    symbols[i].merged = m.id;
  }
  const auto update = [&](size_t i) {
    if (i + 1 >= n) {
      symbols[i].rank = kNone;
      return;
    }
    const PairMap::Merge m = lookup(symbols[i].id, symbols[i + 1].id, symbols[i].start, symbols[i + 2].start);
    symbols[i].rank = m.rank;
    symbols[i].merged = m.id;
  };
  while (n > 1) {
    size_t at = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (symbols[i].rank < symbols[at].rank) at = i;
    }
    if (symbols[at].rank == kNone) break;
    symbols[at].id = symbols[at].merged;
    for (size_t i = at + 1; i < n; ++i) symbols[i] = symbols[i + 1];  // short: a call to memmove costs more
    --n;
    update(at);
    if (at > 0) update(at - 1);
  }
  for (size_t i = 0; i < n; ++i) out->push_back(static_cast<int32_t>(symbols[i].id));
}

template <class Lookup>
void Bpe::MergeLong(std::string_view piece, const Lookup& lookup, BpeScratch* s, std::vector<int32_t>* out) const {
  s->ids.clear();
  s->starts.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    const uint32_t id = byte_ids_[static_cast<uint8_t>(piece[i])];
    if (id == kNone) continue;
    s->ids.push_back(id);
    s->starts.push_back(static_cast<uint32_t>(i));
  }
  const auto n = static_cast<uint32_t>(s->ids.size());
  s->starts.push_back(static_cast<uint32_t>(piece.size()));
  s->ranks.assign(n, kNone);
  s->merged.assign(n, kNone);
  s->prev.resize(n + 1);
  s->next.resize(n + 1);
  for (uint32_t i = 0; i <= n; ++i) {
    s->prev[i] = i - 1;  // wraps to kNone for the first
    s->next[i] = i + 1;
  }
  // A heap entry is rank and position; it is stale unless the symbol at that position still has that rank, for a
  // rank names one pair (or one joined string), and a merged-away symbol has none.
  s->heap.clear();
  const auto update = [&](uint32_t i) {
    s->ranks[i] = kNone;
    const uint32_t right = s->next[i];
    if (right >= n) return;
    const PairMap::Merge m = lookup(s->ids[i], s->ids[right], s->starts[i], s->starts[s->next[right]]);
    s->ranks[i] = m.rank;
    s->merged[i] = m.id;
    if (m.rank != kNone) s->heap.push_back(uint64_t{m.rank} << 32 | i);
  };
  for (uint32_t i = 0; i + 1 < n; ++i) {
    const PairMap::Merge m = BytePair(piece, s->starts[i], s->starts[i + 1]);
    s->ranks[i] = m.rank;
    s->merged[i] = m.id;
    if (m.rank != kNone) s->heap.push_back(uint64_t{m.rank} << 32 | i);
  }
  const std::greater<uint64_t> later;
  std::make_heap(s->heap.begin(), s->heap.end(), later);
  const auto update_and_push = [&](uint32_t i) {
    const size_t before = s->heap.size();
    update(i);
    if (s->heap.size() > before) std::push_heap(s->heap.begin(), s->heap.end(), later);
  };
  while (!s->heap.empty()) {
    std::pop_heap(s->heap.begin(), s->heap.end(), later);
    const uint64_t entry = s->heap.back();
    s->heap.pop_back();
    const auto at = static_cast<uint32_t>(entry);
    if (s->ranks[at] != entry >> 32) continue;
    const uint32_t gone = s->next[at];
    s->ids[at] = s->merged[at];
    s->ids[gone] = kNone;
    s->ranks[gone] = kNone;
    s->next[at] = s->next[gone];
    s->prev[s->next[at]] = at;
    update_and_push(at);
    if (s->prev[at] != kNone) update_and_push(s->prev[at]);
  }
  for (uint32_t i = 0; i < n; i = s->next[i]) out->push_back(static_cast<int32_t>(s->ids[i]));
}

}  // namespace fluvial::text
