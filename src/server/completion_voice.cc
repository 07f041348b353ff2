// SPDX-License-Identifier: Apache-2.0
// The wording of /v1/completions.
#include <algorithm>
#include <cmath>
#include <utility>

#include "server/voice.h"
#include "text/utf8.h"

namespace fluvial::server {
namespace {

int64_t Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// As OpenAI writes tokens that are not text, so that different ones keep different keys in top_logprobs.
std::string TokenKey(const text::Tokenizer& tokenizer, int32_t id, bool as_id) {
  const std::string_view bytes = tokenizer.TokenBytes(id);
  if (as_id || text::IsValidUtf8(bytes)) return TokenText(tokenizer, id, as_id);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHex[b >> 4];
    out += kHex[b & 15];
  }
  return out;
}

class CompletionVoice final : public Voice {
 public:
  CompletionVoice(const text::Tokenizer& tokenizer, const VoiceOptions& options, std::string echo)
      : tokenizer_(tokenizer), options_(options), text_(std::move(echo)), echoes_(!text_.empty()) {}

  void AddPrompt(const std::vector<Token>& tokens) override {
    if (options_.prompt_logprobs) prompt_ = PromptLogprobs(tokens);
    if (!options_.logprobs || !echoes_) return;
    first_unknown_ = !tokens.empty();
    tokens_.insert(tokens_.begin(), tokens.begin(), tokens.end());
  }

  void Add(Choice::Delta delta) override {
    text_ += delta.text;
    if (options_.logprobs) {
      for (Token& token : delta.tokens) tokens_.push_back(std::move(token));
    }
  }

  void End(const std::string& reason, const Json& stop_reason) override {
    reason_ = reason;
    stop_reason_ = stop_reason;
    ended_ = true;
  }

  std::vector<Json> TakeChunks() override {
    if (text_.empty() && tokens_.empty() && !ended_) return {};
    return {Entry()};
  }

  Json Whole() override { return Entry(); }

 private:
  Json Entry() {
    Json entry;
    entry["index"] = options_.index;
    entry["text"] = std::exchange(text_, {});
    entry["logprobs"] = options_.logprobs ? Logprobs() : Json();
    entry["finish_reason"] = ended_ ? Json(reason_) : Json();
    entry["stop_reason"] = stop_reason_;
    if (options_.prompt_logprobs) entry["prompt_logprobs"] = std::exchange(prompt_, Json());
    return entry;
  }

  /// vLLM's field: a list with null for the first token, then id -> {logprob, rank, decoded_token}.
  Json PromptLogprobs(const std::vector<Token>& tokens) const {
    Json out = Json::array();
    const auto item = [&](int32_t id, float logprob, Json rank) {
      Json entry;
      entry["logprob"] = FiniteLogprob(logprob);
      entry["rank"] = std::move(rank);
      entry["decoded_token"] = TokenText(tokenizer_, id, false);
      return entry;
    };
    for (const Token& token : tokens) {
      if (out.empty()) {
        out.push_back(Json());
        continue;
      }
      Json entries = Json::object();
      entries[std::to_string(token.id)] = item(token.id, token.logprob, Json());
      for (size_t i = 0; i < token.top.size(); ++i) {
        const auto& [id, logprob] = token.top[i];
        entries[std::to_string(id)] = item(id, logprob, i + 1);
      }
      out.push_back(std::move(entries));
    }
    return out;
  }

  Json Logprobs() {
    Json tokens = Json::array(), chosen = Json::array(), top = Json::array(), offsets = Json::array();
    for (const Token& token : std::exchange(tokens_, {})) {
      const std::string key = TokenKey(tokenizer_, token.id, options_.token_ids);
      tokens.push_back(key);
      const bool unknown = std::exchange(first_unknown_, false);  // nothing comes before a prompt's first token
      chosen.push_back(unknown ? Json() : Json(FiniteLogprob(token.logprob)));
      offsets.push_back(offset_);
      offset_ += Characters(TokenText(tokenizer_, token.id, false));
      Json alternatives = Json::object();
      for (const auto& [id, logprob] : token.top) {
        alternatives[TokenKey(tokenizer_, id, options_.token_ids)] = FiniteLogprob(logprob);
      }
      const bool list = options_.top_logprobs > 0 && !unknown;
      if (list) alternatives[key] = FiniteLogprob(token.logprob);  // even when unlikely
      top.push_back(list ? std::move(alternatives) : Json());
    }
    Json out;
    out["text_offset"] = std::move(offsets);
    out["token_logprobs"] = std::move(chosen);
    out["tokens"] = std::move(tokens);
    out["top_logprobs"] = std::move(top);
    return out;
  }

  const text::Tokenizer& tokenizer_;
  const VoiceOptions options_;
  std::string text_;
  std::vector<Token> tokens_;
  Json prompt_;
  int64_t offset_ = 0;  // characters before the next token
  const bool echoes_;
  bool first_unknown_ = false;
  std::string reason_;
  Json stop_reason_;
  bool ended_ = false;
};

}  // namespace

double FiniteLogprob(float logprob) { return std::isinf(logprob) ? -9999.0 : static_cast<double>(logprob); }

std::string TokenText(const text::Tokenizer& tokenizer, int32_t id, bool as_id) {
  if (as_id) return "token_id:" + std::to_string(id);
  return text::ReplaceInvalidUtf8(tokenizer.TokenBytes(id));
}

std::unique_ptr<Voice> MakeCompletionVoice(const text::Tokenizer& tokenizer, const VoiceOptions& options,
                                           std::string echo) {
  return std::make_unique<CompletionVoice>(tokenizer, options, std::move(echo));
}

}  // namespace fluvial::server
