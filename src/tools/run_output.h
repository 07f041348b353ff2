// SPDX-License-Identifier: Apache-2.0
// What `fluvial run` reports: one JSON object, or lines of statistics.
#pragma once

#include <string>
#include <vector>

#include "fluvial/engine.h"

namespace fluvial::tools {

struct RunReport {
  std::vector<int32_t> prompt_ids;
  std::string text;
  bool has_text = true;  ///< false: the model has no tokenizer
  Completion completion;
  std::vector<BackendUse> backends;
  EngineStats stats;
  ModelInfo info;
};

/// The object of `run --json` (docs/cli.md), with a newline.
std::string RunJson(const RunReport& report, bool logprobs, bool prompt_logits);

/// Lines for stderr: tokens, speed, memory, device, backends.
std::string RunStatistics(const RunReport& report);

}  // namespace fluvial::tools
