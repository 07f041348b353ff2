// SPDX-License-Identifier: Apache-2.0
// What a device could do at best: the floor that measured times are compared with.
#pragma once

#include "device/device.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

struct Roofline {
  double bytes_per_us = 0;
  double multiply_adds_per_us = 0;  ///< bf16 tensor cores on CUDA, fp32 vectors on a CPU
  const char* source = "";          ///< "measured here", "public figures"
};

/// CPU: measured on the stream's threads (about 0.2 s, once per process). CUDA: public figures of the architecture.
Roofline RooflineOf(Stream& stream);

/// The larger of the times for the bytes and for the multiply-adds of a problem.
double FloorUs(const Roofline& roofline, double bytes, double multiply_adds);

}  // namespace fluvial::ops::delta_rule
