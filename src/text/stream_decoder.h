// SPDX-License-Identifier: Apache-2.0
// StreamDecoder: text of token ids as they arrive. Never yields part of a character, and all it yields, joined,
// is exactly Tokenizer::Decode of all ids.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace fluvial::text {

class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, const DecodeOptions& options = {})
      : tokenizer_(std::move(tokenizer)), options_(options) {}

  /// The text that `id` completes; may be empty. Bytes that cannot become a character come out as U+FFFD at once,
  /// those that still can are held back (at most three).
  std::string Push(TokenId id);

  /// End of the stream: what was held back comes out as one U+FFFD. The decoder is then as new.
  std::string Finish();

  bool holding() const { return !held_.empty(); }

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string held_;
};

}  // namespace fluvial::text
