// SPDX-License-Identifier: Apache-2.0
// Timing of one backend on one problem, for `fluvial bench op`.
#pragma once

#include "ops/common/measure.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {

/// q, k, v read once, out written once.
double MinimumBytes(const ProblemLine& line);

/// 2 D per query-key pair and head.
double MultiplyAdds(const ProblemLine& line);

/// Random inputs, q, k and v views of one packed buffer (packed problems); plans are made before the clock starts.
Result<Measurement> Measure(Stream& stream, const VisionBackend& backend, const ProblemLine& line, int min_repeats,
                            double min_seconds);

}  // namespace fluvial::ops::vision_attention
