// SPDX-License-Identifier: Apache-2.0
// Timing of one backend on one stream, for `fluvial bench op` and benchmarks.
#pragma once

#include <functional>
#include <vector>

#include "device/device.h"
#include "ops/common/test_kit.h"

namespace fluvial::ops {

struct Measurement {
  std::vector<double> us;  ///< each repeat, in order
  double best_us = 0;
  double median_us = 0;
  /// CPU only: time the process's threads were running, over the number of threads. Below the wall time where other
  /// processes share the machine; above it never.
  double best_active_us = 0;
  double bytes = 0;          ///< what the operator cannot do without; for the caller to fill in
  double multiply_adds = 0;  ///< the same
};

/// One warm-up, then repeats until both bounds are reached. On CUDA the time is between events on the stream.
Result<Measurement> MeasureRuns(Stream& stream, const std::function<Status()>& run, int min_repeats,
                                double min_seconds);

/// Memory of the stream's device, filled by repeating a few thousand values: element-wise generation of gigabytes would
/// take longer than the measurement.
Result<Buffer> FillBuffer(Stream& stream, DType dtype, int64_t elements, test_kit::Random& random,
                          double (*value)(test_kit::Random&));

}  // namespace fluvial::ops
