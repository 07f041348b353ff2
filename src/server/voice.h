// SPDX-License-Identifier: Apache-2.0
// Voice: how an endpoint words one choice, streamed or whole. An entry is an element of `choices`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/choice.h"
#include "server/fields.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace fluvial::server {

class Voice {
 public:
  virtual ~Voice() = default;

  /// Log probabilities of the prompt's tokens (Completion::prompt_logprobs), before the first Add.
  virtual void AddPrompt(const std::vector<Token>& /*tokens*/) {}
  /// Takes what has become certain.
  virtual void Add(Choice::Delta delta) = 0;
  /// Nothing more comes. `reason`: "stop" or "length".
  virtual void End(const std::string& reason, const Json& stop_reason) = 0;

  /// Entries of stream chunks for what came since the last call; may be none. Exactly one over the whole stream has a
  /// finish_reason: the last one after End.
  virtual std::vector<Json> TakeChunks() = 0;
  /// The entry of a whole answer, after End.
  virtual Json Whole() = 0;
};

struct VoiceOptions {
  int64_t index = 0;
  bool logprobs = false;
  int32_t top_logprobs = 0;  ///< how many alternatives each token lists
  bool token_ids = false;
  bool prompt_logprobs = false;  ///< completions: list them in a field of their own
};

/// `echo`: the prompt's text, to come first; empty for none. Log probabilities then begin with the prompt's. Danger:
/// `tokenizer` must outlive the voice.
std::unique_ptr<Voice> MakeCompletionVoice(const text::Tokenizer& tokenizer, const VoiceOptions& options,
                                           std::string echo);

/// `format`: as the prompt left it (starts_in_reasoning), kNone where no tools were offered.
std::unique_ptr<Voice> MakeChatVoice(const text::Tokenizer& tokenizer, const VoiceOptions& options,
                                     const text::OutputFormat& format, text::ToolSchemas schemas);

/// Log probabilities as JSON can hold them: minus infinity becomes -9999.
double FiniteLogprob(float logprob);

/// A token's text; bytes that are no character come out as U+FFFD.
std::string TokenText(const text::Tokenizer& tokenizer, int32_t id, bool as_id);

}  // namespace fluvial::server
