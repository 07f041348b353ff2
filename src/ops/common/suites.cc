// SPDX-License-Identifier: Apache-2.0
#include "ops/common/suites.h"

#include <algorithm>

#include "base/text_form.h"

namespace fluvial::ops {

Result<std::vector<SuiteRow>> ParseSuiteRows(std::string_view text) {
  std::vector<SuiteRow> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.find_first_not_of(" \t") == std::string_view::npos || row.front() == '#') continue;
    const size_t bar = row.find('|');
    SuiteRow entry{std::string(row.substr(0, bar)), {}};
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

}  // namespace fluvial::ops
