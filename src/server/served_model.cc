// SPDX-License-Identifier: Apache-2.0
#include "server/served_model.h"

#include <algorithm>
#include <ctime>

#include "base/log.h"
#include "weights/generation_config.h"

namespace fluvial::server {
namespace {

// Noncharacters: no text holds them, and if one does they are escaped like the rest.
constexpr std::string_view kOpen = "\xEF\xB7\x90";   // U+FDD0
constexpr std::string_view kClose = "\xEF\xB7\x91";  // U+FDD1

Result<SamplingParams> Defaults(const std::string& path) {
  FLUVIAL_ASSIGN_OR_RETURN(const weights::GenerationConfig g, weights::ReadGenerationConfig(path));
  SamplingParams p;
  p.temperature = static_cast<float>(g.temperature.value_or(1.0));
  if (g.do_sample.has_value() && !*g.do_sample) p.temperature = 0;
  p.top_p = static_cast<float>(g.top_p.value_or(1.0));
  p.top_k = static_cast<int32_t>(g.top_k.value_or(0));
  p.min_p = static_cast<float>(g.min_p.value_or(0.0));
  p.repetition_penalty = static_cast<float>(g.repetition_penalty.value_or(1.0));
  return p;
}

std::vector<std::string> SpecialLiterals(const text::Tokenizer& tokenizer) {
  std::vector<std::string> out;
  for (size_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto token = static_cast<text::TokenId>(id);
    if (tokenizer.IsSpecial(token)) out.emplace_back(tokenizer.TokenBytes(token));
  }
  std::erase_if(out, [](const std::string& s) { return s.empty(); });
  // Longest first, as the tokenizer matches.
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return out;
}

/// `text` with literal number i written as kOpen i kClose, and a kOpen of the client's as kOpen n kClose.
std::string Escape(std::string_view text, const std::vector<std::string>& literals) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t i = 0;
    for (; i < literals.size(); ++i) {
      if (text.substr(at).starts_with(literals[i])) break;
    }
    if (i == literals.size() && !text.substr(at).starts_with(kOpen)) {
      out += text[at++];
      continue;
    }
    out += kOpen;
    out += std::to_string(i);
    out += kClose;
    at += i == literals.size() ? kOpen.size() : literals[i].size();
  }
  return out;
}

/// Whether Escape would change anything: most conversations hold no literal, and are then left alone.
bool NeedsEscape(std::string_view text, const std::vector<std::string>& literals) {
  if (text.find(kOpen) != std::string_view::npos) return true;
  return std::any_of(literals.begin(), literals.end(),
                     [&](const std::string& l) { return text.find(l) != std::string_view::npos; });
}

void EscapeAll(Json* json, const std::vector<std::string>& literals) {
  if (json->is_string()) {
    const auto& text = json->get_ref<const std::string&>();
    if (NeedsEscape(text, literals)) *json = Escape(text, literals);
  } else if (json->is_structured()) {
    for (auto& item : *json) EscapeAll(&item, literals);
  }
}

/// Tokenizes rendered text whose escaped literals become plain text; `*text` gets what was meant.
Result<std::vector<int32_t>> EncodeEscaped(const ServedModel& model, std::string_view rendered, std::string* text) {
  std::vector<int32_t> ids;
  const auto append = [&](std::string_view piece, bool parse_special) -> Status {
    if (piece.empty()) return Status::Ok();
    *text += piece;
    FLUVIAL_ASSIGN_OR_RETURN(
        const std::vector<int32_t> more,
        model.tokenizer.Encode(piece, {.parse_special = parse_special, .add_special_tokens = false}));
    ids.insert(ids.end(), more.begin(), more.end());
    return Status::Ok();
  };
  while (true) {
    const size_t open = rendered.find(kOpen);
    FLUVIAL_RETURN_IF_ERROR(append(rendered.substr(0, open), true));
    if (open == std::string_view::npos) return ids;
    const size_t digits = open + kOpen.size();
    const size_t close = rendered.find(kClose, digits);
    const std::string number(rendered.substr(digits, close == std::string_view::npos ? 0 : close - digits));
    // A template that cuts text apart could leave a broken mark behind.
    if (number.empty() || number.size() > 9 || number.find_first_not_of("0123456789") != std::string::npos) {
      return Status::InvalidArgument(
          "the messages hold the text of a special token where the template cuts it apart: "
          "leave it out");
    }
    const size_t i = std::stoul(number);
    FLUVIAL_RETURN_IF_ERROR(append(i < model.special_literals.size() ? model.special_literals[i] : kOpen, false));
    rendered.remove_prefix(close + kClose.size());
  }
}

}  // namespace

Result<ServedModel> ServedModel::Load(const std::string& path, std::vector<std::string> names, const ModelInfo& info,
                                      bool use_generation_config) {
  FLUVIAL_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::Load(path));
  ServedModel model{.path = path, .names = std::move(names), .tokenizer = std::move(tokenizer), .info = info};
  if (model.names.empty()) model.names.push_back(path);
  Result<text::ChatTemplate> chat = text::ChatTemplate::Load(path);
  if (chat.ok()) {
    model.format = text::DetectOutputFormat(chat->source());
    model.chat = std::move(chat).value();
  } else {
    model.no_chat = chat.status().message();
    LogWarning("chat is not available: " + model.no_chat);
  }
  if (use_generation_config) {
    FLUVIAL_ASSIGN_OR_RETURN(model.defaults, Defaults(path));
    const SamplingParams& d = model.defaults;
    LogInfo("defaults of requests from generation_config.json: temperature " + std::to_string(d.temperature) +
            ", top_p " + std::to_string(d.top_p) + ", top_k " + std::to_string(d.top_k) + ", min_p " +
            std::to_string(d.min_p) + ", repetition_penalty " + std::to_string(d.repetition_penalty));
  }
  model.created = static_cast<int64_t>(std::time(nullptr));
  model.special_literals = SpecialLiterals(model.tokenizer);
  return model;
}

bool ServedModel::HasName(const std::string& name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<PromptText> RenderChat(const ServedModel& model, text::ChatRequest request,
                              const std::vector<std::string>& images, Request* engine) {
  if (!model.chat.has_value()) return Status::InvalidArgument("this model cannot chat: " + model.no_chat);
  EscapeAll(&request.messages, model.special_literals);
  EscapeAll(&request.tools, model.special_literals);
  EscapeAll(&request.documents, model.special_literals);
  request.parse_tool_arguments = true;
  Result<std::string> rendered = model.chat->Apply(request);
  if (!rendered.ok()) {
    return Status::InvalidArgument("the chat template does not take these messages: " + rendered.status().message());
  }
  if (!images.empty()) FLUVIAL_RETURN_IF_ERROR(model.images->Attach(images, &*rendered, engine));
  PromptText prompt;
  FLUVIAL_ASSIGN_OR_RETURN(prompt.ids, EncodeEscaped(model, *rendered, &prompt.text));
  if (prompt.ids.empty()) {
    return Status::InvalidArgument("the messages render to 0 tokens: write a message that the chat template shows");
  }
  return prompt;
}

}  // namespace fluvial::server
