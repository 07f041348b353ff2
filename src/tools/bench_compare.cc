// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_compare.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace fluvial::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string key;  ///< backend, device, problem
  std::vector<double> us;
};

Result<std::vector<Row>> Read(const std::string& path) {
  const auto broken = [&] {
    return Status::UnusableModel("--compare: '" + path + "' is not a file that fluvial bench op --json writes");
  };
  std::ifstream in(path);
  if (!in) return Status::UnusableModel("--compare: '" + path + "' cannot be read");
  const Json root = Json::parse(in, nullptr, false);
  if (!root.is_object() || !root.contains("results") || !root["results"].is_array()) return broken();
  std::vector<Row> rows;
  for (const Json& r : root["results"]) {
    if (!r.is_object()) return broken();
    Row row;
    for (const char* field : {"backend", "device", "problem"}) {
      if (!r.contains(field) || !r[field].is_string()) return broken();
      row.key += (row.key.empty() ? "" : "  ") + r[field].get<std::string>();
    }
    if (!r.contains("all_us") || !r["all_us"].is_array() || r["all_us"].empty()) return broken();
    for (const Json& us : r["all_us"]) {
      if (!us.is_number() || us.get<double>() <= 0) return broken();
      row.us.push_back(us.get<double>());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

double Median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.size() % 2 == 1 ? x[x.size() / 2] : (x[x.size() / 2 - 1] + x[x.size() / 2]) / 2;
}

}  // namespace

Result<std::string> CompareRuns(const std::string& old_path, const std::string& new_path) {
  FLUVIAL_ASSIGN_OR_RETURN(const std::vector<Row> before, Read(old_path));
  FLUVIAL_ASSIGN_OR_RETURN(const std::vector<Row> after, Read(new_path));
  char line[160];
  std::snprintf(line, sizeof(line), "%11s %11s %9s %17s %6s  backend  device  problem\n", "old us", "new us", "new/old",
                "range", "pairs");
  std::string out = line;
  std::string alone;
  for (const Row& b : before) {
    const auto a = std::find_if(after.begin(), after.end(), [&](const Row& r) { return r.key == b.key; });
    if (a == after.end()) {
      alone += "only in " + old_path + ": " + b.key + "\n";
      continue;
    }
    std::vector<double> ratios;
    for (size_t i = 0; i < std::min(b.us.size(), a->us.size()); ++i) ratios.push_back(a->us[i] / b.us[i]);
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    std::snprintf(line, sizeof(line), "%11.1f %11.1f %9.3f %8.3f-%8.3f %6zu  ", Median(b.us), Median(a->us),
                  Median(ratios), *low, *high, ratios.size());
    out += line + b.key + "\n";
  }
  for (const Row& a : after) {
    const bool known = std::any_of(before.begin(), before.end(), [&](const Row& r) { return r.key == a.key; });
    if (!known) alone += "only in " + new_path + ": " + a.key + "\n";
  }
  return out + alone;
}

}  // namespace fluvial::tools
