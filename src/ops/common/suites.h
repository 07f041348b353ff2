// SPDX-License-Identifier: Apache-2.0
// Problem lists named after real models: one line per problem, optionally followed by `| peer=microseconds ...`, the
// published or measured times of others. `#` starts a comment.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::ops {

struct SuiteText {
  const char* name;
  const char* text;
};

struct SuiteRow {
  std::string line;
  std::vector<std::pair<std::string, double>> anchors;  ///< peer, microseconds
};

/// The lines themselves are not looked at.
Result<std::vector<SuiteRow>> ParseSuiteRows(std::string_view text);

}  // namespace fluvial::ops
