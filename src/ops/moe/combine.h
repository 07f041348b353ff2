// SPDX-License-Identifier: Apache-2.0
// Internal to the room: the weighted sum of one token's expert outputs, dispatched to the best instruction set.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace fluvial::ops::moe {

/// One expert's answer for a token.
struct Part {
  const void* row = nullptr;
  float weight = 0;
};

/// y[0..n) <- r( y + r(weight * row) ) for each part in order, from zero; rows and y are of `dtype`. No parts: zeros.
void Combine(const Part* parts, int64_t count, DType dtype, int64_t n, void* y);

}  // namespace fluvial::ops::moe
