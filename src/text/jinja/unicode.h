// SPDX-License-Identifier: Apache-2.0
// Code points of UTF-8 text with the rules of Python's str type, which Jinja exposes to templates. The only file of the
// template engine that sees utf8proc is unicode.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fluvial::jinja {

/// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsValidUtf8(std::string_view text);

/// Number of code points of valid UTF-8.
int64_t CountCodePoints(std::string_view text);

/// Byte offset of code point `index` (0 .. count; count gives text.size()).
size_t OffsetOfCodePoint(std::string_view text, int64_t index);

/// Reads the code point at `*offset` and advances. Danger: text must be valid UTF-8 and *offset inside it.
char32_t DecodeAt(std::string_view text, size_t* offset);

void AppendUtf8(std::string* out, char32_t c);
std::u32string ToCodePoints(std::string_view text);

/// str.isspace of one character: bidirectional class WS, B or S, or category Zs. Also `\s` of Python's re for str.
bool IsSpace(char32_t c);

/// str.splitlines: LF CR VT FF FS GS RS NEL LS PS.
bool IsLineBreak(char32_t c);

/// str.isprintable of one character: categories Cc Cf Cs Co Cn Zl Zp Zs are not, except U+0020.
bool IsPrintable(char32_t c);

bool IsAlpha(char32_t c);          ///< categories L*
bool IsDecimal(char32_t c);        ///< category Nd
bool IsNumericLetter(char32_t c);  ///< categories Nd Nl No
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);  ///< category Lt
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);

/// Full case mappings (one character may become several), final sigma included.
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);  ///< first character title case, the rest lower
std::string Title(std::string_view text);       ///< str.title
std::string SwapCase(std::string_view text);
std::string CaseFold(std::string_view text);

enum class Side { kLeft, kRight, kBoth };

/// str.strip(): whitespace of IsSpace.
std::string_view StripSpace(std::string_view text, Side side);

/// str.strip(chars): any character of the set `chars`.
std::string_view StripChars(std::string_view text, std::string_view chars, Side side);

}  // namespace fluvial::jinja
