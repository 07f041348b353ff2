// SPDX-License-Identifier: Apache-2.0
// `fluvial verify` for vision attention: generated cases over backends, devices and CPU instruction sets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ops/common/verify_report.h"
#include "ops/vision_attention/test_kit.h"

namespace fluvial::ops::vision_attention {

/// One generated case, a function of (index, seed) alone: ragged and empty lengths, windows, all head dimensions,
/// dtypes, layouts, strides, padded tensors, NaN sequences; about 1 in 4 is exact.
Case GenerateCase(uint64_t seed, int64_t index);

inline constexpr int64_t kQuickCases = 60;
inline constexpr int64_t kFullCases = 1250;

struct VerifyOptions {
  std::string backend;  ///< empty: every backend that accepts a case
  int64_t cases = kQuickCases;
  uint64_t seed = 1;
  std::string line;         ///< not empty: this case only
  bool cpu_targets = true;  ///< repeat the cpu backend with every instruction set this CPU has
  /// Called after each case with (done, all); return false to stop early.
  std::function<bool(int64_t, int64_t)> progress;
  /// Backends to check instead of Backends(): for tests of the checker.
  std::span<const VisionBackend> instead;
};

/// streams[0] is the CPU's. A named backend that refuses every case is kRefused with its reason; failures are in the
/// report, not the status.
Result<VerifyReport> Verify(std::span<const std::unique_ptr<Stream>> streams, const VerifyOptions& options);

}  // namespace fluvial::ops::vision_attention
