// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/suites.h"

#include "base/text_form.h"

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
  std::vector<SuiteEntry> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.find_first_not_of(" \t") == std::string_view::npos || row.front() == '#') continue;
    const size_t bar = row.find('|');
    SuiteEntry entry;
    FLUVIAL_ASSIGN_OR_RETURN(entry.line, ParseProblemLine(row.substr(0, bar)));
    // The anchors are fields of a line, so its parser reads them too.
    std::string rest = "anchors ";
    if (bar != std::string_view::npos) rest += row.substr(bar + 1);
    FLUVIAL_ASSIGN_OR_RETURN(TextFields fields, TextFields::Parse(rest));
    for (std::string_view words = std::string_view(rest).substr(8); !words.empty();) {
      const size_t begin = std::min(words.find_first_not_of(" \t"), words.size());
      words.remove_prefix(begin);
      const std::string key(words.substr(0, words.find('=')));
      words.remove_prefix(std::min(words.find_first_of(" \t"), words.size()));
      if (key.empty()) continue;
      FLUVIAL_ASSIGN_OR_RETURN(const float us, fields.TakeFloat(key, 0));
      entry.anchors.emplace_back(key, us);
    }
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace fluvial::ops::delta_rule
