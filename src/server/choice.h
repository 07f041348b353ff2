// SPDX-License-Identifier: Apache-2.0
// Choice: one answer of a request - tokens in, text out, with stop strings taken out whatever the tokens cut them into.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fluvial/engine.h"
#include "server/fields.h"
#include "text/stop_text.h"
#include "text/stream_decoder.h"

namespace fluvial::server {

/// How tokens become text; one for all choices of a request.
struct OutputOptions {
  std::vector<std::string> stop;
  bool include_stop = false;  ///< include_stop_str_in_output
  bool skip_special_tokens = true;
  std::vector<int32_t> model_stops;  ///< end tokens of the model, empty with ignore_eos: never part of the text
  std::vector<int32_t> stop_ids;     ///< the request's: part of the text only with include_stop
};

/// Used by the stepping thread alone.
class Choice {
 public:
  using Clock = std::chrono::steady_clock;

  /// Danger: `options` must outlive this.
  Choice(const text::Tokenizer& tokenizer, const OutputOptions& options);

  /// The engine's token callback.
  Next Push(const Token& token);
  /// The engine's done callback: what was held back comes out. `reason()` is then set.
  void Finish(const Completion& completion);

  /// Text and tokens since the last Take. Tokens of text that is still held back are handed out with it.
  struct Delta {
    std::string text;
    std::vector<Token> tokens;
  };
  Delta Take();
  /// There is text to show.
  bool HasText() const { return !text_.empty(); }

  const std::string& reason() const { return reason_; }  ///< "stop", "length"; empty before the end
  const Json& stop_reason() const { return stop_reason_; }
  int64_t tokens() const { return count_; }

 private:
  static bool Contains(const std::vector<int32_t>& ids, int32_t id);

  const OutputOptions& options_;
  text::StreamDecoder decoder_;
  text::StopText stop_;
  std::string text_;
  std::vector<Token> tokens_;
  std::string reason_;
  Json stop_reason_;
  int64_t count_ = 0;
};

}  // namespace fluvial::server
