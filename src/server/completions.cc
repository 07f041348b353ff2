// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions: prompts to engine requests.
#include <algorithm>

#include "server/api.h"

namespace fluvial::server {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's

bool AllIds(const Json& list) {
  if (list.empty()) return false;
  for (const Json& item : list) {
    if (!item.is_number_integer()) return false;
  }
  return true;
}

/// `prompt`: a string, a list of strings, a list of ids, or a list of such lists - turned into the last two.
struct Prompts {
  std::vector<std::string> texts;  // in order; empty where ids were given
  std::vector<std::vector<int32_t>> ids;
};

void ReadPrompts(const ServedModel& model, const RequestLimits& limits, bool add_special_tokens, Fields* fields,
                 Prompts* out) {
  const Json* prompt = fields->Take("prompt");
  if (prompt == nullptr) return fields->Fail("prompt", "there is no prompt: send a string, or a list of token ids");
  const auto wrong = [&] {
    fields->Fail("prompt",
                 "prompt is " + Quote(*prompt) +
                     ": it must be a string, a list of strings, a list of token ids, or a list of such lists");
  };
  const Json list = prompt->is_string() || (prompt->is_array() && AllIds(*prompt)) ? Json::array({*prompt}) : *prompt;
  if (!list.is_array() || list.empty()) return wrong();
  if (static_cast<int64_t>(list.size()) > limits.max_prompts) {
    return fields->Fail("prompt", "there are " + std::to_string(list.size()) + " prompts, at most " +
                                      std::to_string(limits.max_prompts) + " may be: send several requests");
  }
  for (const Json& item : list) {
    if (item.is_string()) {
      const auto& text = item.get_ref<const std::string&>();
      auto ids = model.tokenizer.Encode(text, {.add_special_tokens = add_special_tokens});
      if (!ids.ok()) return fields->Fail("prompt", ids.status().message());
      out->texts.push_back(text);
      out->ids.push_back(std::move(*ids));
    } else if (item.is_array() && AllIds(item)) {
      std::vector<int32_t> ids;
      for (const Json& id : item) {
        const bool fits = id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
        if (!fits) return fields->Fail("prompt", "prompt holds " + Quote(id) + ", which is no token id");
        ids.push_back(id.get<int32_t>());
      }
      out->texts.emplace_back();
      out->ids.push_back(std::move(ids));
    } else {
      return wrong();
    }
  }
}

}  // namespace

std::optional<ApiError> Api::PlanCompletion(const Json& body, GenerationPlan* plan) {
  Fields fields(body);
  GenerationRequest& request = plan->request;
  if (auto error = ReadGeneration(model_, options_.limits, &fields, &request)) return error;
  bool echo = false, add_special_tokens = true;
  fields.Bool("echo", &echo);
  fields.Bool("add_special_tokens", &add_special_tokens);
  if (fields.Has("logprobs")) {
    int64_t logprobs = 0;
    fields.Int("logprobs", &logprobs, 0, options_.limits.max_logprobs);
    request.logprobs = true;
    request.engine.logprobs = static_cast<int32_t>(logprobs);
  }
  fields.Ignore({"logprobs"});
  fields.Refuse("suffix", "the model continues a prompt, it does not fill a gap", "");
  int64_t prompt_logprobs = -1;
  fields.Int("prompt_logprobs", &prompt_logprobs, -1, options_.limits.max_logprobs);
  const bool list_prompt = prompt_logprobs >= 0;
  if (echo && request.logprobs) prompt_logprobs = std::max<int64_t>(prompt_logprobs, request.engine.logprobs);
  if (prompt_logprobs >= 0 && request.stream) {
    fields.Fail("stream", "log probabilities of the prompt come with a whole answer: leave out stream");
  }
  request.engine.prompt_logprobs = static_cast<int32_t>(prompt_logprobs);
  if (request.max_tokens == 0) {
    // Nothing to generate is a request for the prompt alone.
    if (!echo) fields.Fail("max_tokens", "max_tokens is 0: it must be at least 1 unless echo is true");
    request.max_tokens = 1;
    plan->dropped_tokens = 1;
  }
  Prompts prompts;
  ReadPrompts(model_, options_.limits, add_special_tokens, &fields, &prompts);
  fields.RefuseUnknown();
  if (!fields.ok()) return fields.error();

  for (std::vector<int32_t>& ids : prompts.ids) AddPrompt(std::move(ids), kDefaultMaxTokens, plan);
  plan->id = MakeId("cmpl-");
  plan->object = plan->chunk_object = "text_completion";
  std::vector<std::string> echoes(prompts.texts.size());
  if (echo) {
    for (size_t i = 0; i < echoes.size(); ++i) {
      echoes[i] = prompts.texts[i].empty() ? model_.tokenizer.Decode(plan->prompts[i].prompt) : prompts.texts[i];
    }
  }
  VoiceOptions voice{.logprobs = request.logprobs,
                     .top_logprobs = request.engine.logprobs,
                     .token_ids = request.token_ids,
                     .prompt_logprobs = list_prompt};
  plan->voice = [this, voice, n = request.n, echoes = std::move(echoes)](int64_t index) mutable {
    voice.index = index;
    return MakeCompletionVoice(model_.tokenizer, voice, echoes[static_cast<size_t>(index / n)]);
  };
  return std::nullopt;
}

}  // namespace fluvial::server
