// SPDX-License-Identifier: Apache-2.0
// From the patterns of model files to PCRE2's.
//
// Those patterns were written for Oniguruma (Hugging Face tokenizers) or Rust's regex (tiktoken). PCRE2 accepts
// nearly all of them and means something else by some: `&&` is two ampersands, `\p{Han}` takes in punctuation,
// `\s` has U+180E, classes are those of an older Unicode. So a pattern is rebuilt construct by construct, and
// a construct whose meaning was not checked is refused by name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fluvial/status.h"

namespace fluvial::text {

/// A pattern that PCRE2 cannot express directly, and a hand-checked equal in the common dialect.
struct KnownPattern {
  std::string_view name;
  std::string_view pattern;
  std::string_view equal;
};

/// Looked up by exact text before anything else.
std::span<const KnownPattern> KnownPatterns();

/// tokenization_kimi.py's pattern; the same in all models with a tiktoken.model.
std::string_view KimiPattern();

/// GPT-2's pattern, which a ByteLevel pre-tokenizer with use_regex applies.
std::string_view Gpt2Pattern();

/// The PCRE2 form (for Unicode mode), or kUnusableModel naming the construct that is not known.
Result<std::string> ToPcre2(std::string_view pattern);

/// PCRE2 form of a literal text.
std::string LiteralToPcre2(std::string_view text);

}  // namespace fluvial::text
