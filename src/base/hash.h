// SPDX-License-Identifier: Apache-2.0
// Hash combination for small value types (problems, cache keys). Not for untrusted keys.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace fluvial {

/// splitmix64 finaliser: full avalanche, public domain (Vigna).
inline uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class Hasher {
 public:
  Hasher& Add(uint64_t x) {
    h_ = Mix64(h_ ^ x);
    return *this;
  }
  /// Equal numbers hash equal: adding +0 turns -0 into +0.
  Hasher& Add(float x) { return Add(static_cast<uint64_t>(std::bit_cast<uint32_t>(x + 0.0f))); }
  uint64_t Get() const { return h_; }

 private:
  uint64_t h_ = 0x243f6a8885a308d3ull;
};

}  // namespace fluvial
