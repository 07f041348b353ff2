// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <cstring>

namespace fluvial::text {
namespace {

using Kind = Utf8Head::Kind;

Utf8Head Invalid(size_t length) { return {Kind::kInvalid, static_cast<uint8_t>(length), 0}; }

}  // namespace

Utf8Head DecodeHead(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};
  // Table 3-7 of the Unicode Standard: the second byte has a narrower range after E0, ED, F0 and F4.
  size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;
  char32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    value = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    value = lead & 0x0Fu;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    value = lead & 0x07u;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return Invalid(1);
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, static_cast<uint8_t>(i), 0};
    if (byte(i) < low || byte(i) > high) return Invalid(i);
    value = value << 6 | (byte(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kCharacter, static_cast<uint8_t>(length), value};
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    *out += static_cast<char>(c);
  } else if (c < 0x800) {
    *out += static_cast<char>(0xC0 | c >> 6);
    *out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    *out += static_cast<char>(0xE0 | c >> 12);
    *out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    *out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    *out += static_cast<char>(0xF0 | c >> 18);
    *out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    *out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    *out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t FindNonAscii(std::string_view text, size_t from) {
  size_t i = from;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080ull) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t i = 0;
  while (true) {
    i = FindNonAscii(bytes, i);
    // Stay in this loop while characters are not ASCII: restarting the word scan for each would cost more.
    while (i < bytes.size() && static_cast<unsigned char>(bytes[i]) >= 0x80) {
      const Utf8Head head = DecodeHead(bytes.substr(i));
      if (head.kind != Kind::kCharacter) return i;
      i += head.length;
    }
    if (i == bytes.size()) return i;
  }
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t good = ValidUtf8Prefix(bytes);
    out += bytes.substr(0, good);
    bytes.remove_prefix(good);
    if (bytes.empty()) break;
    out += kReplacement;
    bytes.remove_prefix(DecodeHead(bytes).length);
  }
  return out;
}

}  // namespace fluvial::text
