// SPDX-License-Identifier: Apache-2.0
#include "models/footprint.h"

namespace fluvial::models {

int64_t VisionParameters(const weights::VisionConfig& v) {
  const int64_t h = v.hidden, i = v.intermediate, m = v.merge * v.merge * h;
  const int64_t patch = h * v.in_channels * v.temporal_patch * v.patch * v.patch + h;
  const int64_t block = 2 * 2 * h + (3 * h * h + 3 * h) + (h * h + h) + (i * h + i) + (h * i + h);
  const int64_t merger = 2 * h + (m * m + m) + (v.out_hidden * m + v.out_hidden);
  return patch + v.positions * h + v.depth * block + merger;
}

}  // namespace fluvial::models
