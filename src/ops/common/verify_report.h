// SPDX-License-Identifier: Apache-2.0
// What `fluvial verify` reports, the same for every operator family, and how CPU instruction sets are forced.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fluvial::ops {

struct BackendTally {
  std::string backend;  ///< "cpu", or "cpu/AVX2" for a forced instruction set
  std::string device;
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t refused = 0;
  double worst_ratio = 0;  ///< largest difference / bound
  std::string worst_line;
  int64_t mirrored = 0;  ///< of those that passed, also compared with a rounding mirror
};

struct VerifyReport {
  int64_t cases = 0;
  int64_t runs = 0;
  int64_t failed = 0;
  bool stopped = false;
  std::vector<BackendTally> tallies;
  /// "backend on device: line: what is wrong"; at most 100 kept.
  std::vector<std::string> failures;

  /// The tally of (backend, device), added when new.
  BackendTally& TallyOf(const std::string& backend, const std::string& device);
  /// Adds the cases and tallies of another family.
  void Append(const VerifyReport& other);
};

/// Instruction sets of this CPU that the kernels were built for, best first ("AVX3", "AVX2", ...).
std::vector<std::string> CpuTargets();

/// Makes CPU kernels of this process use one of CpuTargets(); "" goes back to the best. Not thread-safe: tests and
/// verify.
void ForceCpuTarget(std::string_view name);

}  // namespace fluvial::ops
