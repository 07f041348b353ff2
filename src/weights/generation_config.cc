// SPDX-License-Identifier: Apache-2.0
#include "weights/generation_config.h"

#include <filesystem>

#include "weights/json_reader.h"
#include "weights/mapped_file.h"

namespace fluvial::weights {

Result<GenerationConfig> ParseGenerationConfig(const std::string& text, const std::string& file) {
  FLUVIAL_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(text, file));
  GenerationConfig g;
  if (json.Has("do_sample")) g.do_sample = json.Bool("do_sample", false);
  if (json.Has("temperature")) g.temperature = json.Float("temperature", 1.0);
  if (json.Has("top_p")) g.top_p = json.Float("top_p", 1.0);
  if (json.Has("top_k")) g.top_k = json.Int("top_k", 0);
  if (json.Has("min_p")) g.min_p = json.Float("min_p", 0.0);
  if (json.Has("repetition_penalty")) g.repetition_penalty = json.Float("repetition_penalty", 1.0);
  if (json.Has("max_new_tokens")) g.max_new_tokens = json.Int("max_new_tokens", 0);
  g.eos_tokens = json.IntOrInts("eos_token_id");
  if (json.Has("bos_token_id")) g.bos_token = json.Int("bos_token_id", 0);
  if (json.Has("pad_token_id")) g.pad_token = json.Int("pad_token_id", 0, -1);
  FLUVIAL_RETURN_IF_ERROR(json.status());
  return g;
}

Result<GenerationConfig> ReadGenerationConfig(const std::string& directory) {
  const std::string file = directory + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return GenerationConfig{};
  FLUVIAL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, size_t{1} << 20));
  return ParseGenerationConfig(text, file);
}

}  // namespace fluvial::weights
