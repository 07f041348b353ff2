// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the bodies that paged_attention.cc lists.
#pragma once

#include "ops/paged_attention/paged_attention.h"

namespace fluvial::ops::paged_attention::internal {

Check ReferenceCheck(const Problem& problem, const DeviceInfo& device);
size_t ReferenceWorkspace(const Problem& problem, const DeviceInfo& device);
double ReferenceCost(const Problem& problem, const DeviceInfo& device);
Status ReferenceRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

Check CpuCheck(const Problem& problem, const DeviceInfo& device);
size_t CpuWorkspace(const Problem& problem, const DeviceInfo& device);
double CpuCost(const Problem& problem, const DeviceInfo& device);
Status CpuRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

}  // namespace fluvial::ops::paged_attention::internal
