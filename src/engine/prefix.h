// SPDX-License-Identifier: Apache-2.0
// Prefix: token ids with what stands behind them, and how two of them compare.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fluvial/engine.h"

namespace fluvial::engine {

/// Immutable once made; shared by a request and the cache entries that came from it.
class Prefix {
 public:
  Prefix(std::vector<int32_t> ids, std::vector<PromptKey> keys);

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  std::span<const int32_t> ids() const { return ids_; }
  std::span<const PromptKey> keys() const { return keys_; }
  /// Hash of the first `length` tokens and of the keys that begin among them. Finds candidates; Agree decides.
  uint64_t Hash(int64_t length) const { return hashes_[static_cast<size_t>(length)]; }

  /// True when the first `length` tokens of both are the same, and the keys that begin among them.
  static bool Agree(const Prefix& a, const Prefix& b, int64_t length);
  /// Largest length for which they agree.
  static int64_t Common(const Prefix& a, const Prefix& b);

 private:
  std::vector<int32_t> ids_;
  std::vector<PromptKey> keys_;
  std::vector<uint64_t> hashes_;  // [size + 1]
};

}  // namespace fluvial::engine
