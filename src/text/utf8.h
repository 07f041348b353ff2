// SPDX-License-Identifier: Apache-2.0
// UTF-8: validation, decoding, and the replacement of ill-formed input.
//
// Ill-formed bytes are replaced as the Unicode Standard recommends (chapter 3.9, "U+FFFD substitution of maximal
// subparts"): one U+FFFD for the longest prefix that could begin a character. Python's errors="replace" and
// Rust's from_utf8_lossy do the same, so decoded text equals theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fluvial::text {

/// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// What stands at the front of some bytes.
struct Utf8Head {
  enum class Kind : uint8_t {
    kCharacter,   ///< a whole character of `length` bytes
    kIncomplete,  ///< all `length` bytes are a proper prefix of some character; more bytes may complete it
    kInvalid,     ///< `length` bytes that no continuation can turn into a character
  };
  Kind kind;
  uint8_t length;       ///< 1 to 4
  char32_t code_point;  ///< only for kCharacter
};

/// Looks at the front of `bytes` (not empty). Surrogates, overlong forms and values above U+10FFFF are invalid.
Utf8Head DecodeHead(std::string_view bytes);

/// Code point at `*offset` of valid UTF-8; moves `*offset` behind it. Danger: does not check.
inline char32_t DecodeValid(std::string_view text, size_t* offset) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + *offset;
  if (p[0] < 0x80) {
    *offset += 1;
    return p[0];
  }
  if (p[0] < 0xE0) {
    *offset += 2;
    return static_cast<char32_t>((p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu));
  }
  if (p[0] < 0xF0) {
    *offset += 3;
    return static_cast<char32_t>((p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu));
  }
  *offset += 4;
  return static_cast<char32_t>((p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu));
}

/// Code point that ends at `end` > 0 of valid UTF-8. Danger: does not check.
inline char32_t DecodeValidBefore(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return DecodeValid(text, &start);
}

/// Appends a scalar value (not a surrogate, at most U+10FFFF).
void AppendUtf8(char32_t code_point, std::string* out);

/// First offset at or after `from` that is not ASCII; size() when there is none.
size_t FindNonAscii(std::string_view text, size_t from = 0);

/// Length of the longest prefix that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view bytes);

inline bool IsValidUtf8(std::string_view bytes) { return ValidUtf8Prefix(bytes) == bytes.size(); }

/// `bytes` with every ill-formed maximal subpart replaced by U+FFFD, an incomplete tail included.
std::string ReplaceInvalidUtf8(std::string_view bytes);

}  // namespace fluvial::text
