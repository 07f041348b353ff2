// SPDX-License-Identifier: Apache-2.0
// Adapter: the only file that sees utf8proc.
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/unicode_ranges.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

// Starters with NFC_Quick_Check = Yes, in blocks that have held only such characters since Unicode 5 and are
// frequent in text. Whatever is outside goes through utf8proc. Source: DerivedNormalizationProps.txt.
bool IsStable(char32_t c) {
  if (c < 0x300) return true;
  if (c < 0x3041) return (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) || (c >= 0x3001 && c <= 0x3029);
  return (c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xFF01 && c <= 0xFF9D) || (c >= 0x1F300 && c <= 0x1F64F);
}

// Marks and compositions that came after the Unicode version of Hugging Face's normaliser (tokenizers 0.23 still
// carries tables that lack them; found by comparing it with utf8proc for every code point). There these are plain
// characters without a combining class, and models were trained on text normalised so: they are never given to
// utf8proc. The second line is Unicode 16, which utf8proc 2.8 does not know either, but later ones do.
constexpr CodeRange kNewer[] = {
    {0x7FD, 0x7FD},
    {0x898, 0x89F},
    {0x8CA, 0x8D3},
    {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},
    {0xEBA, 0xEBA},
    {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},
    {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50},
    {0x10F82, 0x10F85},
    {0x11070, 0x11070},
    {0x1133B, 0x1133B},
    {0x1145E, 0x1145E},
    {0x11839, 0x1183A},
    {0x11930, 0x11930},
    {0x11935, 0x11935},
    {0x11938, 0x11938},
    {0x1193D, 0x1193E},
    {0x11943, 0x11943},
    {0x119E0, 0x119E0},
    {0x11A34, 0x11A34},
    {0x11A47, 0x11A47},
    {0x11A99, 0x11A99},
    {0x11D42, 0x11D42},
    {0x11D44, 0x11D45},
    {0x11D97, 0x11D97},
    {0x11F41, 0x11F42},
    {0x16FF0, 0x16FF1},
    {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF},
    // Unicode 16
    {0x897, 0x897},
    {0x105C0, 0x105F3},
    {0x10D69, 0x10D6D},
    {0x10EFC, 0x10EFC},
    {0x11380, 0x113E2},
    {0x16100, 0x1612F},
    {0x16D40, 0x16D6C},
    {0x1E5EE, 0x1E5EF},
};

bool IsNewer(char32_t c) {
  if (c < 0x7FD) return false;
  return std::any_of(std::begin(kNewer), std::end(kNewer),
                     [c](const CodeRange& range) { return c >= range.first && c <= range.last; });
}

bool IsSettled(char32_t c) { return IsStable(c) || IsNewer(c); }

// End of the run of settled characters that starts at `from`.
size_t SettledEnd(std::string_view text, size_t from) {
  size_t i = from;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      i = FindNonAscii(text, i);
      continue;
    }
    size_t next = i;
    if (!IsSettled(DecodeValid(text, &next))) break;
    i = next;
  }
  return i;
}

utf8proc_option_t OptionsOf(NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

Status Normalize(utf8proc_option_t options, std::string_view text, std::vector<utf8proc_int32_t>* buffer,
                 std::string* out) {
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  if (buffer->size() < text.size() + 16) buffer->resize(text.size() + 16);
  utf8proc_ssize_t n = 0;
  while (true) {
    n = utf8proc_decompose(data, size, buffer->data(), static_cast<utf8proc_ssize_t>(buffer->size()), options);
    if (n < 0) return Status::Failed(std::string("Unicode normalisation failed: ") + utf8proc_errmsg(n));
    if (static_cast<size_t>(n) <= buffer->size()) break;
    buffer->resize(static_cast<size_t>(n));
  }
  n = utf8proc_normalize_utf32(buffer->data(), n, options);
  if (n < 0) return Status::Failed(std::string("Unicode normalisation failed: ") + utf8proc_errmsg(n));
  for (utf8proc_ssize_t i = 0; i < n; ++i) AppendUtf8(static_cast<char32_t>((*buffer)[i]), out);
  return Status::Ok();
}

}  // namespace

Status AppendNormalized(NormalForm form, std::string_view text, std::string* out) {
  const utf8proc_option_t options = OptionsOf(form);
  std::vector<utf8proc_int32_t> buffer;
  if (form != NormalForm::kNfc) return Normalize(options, text, &buffer, out);
  // Only the stretches that may change are given to utf8proc: from the last stable character (a mark may join
  // it) up to the next settled one (which joins nothing before it).
  size_t done = 0;
  while (done < text.size()) {
    const size_t settled = SettledEnd(text, done);
    if (settled == text.size()) {
      out->append(text.substr(done));
      break;
    }
    size_t start = settled;
    if (settled > done && !IsNewer(DecodeValidBefore(text, settled))) {
      do {
        --start;
      } while (start > done && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80);
    }
    size_t end = settled;
    while (end < text.size()) {
      size_t next = end;
      if (IsSettled(DecodeValid(text, &next))) break;
      end = next;
    }
    out->append(text.substr(done, start - done));
    FLUVIAL_RETURN_IF_ERROR(Normalize(options, text.substr(start, end - start), &buffer, out));
    done = end;
  }
  return Status::Ok();
}

bool IsSurelyNfc(std::string_view text) { return SettledEnd(text, 0) == text.size(); }

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPythonSpace(char32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsWordCharacter(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  for (const UnicodeProperty& property : kUnicodeProperties) {
    if (property.name != "L" && property.name != "M" && property.name != "Nd") continue;
    for (const CodeRange& range : property.added) {
      if (c >= range.first && c <= range.last) return true;
    }
  }
  // Join_Control, and the symbols that are Other_Alphabetic: circled, negative circled and squared Latin letters.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace fluvial::text
