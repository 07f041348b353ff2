// SPDX-License-Identifier: Apache-2.0
// The bodies behind the list in delta_rule.cc. Only that file and tests of one body include this header.
#pragma once

#include <span>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

extern const DeltaBackend kReference;
extern const DeltaBackend kCpu;
extern const DeltaBackend kCpuBf16;

/// The CUDA bodies of `op`. In a build without CUDA the same names and contracts, which refuse every real device.
std::span<const DeltaBackend> CudaBackends(Op op);

/// Puts a provider's backend into the list of `op`, before `reference`. Lists handed out before stay valid and as they
/// were. Not thread-safe.
void AddBackend(Op op, const DeltaBackend& backend);

}  // namespace fluvial::ops::delta_rule
