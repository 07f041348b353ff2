// SPDX-License-Identifier: Apache-2.0
// What /v1/completions and /v1/chat/completions have in common in a request's body.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fluvial/engine.h"
#include "server/choice.h"
#include "server/fields.h"
#include "server/served_model.h"

namespace fluvial::server {

struct RequestLimits {
  int64_t max_choices = 128;  ///< n
  int64_t max_prompts = 256;  ///< of one completion request
  int32_t max_logprobs = 20;
  size_t max_stops = 64;
};

struct GenerationRequest {
  std::string model;
  Request engine;  ///< prompt and max_tokens are filled for each prompt
  OutputOptions output;
  int64_t n = 1;
  std::optional<int64_t> max_tokens;
  std::optional<uint64_t> seed;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool logprobs = false;        ///< answers carry log probabilities; how many is engine.logprobs
  bool token_ids = false;       ///< return_tokens_as_token_ids: tokens are written "token_id:N"
  int64_t truncate_prompt = 0;  ///< keep so many tokens of the prompt's end; 0: all
};

/// Reads the common fields; what is wrong is then in `fields`. A model that is not served is a 404, returned.
std::optional<ApiError> ReadGeneration(const ServedModel& model, const RequestLimits& limits, Fields* fields,
                                       GenerationRequest* out);

/// 404 unless the field `model` is absent or names the served model.
std::optional<ApiError> CheckModelName(const ServedModel& model, Fields* fields, std::string* name);

}  // namespace fluvial::server
