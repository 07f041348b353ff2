// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize.
#include "server/api.h"

namespace fluvial::server {

HttpResponse Api::Tokenize(const HttpRequest& request) {
  Json body;
  if (const auto error = ParseBody(request.body, &body)) return ErrorResponse(*error);
  Fields fields(body);
  std::string name;
  if (const auto error = CheckModelName(model_, &fields, &name)) return ErrorResponse(*error);
  bool strings = false;
  fields.Bool("return_token_strs", &strings);
  std::vector<int32_t> ids;
  if (fields.Has("messages")) {
    text::ChatRequest chat;
    std::string tools;
    std::vector<std::string> images;
    ReadChat(model_, options_.media.max_images, &fields, &chat, &tools, &images);
    if (!images.empty()) fields.Fail("messages", "the tokens of images cannot be listed: send text only");
    fields.Ignore({"add_special_tokens"});
    fields.RefuseUnknown();
    if (!fields.ok()) return ErrorResponse(*fields.error());
    Result<PromptText> prompt = RenderChat(model_, std::move(chat));
    if (!prompt.ok()) return ErrorResponse(FromStatus(prompt.status()));
    ids = std::move(prompt->ids);
  } else {
    std::string prompt;
    bool add_special_tokens = true;
    if (!fields.Has("prompt")) fields.Fail("prompt", "there is no prompt: send `prompt` or `messages`");
    fields.Text("prompt", &prompt);
    fields.Bool("add_special_tokens", &add_special_tokens);
    fields.RefuseUnknown();
    if (!fields.ok()) return ErrorResponse(*fields.error());
    auto encoded = model_.tokenizer.Encode(prompt, {.add_special_tokens = add_special_tokens});
    if (!encoded.ok()) return ErrorResponse(FromStatus(encoded.status()));
    ids = std::move(*encoded);
  }
  Json answer;
  answer["count"] = ids.size();
  answer["max_model_len"] = model_.info.max_model_len;
  answer["tokens"] = ids;
  answer["token_strs"] = Json();
  if (strings) {
    answer["token_strs"] = Json::array();
    for (const int32_t id : ids) answer["token_strs"].push_back(TokenText(model_.tokenizer, id, false));
  }
  return {.body = Dump(answer)};
}

HttpResponse Api::Detokenize(const HttpRequest& request) {
  Json body;
  if (const auto error = ParseBody(request.body, &body)) return ErrorResponse(*error);
  Fields fields(body);
  std::string name;
  if (const auto error = CheckModelName(model_, &fields, &name)) return ErrorResponse(*error);
  std::vector<int32_t> ids;
  if (!fields.Has("tokens")) fields.Fail("tokens", "there are no tokens: send a list of token ids");
  fields.Ids("tokens", &ids, size_t{1} << 22);
  fields.RefuseUnknown();
  if (!fields.ok()) return ErrorResponse(*fields.error());
  Json answer;
  answer["prompt"] = model_.tokenizer.Decode(ids, {.skip_special_tokens = false});
  return {.body = Dump(answer)};
}

}  // namespace fluvial::server
