// SPDX-License-Identifier: Apache-2.0
#include "server/generation_request.h"

#include <charconv>

namespace fluvial::server {
namespace {

constexpr int64_t kManyTokens = int64_t{1} << 40;

void ReadLogitBias(Fields* fields, SamplingParams* sampling) {
  const Json* bias = fields->Object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || !value.is_number()) {
      return fields->Fail("logit_bias", "logit_bias has " + Quote(Json(key)) + ": " + Quote(value) +
                                            ": it must be an object of token ids and numbers, {\"42\": -100}");
    }
    sampling->logit_bias.emplace_back(id, static_cast<float>(value.get<double>()));
  }
}

void ReadStream(Fields* fields, GenerationRequest* out) {
  fields->Bool("stream", &out->stream);
  const Json* options = fields->Object("stream_options");
  if (options == nullptr) return;
  if (!out->stream)
    return fields->Fail("stream_options", "stream_options goes with stream: true: set it or leave it out");
  Fields inner(*options, "stream_options.");
  inner.Bool("include_usage", &out->include_usage);
  inner.Bool("continuous_usage_stats", &out->continuous_usage);
  inner.Ignore({"include_obfuscation"});
  inner.RefuseUnknown();
  if (!inner.ok()) fields->Fail("stream_options", inner.error()->message);
}

void ReadSampling(Fields* fields, GenerationRequest* out) {
  SamplingParams& s = out->engine.sampling;
  fields->Float("temperature", &s.temperature);
  fields->Float("top_p", &s.top_p);
  fields->Float("min_p", &s.min_p);
  fields->Float("repetition_penalty", &s.repetition_penalty);
  fields->Float("presence_penalty", &s.presence_penalty);
  fields->Float("frequency_penalty", &s.frequency_penalty);
  int64_t top_k = s.top_k;
  fields->Int("top_k", &top_k, -1, INT32_MAX);
  s.top_k = static_cast<int32_t>(top_k);
  if (fields->Has("seed")) {
    int64_t seed = 0;
    fields->Int("seed", &seed, INT64_MIN, INT64_MAX);
    out->seed = static_cast<uint64_t>(seed);
  }
  fields->Ignore({"seed"});
  ReadLogitBias(fields, &s);
}

/// Structured output needs a grammar library, which this build has not.
void RefuseGrammars(Fields* fields) {
  const std::string why = "this build has no grammar library; ask for the format in the prompt and check the answer";
  if (const Json* format = fields->Object("response_format")) {
    const auto type = format->find("type");
    if (type == format->end() || !type->is_string()) {
      return fields->Fail("response_format", "response_format needs a `type`: text, json_object or json_schema");
    }
    if (*type != "text") {
      return fields->Fail("response_format", "response_format " + Quote(*type) + " is not supported: " + why);
    }
  }
  for (const char* name : {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
                           "guided_decoding_backend", "guided_whitespace_pattern", "structural_tag"}) {
    fields->Refuse(name, why);
  }
}

}  // namespace

std::optional<ApiError> CheckModelName(const ServedModel& model, Fields* fields, std::string* name) {
  *name = model.names.front();
  fields->Text("model", name);
  if (!fields->ok() || model.HasName(*name)) return std::nullopt;
  ApiError error;
  error.status = 404;
  error.param = "model";
  error.code = "model_not_found";
  error.message =
      "the model " + Quote(Json(*name)) + " is not served here: ask for " + Quote(Json(model.names.front()));
  return error;
}

std::optional<ApiError> ReadGeneration(const ServedModel& model, const RequestLimits& limits, Fields* fields,
                                       GenerationRequest* out) {
  if (auto error = CheckModelName(model, fields, &out->model)) return error;
  out->engine.sampling = model.defaults;
  ReadSampling(fields, out);
  ReadStream(fields, out);
  fields->Int("n", &out->n, 1, limits.max_choices);
  if (fields->Has("best_of")) {
    int64_t best = 0;
    fields->Int("best_of", &best, 1, limits.max_choices);
    if (best != out->n) fields->Fail("best_of", "best_of is not supported: leave it out or make it equal to n");
  }
  if (fields->Has("max_tokens")) fields->Int("max_tokens", &out->max_tokens.emplace(), 0, kManyTokens);
  fields->Int("min_tokens", &out->engine.min_tokens, 0, kManyTokens);
  fields->Bool("ignore_eos", &out->engine.ignore_eos);
  fields->Texts("stop", &out->output.stop, limits.max_stops);
  fields->Ids("stop_token_ids", &out->engine.stop_ids, 1024);
  fields->Bool("include_stop_str_in_output", &out->output.include_stop);
  fields->Bool("skip_special_tokens", &out->output.skip_special_tokens);
  fields->Bool("return_tokens_as_token_ids", &out->token_ids);
  fields->Int("truncate_prompt_tokens", &out->truncate_prompt, -1, kManyTokens);
  if (out->truncate_prompt == -1) out->truncate_prompt = model.info.max_model_len - 1;
  RefuseGrammars(fields);
  fields->Refuse("bad_words", "use logit_bias", Json::array());
  fields->Refuse("use_beam_search", "answers are sampled", false);
  fields->Refuse("length_penalty", "it belongs to beam search", 1.0);
  fields->Refuse("early_stopping", "it belongs to beam search", false);
  fields->Refuse("spaces_between_special_tokens", "special tokens are written as they are", true);
  fields->Refuse("logits_processors", "the server runs no code of its clients");
  fields->Refuse("priority", "requests run in order of arrival", 0);
  fields->Ignore({"best_of", "max_tokens", "user", "metadata", "store", "service_tier", "safety_identifier",
                  "prompt_cache_key", "request_id"});
  out->output.stop_ids = out->engine.stop_ids;
  if (!out->engine.ignore_eos) out->output.model_stops = model.info.eos_ids;
  return std::nullopt;
}

}  // namespace fluvial::server
