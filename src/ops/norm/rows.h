// SPDX-License-Identifier: Apache-2.0
// Internal to the room: one normalisation, dispatched to the best instruction set.
#pragma once

#include <cstdint>

#include "ops/norm/norm.h"

namespace fluvial::ops::norm {

/// Data pointers of one row; types and form come from Args.
struct Row {
  const void* x = nullptr;
  const void* gate = nullptr;
  void* residual = nullptr;
  void* y = nullptr;
};

void NormRow(const Args& args, const Row& row, int64_t n);

}  // namespace fluvial::ops::norm
