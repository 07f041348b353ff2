// SPDX-License-Identifier: Apache-2.0
// Where a prompt comes from - plain text, a conversation, or token ids - and how it becomes token ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fluvial/status.h"
#include "fluvial/vision.h"
#include "text/tokenizer.h"
#include "vision/chat_media.h"

namespace CLI {
class App;
}

namespace fluvial::tools {

struct PromptOptions {
  std::optional<std::string> prompt;  ///< --prompt: plain text, or one user message with --chat
  bool chat = false;
  std::optional<std::string> messages;  ///< --messages: a file with a conversation
  std::optional<std::string> ids;       ///< token ids, comma-separated
  bool media = false;                   ///< read the images and videos of conversations, and of the two lists
  std::vector<std::string> images;      ///< --image
  std::vector<std::string> videos;      ///< --video
  vision::MediaPolicy media_policy;
};

struct Prompt {
  std::string text;  ///< as tokenized (a conversation: as rendered); empty when ids were given
  std::vector<int32_t> ids;
  std::vector<VisionInput> vision;  ///< in the order of their placeholders; only with PromptOptions::media
};

/// Adds --prompt, --chat, --messages and `ids_option` ("--prompt-ids", "--ids").
void AddPromptOptions(CLI::App& app, PromptOptions& options, const std::string& ids_option);

/// Adds --image, --video and how they are read.
void AddMediaOptions(CLI::App& app, PromptOptions& options);

/// That exactly one of them is given.
Status CheckPromptOptions(const PromptOptions& options, const std::string& ids_option);

/// Ids of the prompt, rendered with the chat template of the folder `model` where it is a conversation. `tokenizer` may
/// be null when ids are given. Images and videos go with a user message made of --prompt, or with ids or a --prompt
/// that hold the placeholders themselves. kInvalidArgument for a wrong request, kUnusableModel for a wrong file.
Result<Prompt> ReadPrompt(const PromptOptions& options, const std::string& model, const text::Tokenizer* tokenizer,
                          const std::string& ids_option);

}  // namespace fluvial::tools
