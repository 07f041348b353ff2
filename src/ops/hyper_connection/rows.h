// SPDX-License-Identifier: Apache-2.0
// Internal to the room: one token's streams, dispatched to the best instruction set.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace fluvial::ops::hyper_connection {

/// Sum of squares of n elements, fp32.
float SumOfSquares(const void* x, DType dtype, int64_t n);

/// y = r( sum over s of weight[s] * x[s] ), x: `streams` rows of n elements one after the other.
void Combine(const void* x, DType dtype, const float* weight, int32_t streams, int64_t n, void* y);

/// x[t] <- r( r(post[t] y) + r( sum over s of mix[s * streams + t] x[s] ) ); post and mix are rounded to dtype already.
void Mix(void* x, DType dtype, const float* post, const float* mix, const void* y, int32_t streams, int64_t n);

}  // namespace fluvial::ops::hyper_connection
