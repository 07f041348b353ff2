// SPDX-License-Identifier: Apache-2.0
// The chat template of a model folder: finding it, and turning a conversation into prompt text exactly as
// transformers' apply_chat_template(tokenize=False) does.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "fluvial/status.h"
#include "text/jinja/template.h"

namespace fluvial::text {

/// One rendering. Key order of tool schemas reaches the prompt, hence ordered_json.
struct ChatRequest {
  nlohmann::ordered_json messages;    ///< array of objects with `role`
  nlohmann::ordered_json tools;       ///< array of schemas as the client sent them, or null
  nlohmann::ordered_json documents;   ///< array or null
  bool add_generation_prompt = true;  ///< ask for the start of the assistant's turn
  nlohmann::ordered_json kwargs;      ///< object or null: enable_thinking, add_vision_id, ...
  std::vector<std::pair<std::string, std::string>> special_tokens;  ///< bos_token, ...: over those of the folder

  /// Turns `arguments` of tool calls from JSON text, as OpenAI clients send it, into objects. Off: they stay as they
  /// are, as in transformers. Servers want it on: templates that write arguments one by one expect objects.
  bool parse_tool_arguments = false;
};

class ChatTemplate {
 public:
  /// Looks in `model_dir` for chat_template.jinja, then chat_template.json (key chat_template), then
  /// tokenizer_config.json (key chat_template: text, or a list of {name, template}); additional_chat_templates/*.jinja
  /// add named ones. Special tokens come from tokenizer_config.json and special_tokens_map.json. Errors:
  /// kUnusableModel, naming the file.
  static Result<ChatTemplate> Load(const std::string& model_dir);

  /// From template text alone.
  static Result<ChatTemplate> FromText(std::string_view source);

  /// Renders with the template `default`, or `tool_use` when there is one and tools are given. The template sees
  /// messages, tools, documents, add_generation_prompt, the special tokens and kwargs (which win). Reasoning given as
  /// `reasoning`, `thinking` or `reasoning_content` is readable under reasoning_content and thinking, as in
  /// transformers. Errors as for jinja::Template::Render; kInvalidArgument for a request of the wrong shape.
  Result<std::string> Apply(const ChatRequest& request, const jinja::RenderOptions& options = {}) const;

  /// Where the default template came from (a path), or "text".
  const std::string& origin() const { return origin_; }
  /// Text of the default template, where DetectOutputFormat finds what the model was taught to write.
  const std::string& source() const { return source_; }
  const std::vector<std::pair<std::string, std::string>>& special_tokens() const { return special_tokens_; }

 private:
  std::map<std::string, jinja::Template> templates_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  std::string origin_ = "text";
  std::string source_;
};

}  // namespace fluvial::text
