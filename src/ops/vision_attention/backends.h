// SPDX-License-Identifier: Apache-2.0
// The bodies behind the list in vision_attention.cc. Only that file and tests of one body include this header.
#pragma once

#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {

extern const VisionBackend kCuda;
extern const VisionBackend kCudnn;
extern const VisionBackend kCpuBf16;
extern const VisionBackend kCpu;
extern const VisionBackend kReference;

}  // namespace fluvial::ops::vision_attention
