// SPDX-License-Identifier: Apache-2.0
// Built when there is no nvcc: contract, cost and explanation of backend `cuda` (cuda_backend.cc) are the same in every
// build; only the kernels are missing. No real device of such a build is a CUDA device, so nothing gets here through
// selection.
#include "ops/vision_attention/sm90_vision_params.h"

namespace fluvial::ops::vision_attention {

Status LaunchCuda(Stream&, const Problem&, const Args&) {
  return Status::Refused(std::string(kOpName) + ": this program was built without CUDA; install nvcc and build again");
}

}  // namespace fluvial::ops::vision_attention
