// SPDX-License-Identifier: Apache-2.0
#include "tools/prompt.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "text/jinja/chat_template.h"
#include "tools/command.h"

namespace fluvial::tools {
namespace {

using nlohmann::ordered_json;

Result<std::string> ReadFile(const std::string& path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream in(path, std::ios::binary);
  std::error_code ignored;
  if (!in || std::filesystem::is_directory(path, ignored)) {
    return Status::UnusableModel("--messages: '" + path + "' cannot be read");
  }
  text << in.rdbuf();
  return text.str();
}

/// The conversation of a file: a list of messages, or an object with `messages` and what goes with them.
Result<text::ChatRequest> ParseMessages(const std::string& json, const std::string& path) {
  const std::string file = "--messages: '" + path + "'";
  ordered_json root = ordered_json::parse(json, nullptr, false);
  if (root.is_discarded()) return Status::UnusableModel(file + " is not JSON");
  text::ChatRequest request;
  if (root.is_array()) {
    request.messages = std::move(root);
    return request;
  }
  if (!root.is_object() || !root.contains("messages")) {
    return Status::UnusableModel(file + ": write a list of messages, or an object with `messages`");
  }
  for (auto& [key, value] : root.items()) {
    if (key == "messages") {
      request.messages = std::move(value);
    } else if (key == "tools") {
      request.tools = std::move(value);
    } else if (key == "documents") {
      request.documents = std::move(value);
    } else if (key == "chat_template_kwargs") {
      request.kwargs = std::move(value);
    } else if (key == "add_generation_prompt") {
      if (!value.is_boolean()) return Status::UnusableModel(file + ": add_generation_prompt is true or false");
      request.add_generation_prompt = value.get<bool>();
    } else {
      return Status::UnusableModel(file + ": unknown key '" + key +
                                   "'; keys: messages, tools, documents, add_generation_prompt, chat_template_kwargs");
    }
  }
  if (!request.messages.is_array()) return Status::UnusableModel(file + ": `messages` is a list");
  return request;
}

bool HasTextArguments(const ordered_json& messages) {
  for (const ordered_json& m : messages) {
    if (!m.is_object() || !m.contains("tool_calls") || !m["tool_calls"].is_array()) continue;
    for (const ordered_json& call : m["tool_calls"]) {
      if (!call.is_object()) continue;
      const ordered_json& f = call.contains("function") ? call["function"] : call;
      if (f.is_object() && f.contains("arguments") && f["arguments"].is_string()) return true;
    }
  }
  return false;
}

Result<std::string> Render(text::ChatRequest request, const std::string& model) {
  FLUVIAL_ASSIGN_OR_RETURN(const text::ChatTemplate chat, text::ChatTemplate::Load(model));
  Result<std::string> rendered = chat.Apply(request);
  if (rendered.ok() || !HasTextArguments(request.messages)) return rendered;
  // OpenAI clients write the arguments of tool calls as JSON text; some templates want objects.
  request.parse_tool_arguments = true;
  Result<std::string> again = chat.Apply(request);
  return again.ok() ? again : rendered;
}

}  // namespace

void AddPromptOptions(CLI::App& app, PromptOptions& o, const std::string& ids_option) {
  app.add_option("--prompt", o.prompt, "Plain text, taken as it is")->type_name("TEXT");
  app.add_flag("--chat", o.chat, "Make --prompt one user message, rendered with the model's chat template");
  app.add_option("--messages", o.messages, "JSON file with a conversation (docs/cli.md); - reads standard input")
      ->type_name("FILE");
  app.add_option(ids_option, o.ids, "Token ids, separated by commas")->type_name("IDS");
}

Status CheckPromptOptions(const PromptOptions& o, const std::string& ids_option) {
  const int given = o.prompt.has_value() + o.messages.has_value() + o.ids.has_value();
  if (o.messages.has_value() && !(o.images.empty() && o.videos.empty())) {
    return Status::InvalidArgument(
        "--image and --video go with --prompt: with --messages, name the files in the messages");
  }
  const std::string options = "--prompt TEXT, --messages FILE or " + ids_option + " IDS";
  if (given == 0) return Status::InvalidArgument("there is no prompt: give " + options);
  if (given > 1) return Status::InvalidArgument("there are several prompts: give one of " + options);
  if (o.chat && !o.prompt.has_value()) return Status::InvalidArgument("--chat goes with --prompt TEXT");
  return Status::Ok();
}

void AddMediaOptions(CLI::App& app, PromptOptions& o) {
  const char* group = "Images and videos (models with a vision tower)";
  o.media = true;
  const auto list = [&](const char* name, std::vector<std::string>& to, const char* what) {
    app.add_option(name, to, what)
        ->type_name("PATH")
        ->group(group)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  list("--image", o.images, "PNG, JPEG, WebP, BMP or GIF before the text of --prompt; may be given several times");
  list("--video", o.videos, "Video file (needs ffmpeg) or folder of frames; may be given several times");
  app.add_option("--video-fps", o.media_policy.video_fps,
                 "Frames per second of --video; left out: what the file says, 24 for folders")
      ->type_name("X")
      ->group(group);
  app.add_flag("--ignore-exif", o.media_policy.decode.ignore_exif,
               "Leave pictures as they are stored (as transformers does) instead of turning them upright")
      ->group(group);
  app.add_option("--max-image-pixels", o.media_policy.decode.max_image_pixels, "Larger pictures are refused")
      ->type_name("N")
      ->group(group)
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

namespace {

std::vector<vision::MediaReference> ReferencesOf(const PromptOptions& o) {
  std::vector<vision::MediaReference> out;
  for (const std::string& f : o.images) out.push_back({VisionInput::Kind::kImage, f});
  for (const std::string& f : o.videos) out.push_back({VisionInput::Kind::kVideo, f});
  return out;
}

bool HoldsPlaceholders(const std::string& text) {
  return text.find(vision::kImagePad) != std::string::npos || text.find(vision::kVideoPad) != std::string::npos;
}

/// One user message: images, videos, text.
ordered_json UserMessage(const PromptOptions& o) {
  if (o.images.empty() && o.videos.empty()) {
    return ordered_json::array({{{"role", "user"}, {"content", *o.prompt}}});
  }
  ordered_json content = ordered_json::array();
  for (const std::string& f : o.images) content.push_back({{"type", "image"}, {"image", f}});
  for (const std::string& f : o.videos) content.push_back({{"type", "video"}, {"video", f}});
  content.push_back({{"type", "text"}, {"text", *o.prompt}});
  return ordered_json::array({{{"role", "user"}, {"content", std::move(content)}}});
}

}  // namespace

Result<Prompt> ReadPrompt(const PromptOptions& o, const std::string& model, const text::Tokenizer* tokenizer,
                          const std::string& ids_option) {
  Prompt out;
  std::vector<vision::MediaReference> references = ReferencesOf(o);
  text::EncodeOptions encode;
  if (o.ids.has_value()) {
    FLUVIAL_ASSIGN_OR_RETURN(out.ids, ParseIds(*o.ids, ids_option));
  } else if (o.prompt.has_value() && !o.chat && (references.empty() || HoldsPlaceholders(*o.prompt))) {
    out.text = *o.prompt;
  } else {
    text::ChatRequest request;
    if (o.prompt.has_value()) {
      request.messages = UserMessage(o);
    } else {
      FLUVIAL_ASSIGN_OR_RETURN(const std::string json, ReadFile(*o.messages));
      FLUVIAL_ASSIGN_OR_RETURN(request, ParseMessages(json, *o.messages));
      if (o.media) {
        FLUVIAL_ASSIGN_OR_RETURN(references, vision::MediaOf(request.messages));
      }
    }
    FLUVIAL_ASSIGN_OR_RETURN(out.text, Render(std::move(request), model));
    // The template writes its own special tokens: nothing is added, as in transformers.
    encode.add_special_tokens = false;
  }
  if (!references.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(const vision::Processor processor, vision::Processor::Load(model));
    FLUVIAL_ASSIGN_OR_RETURN(const std::vector<vision::Media> media,
                             vision::LoadMedia(processor, references, o.media_policy));
    std::vector<size_t> order(media.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (!o.ids.has_value()) {
      FLUVIAL_ASSIGN_OR_RETURN(out.text, processor.ExpandPrompt(out.text, media, order));
    }
    for (const size_t i : order) out.vision.push_back(media[i].input);
  }
  if (!o.ids.has_value()) {
    FLUVIAL_ASSIGN_OR_RETURN(out.ids, tokenizer->Encode(out.text, encode));
  }
  return out;
}

}  // namespace fluvial::tools
