// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "text/jinja/unicode_case.h"

namespace fluvial::jinja {
namespace {

utf8proc_category_t Category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

const SpecialCase* FindSpecialCase(char32_t c) {
  const auto* end = kSpecialCases + std::size(kSpecialCases);
  const auto* it =
      std::lower_bound(kSpecialCases, end, c, [](const SpecialCase& row, char32_t value) { return row.code < value; });
  return it != end && it->code == c ? it : nullptr;
}

void AppendSequence(std::string* out, const char16_t (&sequence)[3]) {
  for (char16_t unit : sequence) {
    if (unit != 0) AppendUtf8(out, unit);
  }
}

void AppendUpper(std::string* out, char32_t c) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  } else if (const SpecialCase* special = FindSpecialCase(c)) {
    AppendSequence(out, special->upper);
  } else {
    AppendUtf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void AppendTitle(std::string* out, char32_t c) {
  const SpecialCase* special = FindSpecialCase(c);
  if (special != nullptr && special->title[0] != 0) {
    AppendSequence(out, special->title);
  } else {
    AppendUtf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }

// Characters that casing context looks through (approximates the property Case_Ignorable by categories).
bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027;
  }
}

// Greek capital sigma becomes final sigma after a cased character and not before one (Unicode, Final_Sigma).
bool IsFinalSigma(const std::u32string& text, size_t at) {
  size_t before = at;
  while (before > 0 && IsCaseIgnorable(text[before - 1])) --before;
  if (before == 0 || !IsCased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && IsCaseIgnorable(text[after])) ++after;
  return after == text.size() || !IsCased(text[after]);
}

void AppendLower(std::string* out, const std::u32string& text, size_t at) {
  char32_t c = text[at];
  if (c < 0x80) {
    out->push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x3a3) {
    AppendUtf8(out, IsFinalSigma(text, at) ? 0x3c2 : 0x3c3);
  } else if (c == 0x130) {
    AppendUtf8(out, 'i');
    AppendUtf8(out, 0x307);
  } else {
    AppendUtf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
}

template <class Drop>
std::string_view StripWhere(std::string_view text, Side side, Drop drop) {
  size_t begin = 0;
  if (side != Side::kRight) {
    while (begin < text.size()) {
      size_t next = begin;
      if (!drop(DecodeAt(text, &next))) break;
      begin = next;
    }
  }
  size_t end = text.size();
  if (side != Side::kLeft) {
    while (end > begin) {
      size_t start = end - 1;
      while (start > begin && IsContinuation(text[start])) --start;
      size_t offset = start;
      if (!drop(DecodeAt(text, &offset))) break;
      end = start;
    }
  }
  return text.substr(begin, end - begin);
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    int length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || i + length > text.size()) return false;
    char32_t c = lead & (0x7f >> length);
    for (int k = 1; k < length; ++k) {
      if (!IsContinuation(text[i + k])) return false;
      c = (c << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3f);
    }
    if ((length == 3 && c < 0x800) || (length == 4 && c < 0x10000) || c > 0x10ffff) return false;
    if (c >= 0xd800 && c < 0xe000) return false;
    i += length;
  }
  return true;
}

int64_t CountCodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuation(c); });
}

size_t OffsetOfCodePoint(std::string_view text, int64_t index) {
  size_t i = 0;
  for (; i < text.size(); ++i) {
    if (IsContinuation(text[i])) continue;
    if (index-- == 0) return i;
  }
  return i;
}

char32_t DecodeAt(std::string_view text, size_t* offset) {
  auto lead = static_cast<unsigned char>(text[(*offset)++]);
  if (lead < 0x80) return lead;
  int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  char32_t c = lead & (0x3f >> more);
  for (; more > 0 && *offset < text.size(); --more)
    c = (c << 6) | (static_cast<unsigned char>(text[(*offset)++]) & 0x3f);
  return c;
}

void AppendUtf8(std::string* out, char32_t c) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out->push_back(static_cast<char>(0xf0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

std::u32string ToCodePoints(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) out.push_back(DecodeAt(text, &i));
  return out;
}

bool IsSpace(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool IsPrintable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsAlpha(char32_t c) {
  utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }
bool IsNumericLetter(char32_t c) {
  utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}
bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU; }
bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL; }
bool IsTitle(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LT; }

bool IsIdentifierStart(char32_t c) { return c == '_' || IsAlpha(c) || Category(c) == UTF8PROC_CATEGORY_NL; }
bool IsIdentifierPart(char32_t c) {
  utf8proc_category_t category = Category(c);
  return IsIdentifierStart(c) || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_MN ||
         category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_PC;
}

std::string Upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) AppendUpper(&out, DecodeAt(text, &i));
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (IsAscii(text)) {
    for (char c : text) out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    return out;
  }
  std::u32string points = ToCodePoints(text);
  for (size_t i = 0; i < points.size(); ++i) AppendLower(&out, points, i);
  return out;
}

std::string Capitalize(std::string_view text) {
  std::string out;
  std::u32string points = ToCodePoints(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      AppendTitle(&out, points[i]);
    } else {
      AppendLower(&out, points, i);
    }
  }
  return out;
}

std::string Title(std::string_view text) {
  std::string out;
  std::u32string points = ToCodePoints(text);
  bool previous_cased = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (previous_cased) {
      AppendLower(&out, points, i);
    } else {
      AppendTitle(&out, points[i]);
    }
    previous_cased = IsCased(points[i]);
  }
  return out;
}

std::string SwapCase(std::string_view text) {
  std::string out;
  std::u32string points = ToCodePoints(text);
  for (size_t i = 0; i < points.size(); ++i) {
    if (IsUpper(points[i])) {
      AppendLower(&out, points, i);
    } else if (IsLower(points[i])) {
      AppendUpper(&out, points[i]);
    } else {
      AppendUtf8(&out, points[i]);
    }
  }
  return out;
}

std::string CaseFold(std::string_view text) {
  utf8proc_uint8_t* folded = nullptr;
  utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &folded, UTF8PROC_CASEFOLD);
  std::string out;
  if (size > 0) out.assign(reinterpret_cast<const char*>(folded), static_cast<size_t>(size));
  std::free(folded);
  return out;
}

std::string_view StripSpace(std::string_view text, Side side) { return StripWhere(text, side, IsSpace); }

std::string_view StripChars(std::string_view text, std::string_view chars, Side side) {
  std::u32string set = ToCodePoints(chars);
  return StripWhere(text, side, [&](char32_t c) { return set.find(c) != std::u32string::npos; });
}

}  // namespace fluvial::jinja
