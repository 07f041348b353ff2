// SPDX-License-Identifier: Apache-2.0
// Internal to the room: the bodies behind Backends(), one file each.
#pragma once

#include <memory>

#include "ops/gemm/gemm.h"

namespace fluvial::ops::gemm {

const GemmBackend& ReferenceBackend();  // reference.cc
const GemmBackend& CpuBackend();        // cpu.cc
const GemmBackend& CpuBf16Backend();    // cpu.cc
const GemmBackend& OneDnnBackend();     // onednn.cc or no_onednn.cc

/// onednn.cc or no_onednn.cc; arguments checked by the caller.
Result<std::shared_ptr<const PackedWeight>> OneDnnPack(const TensorView& w, DType x, DType y, int64_t typical_m);

/// Microseconds from the measured tables in cost.cc.
enum class CostClass { kCpuBf16, kCpuFp32, kOneDnnBf16, kOneDnnFp32, kReference };
double CostUs(CostClass c, const Problem& problem, const DeviceInfo& device);

/// Refusal shared by the CPU bodies: empty when `device` is a CPU.
Check CheckCpu(const DeviceInfo& device);

}  // namespace fluvial::ops::gemm
