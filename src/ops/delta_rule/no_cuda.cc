// SPDX-License-Identifier: Apache-2.0
// Built when there is no nvcc: the CUDA backend stays in the list and says why it cannot run.
#include "ops/delta_rule/backends.h"

namespace fluvial::ops::delta_rule {
namespace {

Check RefuseNoCuda(const Problem&, const DeviceInfo&) { return Check::Refuse(CudaUnavailableReason()); }

const DeltaBackend kCudaStub = {
    .name = "cuda",
    .description = "CUDA kernels; this program was built without CUDA",
    .check = RefuseNoCuda,
    .workspace_bytes = [](const Problem&, const DeviceInfo&) -> size_t { return 0; },
    .cost_us = [](const Problem&, const DeviceInfo&) -> double { return 0; },
    .run = [](Stream&, const Problem&, const Args&, Workspace) -> Status {
      return Status::Refused("delta rule: the cuda backend cannot run: " + CudaUnavailableReason());
    },
};

}  // namespace

std::span<const DeltaBackend> CudaBackends(Op) { return {&kCudaStub, 1}; }

}  // namespace fluvial::ops::delta_rule
