// SPDX-License-Identifier: Apache-2.0
// What a load says about a server: the figures and JSON keys of `vllm bench serve`.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "measure/load.h"

namespace fluvial::measure {

using Json = nlohmann::ordered_json;

struct MetricOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};  ///< also e2el
  std::vector<double> percentiles = {99};
  std::map<std::string, double> goodput;  ///< ttft, tpot, e2el -> bound in ms
};

/// kInvalidArgument for names that there are not and percentiles outside 0..100.
Status CheckMetricOptions(const MetricOptions& options);

/// Values of one metric in ms: "ttft", "tpot", "itl" (all gaps pooled), "e2el", of the requests that succeeded.
std::vector<double> MetricMs(const LoadResult& load, const std::string& metric);

/// duration ... rtfx, then mean_/median_/std_/pNN_ of each metric; `detailed` adds the lists of values per request.
Json SummaryJson(const LoadResult& load, const MetricOptions& options, bool detailed);

/// The same as a table for people.
std::string SummaryText(const Json& summary, const MetricOptions& options);

/// "99", "99.9".
std::string PercentileName(double percent);

}  // namespace fluvial::measure
