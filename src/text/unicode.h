// SPDX-License-Identifier: Apache-2.0
// The little of Unicode that the tokenizer needs outside regular expressions: normalisation forms and three
// character classes. utf8proc is seen by unicode.cc alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fluvial/status.h"

namespace fluvial::text {

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Appends the normal form of `text` (valid UTF-8) to `*out`. NFC is that of Hugging Face tokenizers, which knows no
/// marks younger than Unicode 10 or so; the other forms are utf8proc's. Fails only when memory runs out.
Status AppendNormalized(NormalForm form, std::string_view text, std::string* out);

/// True when NFC certainly leaves `text` (valid UTF-8) as it is. False says nothing. Cheap; meant to be asked first.
bool IsSurelyNfc(std::string_view text);

/// Unicode White_Space: what `\s` means to Oniguruma and to Rust's regex crate.
bool IsWhiteSpace(char32_t c);

/// Python's str.isspace(): White_Space plus U+001C to U+001F.
bool IsPythonSpace(char32_t c);

/// `\w` of Rust's regex crate: Alphabetic, marks, decimal digits, connector punctuation, join controls (UTS 18,
/// annex C).
bool IsWordCharacter(char32_t c);

}  // namespace fluvial::text
