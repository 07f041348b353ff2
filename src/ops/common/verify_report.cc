// SPDX-License-Identifier: Apache-2.0
#include "ops/common/verify_report.h"

#include "hwy/highway.h"

namespace fluvial::ops {

BackendTally& VerifyReport::TallyOf(const std::string& backend, const std::string& device) {
  for (BackendTally& t : tallies) {
    if (t.backend == backend && t.device == device) return t;
  }
  tallies.push_back({backend, device, 0, 0, 0, 0, {}});
  return tallies.back();
}

void VerifyReport::Append(const VerifyReport& other) {
  cases += other.cases;
  runs += other.runs;
  failed += other.failed;
  stopped = stopped || other.stopped;
  tallies.insert(tallies.end(), other.tallies.begin(), other.tallies.end());
  failures.insert(failures.end(), other.failures.begin(), other.failures.end());
}

std::vector<std::string> CpuTargets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::string> names;
  for (const int64_t t : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(t));
  return names;
}

void ForceCpuTarget(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  int64_t chosen = 0;
  for (const int64_t t : hwy::SupportedAndGeneratedTargets()) {
    if (hwy::TargetName(t) == name) chosen = t;
  }
  hwy::SetSupportedTargetsForTest(chosen);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace fluvial::ops
