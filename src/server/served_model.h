// SPDX-License-Identifier: Apache-2.0
// ServedModel: what the server knows of its model beside the engine - names, tokenizer, chat template, defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fluvial/engine.h"
#include "server/fields.h"
#include "server/media.h"
#include "text/jinja/chat_template.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace fluvial::server {

struct ServedModel {
  std::string path;
  std::vector<std::string> names;  ///< what `model` of a request may say; the first is what answers say
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat = {};
  std::string no_chat = {};  ///< why there is no chat template
  text::OutputFormat format = {};
  SamplingParams defaults = {};
  std::shared_ptr<const ImageInput> images = {};  ///< null: the model takes text only
  ModelInfo info = {};
  int64_t created = 0;                             ///< seconds since 1970
  std::vector<std::string> special_literals = {};  ///< texts that the tokenizer would take for special tokens

  /// Reads tokenizer, template and generation_config.json of the folder `path`. `use_generation_config`: its sampling
  /// values are the defaults of requests; logged, because they change answers.
  static Result<ServedModel> Load(const std::string& path, std::vector<std::string> names, const ModelInfo& info,
                                  bool use_generation_config);

  bool HasName(const std::string& name) const;
};

struct PromptText {
  std::string text;
  std::vector<int32_t> ids;
};

/// Renders a conversation with the model's template and tokenizes it. `images`: the files of its images, in order,
/// whose pixels `engine` receives; only for models that take images. Text of the client that looks like a special token
/// stays text: a user cannot forge a turn. kInvalidArgument when there is no template, when the template does not take
/// the messages, or when nothing comes out.
Result<PromptText> RenderChat(const ServedModel& model, text::ChatRequest request,
                              const std::vector<std::string>& images = {}, Request* engine = nullptr);

}  // namespace fluvial::server
