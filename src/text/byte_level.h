// SPDX-License-Identifier: Apache-2.0
// The byte alphabet of byte-level BPE files: every byte is written as one printable character. Bytes 33-126,
// 161-172 and 174-255 stand for themselves; the other 68 are U+0100, U+0101, ... in ascending order
// (GPT-2's encoder.py, bytes_to_unicode).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace fluvial::text {

inline constexpr int kAlphabetEnd = 0x100 + 68;  ///< no character of the alphabet lies at or above this

/// Character -> byte for code points below kAlphabetEnd; -1 for those outside the alphabet.
inline constexpr std::array<int16_t, kAlphabetEnd> kByteOfCharacter = [] {
  std::array<int16_t, kAlphabetEnd> table{};
  for (auto& entry : table) entry = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool self = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    table[self ? byte : next++] = static_cast<int16_t>(byte);
  }
  return table;
}();

/// Appends the bytes that `token` (valid UTF-8) stands for. False, and nothing appended, when a character is
/// outside the alphabet: such a token stands for its own UTF-8 bytes, as in Hugging Face's ByteLevel decoder.
inline bool AppendAlphabetBytes(std::string_view token, std::string* out) {
  const size_t before = out->size();
  for (size_t i = 0; i < token.size();) {
    const char32_t c = DecodeValid(token, &i);
    const int byte = c < kAlphabetEnd ? kByteOfCharacter[c] : -1;
    if (byte < 0) {
      out->resize(before);
      return false;
    }
    *out += static_cast<char>(byte);
  }
  return true;
}

}  // namespace fluvial::text
