// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions: a conversation to an engine request.
#include <algorithm>

#include "server/api.h"

namespace fluvial::server {
namespace {

constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxTools = 512;

/// What collects the images on the way through the messages.
struct Images {
  int64_t most = 0;
  std::vector<std::string>* urls;
};

/// {"type": "image_url", "image_url": {"url": URL, "detail": ...}}; some clients write the URL alone.
void ReadImage(const std::string& where, Json* part, Fields* fields, const Images& images) {
  const auto image = part->find("image_url");
  Json* url = nullptr;
  if (image != part->end() && image->is_string()) url = &*image;
  if (image != part->end() && image->is_object() && image->contains("url")) url = &(*image)["url"];
  if (url == nullptr || !url->is_string()) {
    return fields->Fail("messages", where + R"( needs "image_url": {"url": "data:image/png;base64,..."})");
  }
  if (static_cast<int64_t>(images.urls->size()) >= images.most) {
    return fields->Fail("messages",
                        "there are more than " + std::to_string(images.most) + " images: send fewer (--limit-images)");
  }
  images.urls->push_back(std::move(url->get_ref<std::string&>()));
  *url = "";  // megabytes of base64 are nothing for a template
}

/// Checks one content part.
void ReadPart(const ServedModel& model, const std::string& where, Json* part, Fields* fields, const Images& images) {
  const auto type = part->is_object() ? part->find("type") : part->end();
  if (!part->is_object() || type == part->end() || !type->is_string()) {
    return fields->Fail("messages", where + " is " + Quote(*part) + ": a part is an object with a `type`");
  }
  const std::string kind = type->get<std::string>();
  if (kind == "text" || kind == "refusal") {
    const auto text = part->find(kind);
    if (text == part->end() || !text->is_string()) {
      fields->Fail("messages", where + " needs a string `" + kind + "`");
    }
    return;
  }
  const bool image = kind.find("image") != std::string::npos;
  if (image && kind == "image_url" && model.images != nullptr) return ReadImage(where, part, fields, images);
  if (image || kind.find("video") != std::string::npos) {
    return fields->Fail("messages", where + ": the model " + Quote(Json(model.names.front())) + " does not take " +
                                        (model.images != nullptr && image ? "parts of type " + kind + ": send image_url"
                                         : image                          ? "images: send text only"
                                                                          : "videos: leave them out"));
  }
  fields->Fail("messages", where + " has the type " + Quote(*type) + ": only text can be sent");
}

void ReadMessage(const ServedModel& model, size_t number, Json* message, Fields* fields, const Images& images) {
  const std::string where = "messages[" + std::to_string(number) + "]";
  const auto role = message->is_object() ? message->find("role") : message->end();
  if (!message->is_object() || role == message->end() || !role->is_string()) {
    return fields->Fail("messages", where + " is " + Quote(*message) + ": a message is an object with a `role`");
  }
  if (*role == "developer") *role = "system";  // OpenAI's newer name; templates know the older one
  const std::string name = role->get<std::string>();
  constexpr const char* kRoles[] = {"system", "user", "assistant", "tool", "function"};
  if (std::find(std::begin(kRoles), std::end(kRoles), name) == std::end(kRoles)) {
    return fields->Fail("messages", where + ".role is " + Quote(*role) + ": use system, user, assistant or tool");
  }
  const auto content = message->find("content");
  if (content == message->end() || content->is_null()) {
    if (name == "assistant") {
      if (content == message->end()) (*message)["content"] = Json();  // templates ask for it
      return;
    }
    return fields->Fail("messages", where + " has no content: send a string or a list of parts");
  }
  if (content->is_string()) return;
  if (!content->is_array()) {
    return fields->Fail("messages", where + ".content is " + Quote(*content) + ": send a string or a list of parts");
  }
  for (size_t i = 0; i < content->size(); ++i) {
    ReadPart(model, where + ".content[" + std::to_string(i) + "]", &(*content)[i], fields, images);
  }
}

void ReadTools(Fields* fields, text::ChatRequest* chat, std::string* tools) {
  const Json* list = fields->List("tools");
  const Json* choice = fields->Take("tool_choice");
  bool parallel = true;  // the model decides; nothing forbids it several calls
  fields->Bool("parallel_tool_calls", &parallel);
  fields->Refuse("functions", "use tools");
  fields->Refuse("function_call", "use tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none") {
    const bool known = *choice == "required" || choice->is_object();
    return fields->Fail(
        "tool_choice", "tool_choice is " + Quote(*choice) + ": " +
                           (known ? "forcing a call needs a grammar library, which this build has not; use auto or none"
                                  : "it must be auto or none"));
  }
  if (list == nullptr || list->empty()) return;
  if (list->size() > kMaxTools) return fields->Fail("tools", "there are more than 512 tools: send fewer");
  if (choice != nullptr && *choice == "none") return;
  *tools = Dump(*list);
  const auto schemas = text::ToolSchemas::Parse(*tools);
  if (!schemas.ok()) return fields->Fail("tools", schemas.status().message());
  chat->tools = *list;
}

}  // namespace

void ReadChat(const ServedModel& model, int64_t max_images, Fields* fields, text::ChatRequest* chat, std::string* tools,
              std::vector<std::string>* images) {
  const Json* messages = fields->List("messages");
  if (messages == nullptr || messages->empty()) {
    return fields->Fail("messages", "there are no messages: send a list with at least one");
  }
  if (messages->size() > kMaxMessages) return fields->Fail("messages", "there are more than 4096 messages: send fewer");
  chat->messages = *messages;
  for (size_t i = 0; i < chat->messages.size(); ++i) {
    ReadMessage(model, i, &chat->messages[i], fields, {max_images, images});
  }
  ReadTools(fields, chat, tools);
  if (const Json* documents = fields->List("documents")) chat->documents = *documents;
  if (const Json* kwargs = fields->Object("chat_template_kwargs")) chat->kwargs = *kwargs;
  fields->Bool("add_generation_prompt", &chat->add_generation_prompt);
  std::string effort;
  fields->Text("reasoning_effort", &effort);
  if (!effort.empty()) {
    if (chat->kwargs.is_null()) chat->kwargs = Json::object();
    chat->kwargs["reasoning_effort"] = effort;
  }
  fields->Refuse("continue_final_message", "end with a user or tool message", false);
  fields->Refuse("chat_template", "the model's own template is used");
}

std::optional<ApiError> Api::PlanChat(const Json& body, GenerationPlan* plan) {
  Fields fields(body);
  GenerationRequest& request = plan->request;
  if (auto error = ReadGeneration(model_, options_.limits, &fields, &request)) return error;
  if (fields.Has("max_completion_tokens")) {
    fields.Int("max_completion_tokens", &request.max_tokens.emplace(), 1, int64_t{1} << 40);
  }
  fields.Ignore({"max_completion_tokens"});
  if (request.max_tokens == 0) fields.Fail("max_tokens", "max_tokens is 0: it must be at least 1");
  int64_t top_logprobs = 0;
  fields.Bool("logprobs", &request.logprobs);
  fields.Int("top_logprobs", &top_logprobs, 0, options_.limits.max_logprobs);
  if (top_logprobs > 0 && !request.logprobs) {
    fields.Fail("top_logprobs", "top_logprobs goes with logprobs: true: set it or leave it out");
  }
  if (request.logprobs) request.engine.logprobs = static_cast<int32_t>(top_logprobs);
  fields.Refuse("echo", "answers hold the model's words only", false);
  fields.Refuse("prompt_logprobs", "/v1/completions gives them");
  fields.Refuse("modalities", "answers are text", Json::array({"text"}));
  fields.Refuse("audio", "answers are text");
  fields.Refuse("prediction", "answers are drawn token by token");
  fields.Refuse("web_search_options", "the server does not search");
  fields.Ignore({"include_reasoning", "verbosity"});
  text::ChatRequest chat;
  std::string tools;
  ReadChat(model_, options_.media.max_images, &fields, &chat, &tools, &plan->image_urls);
  if (request.truncate_prompt > 0 && !plan->image_urls.empty()) {
    fields.Fail("truncate_prompt_tokens", "a prompt with images cannot be cut: leave out truncate_prompt_tokens");
  }
  fields.RefuseUnknown();
  if (!fields.ok()) return fields.error();

  text::OutputFormat format = model_.format;
  if (tools.empty()) format.tools = text::ToolFormat::kNone;
  plan->id = MakeId("chatcmpl-");
  plan->object = "chat.completion";
  plan->chunk_object = "chat.completion.chunk";
  plan->complete = [this, chat = std::move(chat), schemas = text::ToolSchemas::Parse(tools).value(), format](
                       const std::vector<std::string>& images, GenerationPlan* whole) {
    return FinishChat(chat, schemas, format, images, whole);
  };
  return std::nullopt;
}

std::optional<ApiError> Api::FinishChat(text::ChatRequest chat, const text::ToolSchemas& schemas,
                                        text::OutputFormat format, const std::vector<std::string>& images,
                                        GenerationPlan* plan) const {
  GenerationRequest& request = plan->request;
  Result<PromptText> prompt = RenderChat(model_, std::move(chat), images, &request.engine);
  if (!prompt.ok()) {
    ApiError error = FromStatus(prompt.status());
    error.param = "messages";
    return error;
  }
  format.starts_in_reasoning = format.reasoning && text::PromptOpensReasoning(prompt->text);
  AddPrompt(std::move(prompt->ids), model_.info.max_model_len, plan);
  VoiceOptions voice{
      .logprobs = request.logprobs, .top_logprobs = request.engine.logprobs, .token_ids = request.token_ids};
  plan->voice = [this, voice, format, schemas](int64_t index) mutable {
    voice.index = index;
    return MakeChatVoice(model_.tokenizer, voice, format, schemas);
  };
  return std::nullopt;
}

}  // namespace fluvial::server
