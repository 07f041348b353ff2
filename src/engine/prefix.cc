// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace fluvial::engine {

Prefix::Prefix(std::vector<int32_t> ids, std::vector<PromptKey> keys) : ids_(std::move(ids)), keys_(std::move(keys)) {
  hashes_.reserve(ids_.size() + 1);
  Hasher hash;
  size_t key = 0;
  hashes_.push_back(hash.Get());
  for (size_t i = 0; i < ids_.size(); ++i) {
    for (; key < keys_.size() && keys_[key].begin <= static_cast<int64_t>(i); ++key) {
      hash.Add(static_cast<uint64_t>(keys_[key].end));
      for (const char c : keys_[key].key) hash.Add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
    }
    hash.Add(static_cast<uint64_t>(static_cast<uint32_t>(ids_[i])));
    hashes_.push_back(hash.Get());
  }
}

int64_t Prefix::Common(const Prefix& a, const Prefix& b) {
  const auto ids = std::mismatch(a.ids_.begin(), a.ids_.end(), b.ids_.begin(), b.ids_.end());
  int64_t common = ids.first - a.ids_.begin();
  const auto keys = std::mismatch(a.keys_.begin(), a.keys_.end(), b.keys_.begin(), b.keys_.end());
  // A key counts from its first token on: tokens of another image are the same ids.
  if (keys.first != a.keys_.end()) common = std::min(common, keys.first->begin);
  if (keys.second != b.keys_.end()) common = std::min(common, keys.second->begin);
  return common;
}

bool Prefix::Agree(const Prefix& a, const Prefix& b, int64_t length) {
  if (length > a.size() || length > b.size() || a.Hash(length) != b.Hash(length)) return false;
  if (!std::equal(a.ids_.begin(), a.ids_.begin() + length, b.ids_.begin())) return false;
  const auto end = [length](const std::vector<PromptKey>& keys) {
    return std::find_if(keys.begin(), keys.end(), [length](const PromptKey& k) { return k.begin >= length; });
  };
  return std::equal(a.keys_.begin(), end(a.keys_), b.keys_.begin(), end(b.keys_));
}

}  // namespace fluvial::engine
