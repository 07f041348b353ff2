// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the cuDNN library behind backend `cudnn`. Two bodies: cudnn.cc, the only file that sees
// cudnn-frontend, and no_cudnn.cc, which says that it was not built.
#pragma once

#include <cstdint>
#include <string>

#include "ops/vision_attention/ragged_plan.h"

namespace fluvial::ops::vision_attention {

/// Oldest cuDNN this adapter takes: from 9.12.0 on, q and k may be strided views and row statistics may have any
/// layout.
inline constexpr int64_t kOldestCudnn = 91200;

/// 91900 -> "9.19.0".
std::string CudnnVersionText(int64_t version);

struct CudnnLibrary {
  int64_t version = 0;  ///< as cudnnGetVersion says; 0 when there is none
  std::string reason;   ///< why it cannot be used: not built, not found, too old; empty when it can
};

/// Loaded at the first question, which may take a moment: ask only for CUDA devices. Thread-safe.
const CudnnLibrary& Cudnn();

/// Rules of ragged plans for Cudnn() and the headers of this build.
RaggedRules CudnnRules();

/// Since the process started.
struct CudnnPlanStats {
  int64_t built = 0, hits = 0;
  double build_seconds = 0;  ///< all builds together
};
CudnnPlanStats GetCudnnPlanStats();

/// Workspace that a graph of `problem` may take at most: plans that want more are not chosen.
size_t CudnnWorkspaceLimit(const Problem& problem);

/// Runs the graph of (device, sizes, strides, dtypes, mask, scale), building it when it is new - never while the stream
/// is being captured. `problem` must have passed the backend's check, `args` Validate.
Status LaunchCudnn(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

}  // namespace fluvial::ops::vision_attention
