// SPDX-License-Identifier: Apache-2.0
#include "text/stop_text.h"

#include <algorithm>
#include <utility>

namespace fluvial::text {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
}

std::string StopText::Push(std::string_view piece) {
  if (stopped_) return "";
  held_ += piece;
  size_t first_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && stop.size() > found_.size())) {
      first_end = end;
      found_ = stop;
    }
  }
  if (first_end != std::string::npos) {
    stopped_ = true;
    held_.resize(first_end - found_.size());
    return std::exchange(held_, "");
  }
  // Hold the longest tail that begins a stop string.
  size_t hold = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > hold; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
        hold = n;
        break;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return out;
}

std::string StopText::Finish() { return std::exchange(held_, ""); }

}  // namespace fluvial::text
