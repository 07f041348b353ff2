// SPDX-License-Identifier: Apache-2.0
#include "ops/common/backend.h"

#include <cstdio>

namespace fluvial::ops {
namespace {

std::string Microseconds(double us) {
  char buffer[48];
  std::snprintf(buffer, sizeof(buffer), "%.1f us", us);
  return buffer;
}

}  // namespace

std::string Describe(std::string_view op, std::string_view preference, const std::vector<Candidate>& candidates) {
  std::string head(op), rest;
  for (const Candidate& c : candidates) {
    if (c.chosen) {
      const bool automatic = preference.empty() || preference == "auto";
      head += ": " + std::string(c.name) + (automatic ? " (auto, " : " (asked for, ") + Microseconds(c.cost_us) + ")";
    } else if (c.check.ok()) {
      rest += "; " + std::string(c.name) + ": " + Microseconds(c.cost_us);
    } else {
      rest += "; " + std::string(c.name) + " refused: " + c.check.reason();
    }
  }
  return head + rest;
}

}  // namespace fluvial::ops
