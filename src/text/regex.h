// SPDX-License-Identifier: Apache-2.0
// Regex: a compiled pattern and the spans it matches. PCRE2 is seen by regex.cc alone. Patterns are PCRE2's;
// those of model files pass text/regex_dialect.h first.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fluvial/status.h"

namespace fluvial::text {

/// A half-open range of bytes.
struct Span {
  size_t begin;
  size_t end;
  bool operator==(const Span&) const = default;
};

class Regex {
 public:
  /// Working memory of one thread; reusable with any Regex.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    Scratch& operator=(Scratch&&) noexcept;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// Unicode mode. Refused: what PCRE2 refuses, and a pattern that can match the empty string.
  static Result<Regex> Compile(std::string_view pattern);

  /// The next matches at or after `*offset` of `text` (valid UTF-8), at most spans.size(); fewer means that there
  /// are no more. `*offset` moves behind the last one found. kResource when matching outgrows its memory.
  Result<size_t> Next(std::string_view text, size_t* offset, std::span<Span> spans, Scratch* scratch) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace fluvial::text
