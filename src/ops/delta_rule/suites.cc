// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/suites.h"

#include "ops/common/suites.h"

namespace fluvial::ops::delta_rule {

namespace internal {
struct SuiteText {
  const char* name;
  const char* text;
};
std::span<const SuiteText> SuiteTexts();  // generated from problems/*.txt
}  // namespace internal

std::vector<std::string> SuiteNames() {
  std::vector<std::string> names;
  for (const auto& s : internal::SuiteTexts()) names.emplace_back(s.name);
  return names;
}

Result<std::vector<SuiteEntry>> Suite(std::string_view name) {
  std::string names;
  for (const auto& s : internal::SuiteTexts()) {
    if (s.name == name) return ParseSuite(s.text);
    names += (names.empty() ? "" : ", ") + std::string(s.name);
  }
  return Status::InvalidArgument("there is no suite '" + std::string(name) + "'; suites: " + names);
}

Result<std::vector<SuiteEntry>> ParseSuite(std::string_view text) {
  FLUVIAL_ASSIGN_OR_RETURN(std::vector<SuiteRow> rows, ParseSuiteRows(text));
  std::vector<SuiteEntry> out;
  for (SuiteRow& row : rows) {
    FLUVIAL_ASSIGN_OR_RETURN(ProblemLine line, ParseProblemLine(row.line));
    out.push_back({std::move(line), std::move(row.anchors)});
  }
  return out;
}

}  // namespace fluvial::ops::delta_rule
