// SPDX-License-Identifier: Apache-2.0
// The wording of /v1/chat/completions: reasoning, content and tool calls apart.
#include <random>
#include <utility>

#include "server/voice.h"

namespace fluvial::server {
namespace {

/// Formats other than Kimi's name no call, but clients answer by id.
std::string MakeCallId() {
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local std::random_device device;
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += kLetters[device() % (sizeof(kLetters) - 1)];
  return id;
}

class ChatVoice final : public Voice {
 public:
  ChatVoice(const text::Tokenizer& tokenizer, const VoiceOptions& options, const text::OutputFormat& format,
            text::ToolSchemas schemas)
      : tokenizer_(tokenizer), options_(options), parser_(format, std::move(schemas)) {}

  void Add(Choice::Delta delta) override {
    Take(parser_.Push(delta.text));
    if (options_.logprobs) {
      for (Token& token : delta.tokens) tokens_.push_back(std::move(token));
    }
  }

  void End(const std::string& reason, const Json& stop_reason) override {
    Take(parser_.Finish());
    // A call that the length limit cut off came out as content.
    reason_ = calls_seen_ > 0 && reason == "stop" ? "tool_calls" : reason;
    stop_reason_ = stop_reason;
    ended_ = true;
  }

  std::vector<Json> TakeChunks() override {
    std::vector<Json> out;
    const bool any = !reasoning_.empty() || !content_.empty() || !calls_.empty() || !tokens_.empty();
    if (!begun_ && (any || ended_)) {
      begun_ = true;
      Json delta;
      delta["role"] = "assistant";
      delta["content"] = "";
      out.push_back(Chunk(std::move(delta), Json(), Json()));
    }
    if (any) {
      Json delta = Json::object();
      if (!reasoning_.empty()) delta["reasoning_content"] = std::exchange(reasoning_, {});
      if (!content_.empty()) delta["content"] = std::exchange(content_, {});
      if (!calls_.empty()) delta["tool_calls"] = std::exchange(calls_, Json::array());
      out.push_back(Chunk(std::move(delta), options_.logprobs ? Logprobs() : Json(), Json()));
    }
    if (ended_) out.push_back(Chunk(Json::object(), Json(), reason_));
    return out;
  }

  Json Whole() override {
    Json message;
    message["role"] = "assistant";
    message["content"] = content_.empty() && calls_seen_ > 0 ? Json() : Json(content_);
    message["refusal"] = Json();
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    if (calls_seen_ > 0) {
      for (Json& call : calls_) call.erase("index");  // only chunks number their calls
      message["tool_calls"] = calls_;
    }
    Json entry;
    entry["index"] = options_.index;
    entry["message"] = std::move(message);
    entry["logprobs"] = options_.logprobs ? Logprobs() : Json();
    entry["finish_reason"] = reason_;
    entry["stop_reason"] = stop_reason_;
    return entry;
  }

 private:
  void Take(text::OutputDelta delta) {
    reasoning_ += delta.reasoning;
    content_ += delta.content;
    for (text::ToolCall& call : delta.tool_calls) {
      Json function;
      function["name"] = std::move(call.name);
      function["arguments"] = std::move(call.arguments);
      Json entry;
      entry["index"] = calls_seen_++;
      entry["id"] = call.id.empty() ? MakeCallId() : std::move(call.id);
      entry["type"] = "function";
      entry["function"] = std::move(function);
      calls_.push_back(std::move(entry));
    }
  }

  Json Chunk(Json delta, Json logprobs, Json reason) const {
    Json entry;
    entry["index"] = options_.index;
    entry["delta"] = std::move(delta);
    entry["logprobs"] = std::move(logprobs);
    const bool last = !reason.is_null();
    entry["finish_reason"] = std::move(reason);
    if (last) entry["stop_reason"] = stop_reason_;
    return entry;
  }

  Json Item(int32_t id, float logprob) const {
    Json item;
    item["token"] = TokenText(tokenizer_, id, options_.token_ids);
    item["logprob"] = FiniteLogprob(logprob);
    Json bytes = Json::array();
    for (const char c : tokenizer_.TokenBytes(id)) bytes.push_back(static_cast<unsigned char>(c));
    item["bytes"] = std::move(bytes);
    return item;
  }

  Json Logprobs() {
    Json content = Json::array();
    for (const Token& token : std::exchange(tokens_, {})) {
      Json item = Item(token.id, token.logprob);
      Json top = Json::array();
      for (const auto& [id, logprob] : token.top) top.push_back(Item(id, logprob));
      item["top_logprobs"] = std::move(top);
      content.push_back(std::move(item));
    }
    Json out;
    out["content"] = std::move(content);
    out["refusal"] = Json();
    return out;
  }

  const text::Tokenizer& tokenizer_;
  const VoiceOptions options_;
  text::OutputParser parser_;
  std::string reasoning_, content_;
  Json calls_ = Json::array();
  int64_t calls_seen_ = 0;
  std::vector<Token> tokens_;
  std::string reason_;
  Json stop_reason_;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<Voice> MakeChatVoice(const text::Tokenizer& tokenizer, const VoiceOptions& options,
                                     const text::OutputFormat& format, text::ToolSchemas schemas) {
  return std::make_unique<ChatVoice>(tokenizer, options, format, std::move(schemas));
}

}  // namespace fluvial::server
