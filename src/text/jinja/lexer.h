// SPDX-License-Identifier: Apache-2.0
// Template text to tokens, with the whitespace rules of trim_blocks and lstrip_blocks (the environment of chat
// templates): the newline after a block tag goes, blanks before a block tag that starts its line go, `-` and `+` signs
// override both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace fluvial::jinja {

enum class Tok : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  Tok kind = Tok::kEnd;
  uint32_t offset = 0;  ///< byte offset in the normalised source
  std::string text;     ///< data, name, unescaped string, or the operator's characters
  Int integer = 0;
  double number = 0;
};

/// CR and CRLF become LF; one LF at the end of the source is dropped.
std::string NormalizeSource(std::string_view source);

/// Tokens of a normalised source, the last one kEnd. Throws JinjaError with its position set.
std::vector<Token> Tokenize(const std::string& source);

/// Fails with the line and column of byte `offset`.
[[noreturn]] void FailAt(const std::string& source, size_t offset, ErrorKind kind, std::string message);

}  // namespace fluvial::jinja
