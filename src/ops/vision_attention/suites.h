// SPDX-License-Identifier: Apache-2.0
// The problem lists of vision encoders, named after the models whose shapes they are.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {

struct SuiteEntry {
  ProblemLine line;
  std::vector<std::pair<std::string, double>> anchors;  ///< peer, microseconds on an H200
};

/// "qwen2_5_vl", "qwen3_vl".
std::vector<std::string> SuiteNames();

/// kInvalidArgument with the names for an unknown suite.
Result<std::vector<SuiteEntry>> Suite(std::string_view name);

}  // namespace fluvial::ops::vision_attention
