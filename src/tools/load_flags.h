// SPDX-License-Identifier: Apache-2.0
// Options that describe a load - target, prompts, arrivals - under vLLM's names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure/load.h"

namespace CLI {
class App;
}

namespace fluvial::tools {

struct DatasetFlags {
  std::string name = "random", path, tokenizer;
  measure::RandomShape random;
  int64_t custom_output_len = 256;
  int64_t sharegpt_output_len = 0;
  int64_t num_prompts = 1000;
  uint64_t seed = 0;
};

/// --dataset-name, --dataset-path, --tokenizer, lengths, --num-prompts, --seed.
void AddDatasetFlags(CLI::App& app, DatasetFlags& flags);

/// The prompts; `model` is where the tokenizer is looked for when --tokenizer was not given.
Result<std::vector<measure::BenchPrompt>> ReadDataset(const DatasetFlags& flags, const std::string& model);

/// "inf" or a number above 0.
Result<double> ParseRate(const std::string& text, const std::string& option);

/// Numbers separated by commas.
Result<std::vector<double>> ParseNumbers(const std::string& text, const std::string& option);

/// "a,b" -> a and b, empty parts left out.
std::vector<std::string> SplitList(const std::string& text);

/// Writes `text` to `path`; kFailed when that does not work.
Status WriteFile(const std::string& path, const std::string& text);

/// 20261130-140500, of the local time.
std::string DateStamp();

}  // namespace fluvial::tools
