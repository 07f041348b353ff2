// SPDX-License-Identifier: Apache-2.0
// Adapter: the only file that sees utf8proc.
#include "text/unicode.h"

#include <utf8proc.h>

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

// End of the run of stable characters that starts at `from`.
size_t StableEnd(std::string_view text, size_t from) {
  size_t i = from;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      i = FindNonAscii(text, i);
      continue;
    }
    size_t next = i;
    if (!IsStable(DecodeValid(text, &next))) break;
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
  // it) up to the next stable one (which joins nothing before it).
  size_t done = 0;
  while (done < text.size()) {
    size_t stable = StableEnd(text, done);
    if (stable == text.size()) {
      out->append(text.substr(done));
      break;
    }
    size_t start = stable;
    if (stable > done) {
      do {
        --start;
      } while (start > done && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80);
    }
    size_t end = stable;
    while (end < text.size()) {
      size_t next = end;
      if (IsStable(DecodeValid(text, &next))) break;
      end = next;
    }
    out->append(text.substr(done, start - done));
    FLUVIAL_RETURN_IF_ERROR(Normalize(options, text.substr(start, end - start), &buffer, out));
    done = end;
  }
  return Status::Ok();
}

bool IsSurelyNfc(std::string_view text) { return StableEnd(text, 0) == text.size(); }

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
