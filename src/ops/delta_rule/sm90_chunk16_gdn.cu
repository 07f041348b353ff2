// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/sm90_chunk16_launch.cuh"

namespace fluvial::sm90::chunk16 {

Status LaunchGdn(Stream& stream, const DeltaParams& p, const LaunchShape& shape) {
  return LaunchGate<Gate::kPerHead>(stream, p, shape);
}

}  // namespace fluvial::sm90::chunk16
