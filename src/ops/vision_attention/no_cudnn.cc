// SPDX-License-Identifier: Apache-2.0
// Built where CUDA, cuDNN's headers or cudnn-frontend's are missing.
#include "ops/vision_attention/cudnn.h"

namespace fluvial::ops::vision_attention {

const CudnnLibrary& Cudnn() {
  static const CudnnLibrary none = {0, "built without cuDNN: run scripts/bootstrap --cudnn and build again (cuDNN " +
                                           CudnnVersionText(kOldestCudnn) + " or newer is needed)"};
  return none;
}

RaggedRules CudnnRules() { return RaggedRules::For(0, 0); }

CudnnPlanStats GetCudnnPlanStats() { return {}; }

Status LaunchCudnn(Stream&, const Problem&, const Args&, Workspace) {
  return Status::Refused(std::string(kOpName) + ": cudnn: " + Cudnn().reason);
}

}  // namespace fluvial::ops::vision_attention
