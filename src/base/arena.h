// SPDX-License-Identifier: Apache-2.0
// Arena: one block of memory handed out in aligned pieces and reset as a whole. Operators' workspaces and a
// step's activations come from arenas, so nothing allocates inside a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "fluvial/status.h"

namespace fluvial {

/// Memory an operator may scribble on: not initialised, valid during one run() call.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

/// Bump allocator over memory owned by somebody else (any device). Pieces are as aligned as `data` is, up to
/// kAlignment. Not thread-safe.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;  // cuDNN and TMA descriptors ask for at most this

  Arena() = default;
  Arena(void* data, size_t bytes) : data_(static_cast<char*>(data)), bytes_(bytes) {}

  /// `bytes` rounded up to kAlignment; sizes that would wrap around give the largest multiple, which no memory has.
  static size_t Aligned(size_t bytes) {
    constexpr size_t kMax = std::numeric_limits<size_t>::max() / kAlignment * kAlignment;
    return bytes > kMax ? kMax : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// A piece of `bytes` bytes, or a resource error with both numbers.
  Result<void*> Take(size_t bytes) {
    const size_t need = Aligned(bytes);
    if (need > bytes_ - used_) {
      const size_t total = need > std::numeric_limits<size_t>::max() - used_ ? need : used_ + need;
      return Status::Resource("workspace too small: " + std::to_string(total) + " bytes needed, " +
                              std::to_string(bytes_) + " available");
    }
    void* p = data_ + used_;
    used_ += need;
    if (used_ > peak_) peak_ = used_;
    return p;
  }

  size_t used() const { return used_; }
  size_t peak() const { return peak_; }
  size_t bytes() const { return bytes_; }

  /// Gives back everything taken after `mark` (a value of used()).
  void Rewind(size_t mark) { used_ = mark; }
  void Reset() { used_ = 0; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  size_t used_ = 0;
  size_t peak_ = 0;
};

}  // namespace fluvial
