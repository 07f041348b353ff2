// SPDX-License-Identifier: Apache-2.0
// Two saved runs of `fluvial bench op --json` side by side.
#pragma once

#include <string>

#include "fluvial/status.h"

namespace fluvial::tools {

/// A table of the figures that both files have, matched by problem, backend and device: times, and the ratio new / old
/// as the median over pairs (i-th process of one with the i-th of the other). Figures that only one file has are
/// named. kUnusableModel for a file that is missing or is not such a run.
Result<std::string> CompareRuns(const std::string& old_path, const std::string& new_path);

}  // namespace fluvial::tools
