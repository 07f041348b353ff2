// SPDX-License-Identifier: Apache-2.0
// ProgressLine: one line on stderr that says how far a measurement is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fluvial::tools {

class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Redraws at most ten times a second on a terminal; elsewhere prints a line every 10 s and at the end.
  void Update(int64_t done, int64_t failed, int64_t total);

 private:
  std::string what_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_, last_;
};

}  // namespace fluvial::tools
