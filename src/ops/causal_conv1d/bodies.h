// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the bodies that causal_conv1d.cc lists, and what they share.
#pragma once

#include "ops/causal_conv1d/causal_conv1d.h"

namespace fluvial::ops::causal_conv1d::internal {

Check ReferenceCheck(const Problem& problem, const DeviceInfo& device);
size_t ReferenceWorkspace(const Problem& problem, const DeviceInfo& device);
double ReferenceCost(const Problem& problem, const DeviceInfo& device);
Status ReferenceRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

Check CpuCheck(const Problem& problem, const DeviceInfo& device);
size_t CpuWorkspace(const Problem& problem, const DeviceInfo& device);
double CpuCost(const Problem& problem, const DeviceInfo& device);
Status CpuRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

/// With token_states, on host memory: every slot within the pool, written once, and not the read slot of another
/// sequence.
Status CheckTokenSlots(const Problem& problem, const Args& args);

}  // namespace fluvial::ops::causal_conv1d::internal
