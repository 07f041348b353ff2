// SPDX-License-Identifier: Apache-2.0
// generation_config.json: the sampling defaults that a checkpoint's authors recommend.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::weights {

/// Absent fields were not in the file; do_sample false means greedy whatever the temperature says.
struct GenerationConfig {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> max_new_tokens;
  std::vector<int64_t> eos_tokens;  ///< stop on any of them; overrides config.json
  std::optional<int64_t> bos_token;
  std::optional<int64_t> pad_token;
};

Result<GenerationConfig> ParseGenerationConfig(const std::string& text, const std::string& file);

/// Reads `directory`/generation_config.json; an absent file gives an empty GenerationConfig.
Result<GenerationConfig> ReadGenerationConfig(const std::string& directory);

}  // namespace fluvial::weights
