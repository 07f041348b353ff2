// SPDX-License-Identifier: Apache-2.0
// Two configurations, launched in turn, and what their figures establish.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "measure/gsm8k.h"
#include "measure/load.h"

namespace fluvial::measure {

/// One launch of one side. A launch that failed has no records and says why.
struct Launch {
  char side = 'A';
  std::string error;         ///< "exit status 4: fluvial: ..."; empty: it served
  std::string error_kind;    ///< "refused" (status 4), "launch", "server died", "connection"
  double start_seconds = 0;  ///< process start to first answer of /health
  LoadResult load;
  bool evaluated = false;
  LoadResult eval;               ///< of the items, when evaluated
  nlohmann::ordered_json facts;  ///< version, backends, command
};

struct CompareInput {
  std::string name_a, name_b;    ///< the configurations as given
  std::vector<Launch> launches;  ///< in the order they ran: A B B A, A B B A, ...
  std::vector<EvalItem> items;   ///< empty: no accuracy
  double margin = 0.02;          ///< items that may differ and still be called equal
  uint64_t seed = 0;
  nlohmann::ordered_json workload;  ///< described for the reader
};

/// Sides in the order of launching: A B B A, `repeats` times.
std::string LaunchOrder(int64_t repeats);

/// Everything: verdicts, effects, every launch with every request, every failure. Keys: docs/cli.md.
nlohmann::ordered_json CompareJson(const CompareInput& input);

std::string CompareMarkdown(const nlohmann::ordered_json& report);

/// One file without references to others: tables and SVG plots.
std::string CompareHtml(const nlohmann::ordered_json& report);

}  // namespace fluvial::measure
