// SPDX-License-Identifier: Apache-2.0
// Internal to the room: the bodies behind Backends(), one file each.
#pragma once

#include "ops/moe/moe.h"

namespace fluvial::ops::moe {

const MoeBackend& ReferenceBackend();  // reference.cc
const MoeBackend& CpuBackend();        // cpu.cc

/// Refusal shared by the CPU bodies.
Check CheckCpu(const DeviceInfo& device);

/// Experts that `tokens` tokens name when all experts are equally likely.
double ExpectedActive(const Problem& problem);

}  // namespace fluvial::ops::moe
