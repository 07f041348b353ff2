// SPDX-License-Identifier: Apache-2.0
// `fluvial verify` for the delta rule: generated cases over backends, devices and CPU instruction sets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/verify_report.h"
#include "ops/delta_rule/test_kit.h"

namespace fluvial::ops::delta_rule {

/// One generated case, a function of (op, index, seed) alone: about 1 in 4 is exact, the others cover fills, forms,
/// dtypes, head ratios and dims, ragged and empty lengths, slots, strides, checkpoints and states per token.
Case GenerateCase(Op op, uint64_t seed, int64_t index);

/// Lines of what random cases are too small for: 20,000 tokens, 3,000 sequences of one token. Part of a full run.
std::vector<std::string> LargeCases(Op op);

/// Generated cases per operator.
inline constexpr int64_t kQuickCases = 60;
inline constexpr int64_t kFullCases = 1250;

struct VerifyOptions {
  std::vector<Op> ops;  ///< empty: all four
  std::string backend;  ///< empty: every backend that accepts a case
  int64_t cases = kQuickCases;
  uint64_t seed = 1;
  std::string line;         ///< not empty: this case only
  bool cpu_targets = true;  ///< repeat CPU backends with every instruction set this CPU has
  bool stop_at_first_failure = false;
  /// Called after each case with (done, all); return false to stop early.
  std::function<bool(int64_t, int64_t)> progress;
  /// Backends to check instead of Backends(op): for tests of the checker.
  std::span<const DeltaBackend> instead;
};

using ops::BackendTally;
using ops::VerifyReport;

/// A named backend that refuses every case is kRefused with its reason; failures are in the report, not the status.
Result<VerifyReport> Verify(std::span<const std::unique_ptr<Stream>> streams, const VerifyOptions& options);

}  // namespace fluvial::ops::delta_rule
