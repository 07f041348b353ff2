// SPDX-License-Identifier: Apache-2.0
// Built when there is no nvcc: contracts, costs and explanations of the CUDA backends (cuda_backend.cc) are the same in
// every build; only their kernels are missing. No real device of such a build is a CUDA device, so nothing gets here
// through selection.
#include <string>

#include "ops/delta_rule/sm90_delta_launch.h"

namespace fluvial::ops::delta_rule {
namespace {

Status NoKernels(const Problem& problem) {
  return Status::Refused(std::string(Name(problem.op)) +
                         ": this program was built without CUDA; install nvcc and build again");
}

}  // namespace

Status LaunchChunk16(Stream&, const Problem& problem, const Args&, int64_t, Workspace) { return NoKernels(problem); }
Status LaunchDecode(Stream&, const Problem& problem, const Args&) { return NoKernels(problem); }
Status LaunchTokens(Stream&, const Problem& problem, const Args&) { return NoKernels(problem); }

}  // namespace fluvial::ops::delta_rule
