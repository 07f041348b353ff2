// SPDX-License-Identifier: Apache-2.0
#include "tools/footprint_text.h"

#include <array>
#include <cstdio>

namespace fluvial::tools {

std::string ByteText(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double x = static_cast<double>(bytes);
  size_t unit = 0;
  while (x >= 1024 && unit + 1 < kUnits.size()) {
    x /= 1024;
    ++unit;
  }
  char buffer[48];
  std::snprintf(buffer, sizeof(buffer), unit == 0 ? "%.0f %s" : "%.2f %s", x, kUnits[unit]);
  return buffer;
}

std::string CountText(int64_t count) {
  const double x = static_cast<double>(count);
  char buffer[48];
  if (x < 1e6) {
    std::snprintf(buffer, sizeof(buffer), "%.1f K", x / 1e3);
  } else if (x < 1e9) {
    std::snprintf(buffer, sizeof(buffer), "%.1f M", x / 1e6);
  } else {
    std::snprintf(buffer, sizeof(buffer), "%.2f B", x / 1e9);
  }
  return buffer;
}

std::string ParameterText(const models::Footprint& f) {
  std::string out = CountText(f.parameters);
  if (f.active_parameters != f.parameters) out += ", " + CountText(f.active_parameters) + " of them per token";
  const char* separator = "; ";
  for (const auto& [name, count] :
       {std::pair{"multi-token prediction ", f.mtp_parameters}, std::pair{"vision ", f.vision_parameters}}) {
    if (count == 0) continue;
    out += separator + std::string(name) + CountText(count);
    separator = ", ";
  }
  return out;
}

}  // namespace fluvial::tools
