// SPDX-License-Identifier: Apache-2.0
// For tests: run a body once per Highway instruction set that this build has and this machine supports.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

namespace fluvial::ops {

/// Calls fn() with dispatch forced to each target in turn, then restores the normal choice.
template <class Fn>
void ForEachSimdTarget(Fn&& fn) {
  hwy::SetSupportedTargetsForTest(0);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    fn();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace fluvial::ops
