// SPDX-License-Identifier: Apache-2.0
// The problem lists of problems/*.txt, compiled in.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

struct SuiteEntry {
  ProblemLine line;
  std::vector<std::pair<std::string, double>> anchors;  ///< peer -> microseconds, see docs/ops/delta_rule.md
};

/// "flashkda", "cudnn-fe-ten", ...
std::vector<std::string> SuiteNames();

/// kInvalidArgument with the names for an unknown suite.
Result<std::vector<SuiteEntry>> Suite(std::string_view name);

/// The text of a suite: '#' starts a comment line; "LINE | PEER=MICROSECONDS ...".
Result<std::vector<SuiteEntry>> ParseSuite(std::string_view text);

}  // namespace fluvial::ops::delta_rule
