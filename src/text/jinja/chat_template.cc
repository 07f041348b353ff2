// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/chat_template.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace fluvial::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;
// Most specific first; the first that is there and not null is the reasoning.
constexpr const char* kReasoningKeys[] = {"reasoning_content", "thinking", "reasoning"};

/// nullopt when there is no such file.
Result<std::optional<std::string>> ReadIfThere(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::optional<std::string>();
  if (fs::file_size(path, error) > kMaxFileBytes) {
    return Status::UnusableModel(path.string() +
                                 " is larger than 64 MiB; it is not a chat template or its configuration");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad() || !file.is_open())
    return Status::UnusableModel("cannot read " + path.string() + "; check its permissions");
  return std::optional<std::string>(std::move(text));
}

/// Null when there is no such file.
Result<Json> ReadJson(const fs::path& path) {
  FLUVIAL_ASSIGN_OR_RETURN(std::optional<std::string> text, ReadIfThere(path));
  if (!text) return Json();
  Json json = Json::parse(*text, nullptr, false);
  if (!json.is_object())
    return Status::UnusableModel(path.string() + " is not a JSON object; download the model again");
  return json;
}

using Sources = std::vector<std::pair<std::string, std::string>>;  // name, template text

Status AddFromJson(const Json& json, const fs::path& path, Sources* sources) {
  auto it = json.find("chat_template");
  if (it == json.end() || it->is_null()) return Status::Ok();
  if (it->is_string()) {
    sources->emplace_back("default", it->get<std::string>());
    return Status::Ok();
  }
  if (it->is_array()) {
    for (const Json& entry : *it) {
      bool usable = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                    entry.contains("template") && entry["template"].is_string();
      if (!usable)
        return Status::UnusableModel("chat_template of " + path.string() + " has an entry without name or template");
      sources->emplace_back(entry["name"].get<std::string>(), entry["template"].get<std::string>());
    }
    return Status::Ok();
  }
  return Status::UnusableModel("chat_template of " + path.string() + " is neither text nor a list");
}

// A special token is text or an object with its text under `content`.
void AddSpecialTokens(const Json& json, std::vector<std::pair<std::string, std::string>>* tokens) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    if (!key.ends_with("_token")) continue;
    const Json* text = &value;
    if (value.is_object() && value.contains("content")) text = &value["content"];
    if (!text->is_string()) continue;
    bool known =
        std::any_of(tokens->begin(), tokens->end(), [&k = key](const auto& token) { return token.first == k; });
    if (!known) tokens->emplace_back(key, text->get<std::string>());
  }
}

Json WithReasoningNames(const Json& message) {
  const Json* reasoning = nullptr;
  for (const char* key : kReasoningKeys) {
    auto it = message.find(key);
    if (it != message.end() && !it->is_null()) {
      reasoning = &*it;
      break;
    }
  }
  if (reasoning == nullptr) return message;
  Json out = Json::object();
  out["thinking"] = *reasoning;
  for (const auto& [key, value] : message.items()) out[key] = value;
  out["reasoning_content"] = *reasoning;
  return out;
}

void ParseToolArguments(Json* message) {
  auto calls = message->find("tool_calls");
  if (calls == message->end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    Json* function = call.is_object() && call.contains("function") ? &call["function"] : &call;
    if (!function->is_object()) continue;
    auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    const auto& text = arguments->get_ref<const std::string&>();
    Json parsed = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
    if (parsed.is_object()) *arguments = std::move(parsed);
  }
}

Result<Json> Variables(const ChatRequest& request, const Sources& folder_tokens) {
  if (!request.messages.is_array()) return Status::InvalidArgument("messages must be a JSON array of objects");
  auto list_or_null = [](const Json& json) { return json.is_null() || json.is_array(); };
  if (!list_or_null(request.tools)) return Status::InvalidArgument("tools must be a JSON array or null");
  if (!list_or_null(request.documents)) return Status::InvalidArgument("documents must be a JSON array or null");
  if (!request.kwargs.is_null() && !request.kwargs.is_object()) {
    return Status::InvalidArgument("chat_template_kwargs must be a JSON object");
  }
  Json messages = Json::array();
  for (const Json& message : request.messages) {
    if (!message.is_object()) return Status::InvalidArgument("each message must be a JSON object with a role");
    Json converted = WithReasoningNames(message);
    if (request.parse_tool_arguments) ParseToolArguments(&converted);
    messages.push_back(std::move(converted));
  }
  Json variables = Json::object();
  for (const auto& [name, text] : folder_tokens) variables[name] = text;
  for (const auto& [name, text] : request.special_tokens) variables[name] = text;
  variables["messages"] = std::move(messages);
  variables["tools"] = request.tools;
  variables["documents"] = request.documents;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  if (request.kwargs.is_object()) {
    for (const auto& [name, value] : request.kwargs.items()) variables[name] = value;
  }
  return variables;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::FromText(std::string_view source) {
  ChatTemplate result;
  FLUVIAL_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  result.templates_.emplace("default", std::move(parsed));
  result.source_ = source;
  return result;
}

Result<ChatTemplate> ChatTemplate::Load(const std::string& model_dir) {
  try {
    fs::path dir(model_dir);
    std::error_code error;
    if (!fs::is_directory(dir, error)) return Status::UnusableModel("there is no model folder " + model_dir);
    Sources sources;
    ChatTemplate result;
    FLUVIAL_ASSIGN_OR_RETURN(std::optional<std::string> file, ReadIfThere(dir / "chat_template.jinja"));
    FLUVIAL_ASSIGN_OR_RETURN(Json config, ReadJson(dir / "tokenizer_config.json"));
    if (file) {
      result.origin_ = (dir / "chat_template.jinja").string();
      sources.emplace_back("default", std::move(*file));
    } else {
      FLUVIAL_ASSIGN_OR_RETURN(Json json, ReadJson(dir / "chat_template.json"));
      result.origin_ = (dir / "chat_template.json").string();
      FLUVIAL_RETURN_IF_ERROR(AddFromJson(json, result.origin_, &sources));
      if (sources.empty()) {
        result.origin_ = (dir / "tokenizer_config.json").string();
        FLUVIAL_RETURN_IF_ERROR(AddFromJson(config, result.origin_, &sources));
      }
    }
    if (fs::is_directory(dir / "additional_chat_templates", error)) {
      for (const auto& entry : fs::directory_iterator(dir / "additional_chat_templates", error)) {
        if (entry.path().extension() != ".jinja") continue;
        FLUVIAL_ASSIGN_OR_RETURN(std::optional<std::string> text, ReadIfThere(entry.path()));
        if (text) sources.emplace_back(entry.path().stem().string(), std::move(*text));
      }
    }
    if (sources.empty()) {
      return Status::UnusableModel(model_dir + " has no chat template; add chat_template.jinja or send raw prompts");
    }
    for (const auto& [name, text] : sources) {
      Result<jinja::Template> parsed = jinja::Template::Parse(text);
      if (!parsed.ok()) {
        return Status(parsed.status().code(),
                      "template '" + name + "' of " + result.origin_ + ": " + parsed.status().message());
      }
      result.templates_.emplace(name, std::move(*parsed));
      if (name == "default" || result.source_.empty()) result.source_ = text;
    }
    AddSpecialTokens(config, &result.special_tokens_);
    FLUVIAL_ASSIGN_OR_RETURN(Json tokens, ReadJson(dir / "special_tokens_map.json"));
    AddSpecialTokens(tokens, &result.special_tokens_);
    return result;
  } catch (const std::exception& error) {
    return Status::UnusableModel("reading the chat template of " + model_dir + " failed: " + error.what());
  }
}

Result<std::string> ChatTemplate::Apply(const ChatRequest& request, const jinja::RenderOptions& options) const {
  try {
    auto chosen = request.tools.is_array() ? templates_.find("tool_use") : templates_.end();
    if (chosen == templates_.end()) chosen = templates_.find("default");
    if (chosen == templates_.end() && templates_.size() == 1) chosen = templates_.begin();
    if (chosen == templates_.end()) {
      return Status::UnusableModel("the model has several chat templates and none is called 'default'");
    }
    FLUVIAL_ASSIGN_OR_RETURN(Json variables, Variables(request, special_tokens_));
    return chosen->second.Render(variables, options);
  } catch (const std::exception& error) {
    return Status::Failed(std::string("applying the chat template failed: ") + error.what());
  }
}

}  // namespace fluvial::text
