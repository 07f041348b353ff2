// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE over one pre-token. Two rules for what merges:
//   * by pairs (tokenizer.json): a list of pairs of tokens, earlier ones first;
//   * by ranks (tiktoken): any two neighbours whose joined bytes are a token, lowest rank (= id) first.
// In both the leftmost of equals is merged first. Ranks are not turned into pairs: the list that would come out
// is not unique, and building it costs more than it saves.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fluvial/status.h"
#include "text/flat_map.h"
#include "text/piece_cache.h"

namespace fluvial::text {

/// Tokens as bytes, by id. Ids may have holes.
class Vocabulary {
 public:
  static constexpr uint32_t kMaxId = (1u << 22) - 1;
  static constexpr uint32_t kNone = StringIndex::kNone;

 private:
  auto TextOf() const {
    return [this](uint32_t id) { return Bytes(id); };
  }

 public:
  void Reserve(size_t tokens, size_t bytes);

  /// `in_alphabet`: the token was written in the byte alphabet, so text can encode to it. Others are found only
  /// by FindRaw. Refused: an id above kMaxId, an id or a token given twice.
  Status Add(uint32_t id, std::string_view bytes, bool in_alphabet);

  bool Has(uint32_t id) const { return id < entries_.size() && entries_[id].offset != kNone; }
  /// Empty for an id without a token.
  std::string_view Bytes(uint32_t id) const {
    return Has(id) ? std::string_view(blob_).substr(entries_[id].offset, entries_[id].length) : std::string_view();
  }
  uint32_t Find(std::string_view bytes) const { return alphabet_.Get(bytes, TextOf()); }
  uint32_t FindRaw(std::string_view text) const { return raw_.Get(text, TextOf()); }

  /// Largest id + 1.
  size_t id_end() const { return entries_.size(); }
  /// Number of tokens.
  size_t size() const { return alphabet_.size() + raw_.size(); }

 private:
  struct Entry {
    uint32_t offset = kNone;
    uint32_t length = 0;
  };
  std::string blob_;
  std::vector<Entry> entries_;
  StringIndex alphabet_, raw_;
};

/// Working memory of one thread's encoding; grows to what the longest pre-token needs.
struct BpeScratch {
  PieceCache cache;
  std::vector<uint32_t> ids, starts, ranks, merged, prev, next;
  std::vector<uint64_t> heap;
};

class Bpe {
 public:
  Vocabulary& vocabulary() { return vocabulary_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  PairMap& pairs() { return pairs_; }

  /// To be called when the vocabulary is complete: looks up the single bytes and their pairs.
  void Finish(bool by_rank, bool whole_piece_first);

  /// Id of a single byte's token; Vocabulary::kNone when there is none.
  uint32_t ByteId(uint8_t byte) const { return byte_ids_[byte]; }

  /// Appends the ids of one pre-token. Bytes without a token vanish, as in Hugging Face's model without unk_token.
  void Encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const;

 private:
  const PairMap::Merge& BytePair(std::string_view piece, size_t left, size_t right) const {
    return byte_pairs_[static_cast<size_t>(static_cast<uint8_t>(piece[left])) << 8 |
                       static_cast<uint8_t>(piece[right])];
  }
  void EncodeUncached(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* out) const;
  template <class Lookup>
  void MergeShort(std::string_view piece, const Lookup& lookup, std::vector<int32_t>* out) const;
  template <class Lookup>
  void MergeLong(std::string_view piece, const Lookup& lookup, BpeScratch* scratch, std::vector<int32_t>* out) const;

  Vocabulary vocabulary_;
  PairMap pairs_;
  std::array<uint32_t, 256> byte_ids_{};
  std::vector<PairMap::Merge> byte_pairs_;  ///< [256 * 256]: every word starts with these, so they skip the hash map
  bool by_rank_ = false;
  bool whole_piece_first_ = false;
};

}  // namespace fluvial::text
