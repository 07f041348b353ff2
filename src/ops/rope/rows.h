// SPDX-License-Identifier: Apache-2.0
// Internal to the room: one head of one token, dispatched to the best instruction set.
#pragma once

#include <cstdint>

#include "ops/rope/rope.h"

namespace fluvial::ops::rope {

/// Rotates the first 2 * half elements of x (type `in`) into y (type `out`); cos and sin have `half` elements. x may be
/// y.
void RotateHead(const void* x, DType in, void* y, DType out, const float* cos, const float* sin, int64_t half,
                Rounding rounding);

/// y[0..n) = x[0..n) in the type of y.
void CopyTail(const void* x, DType in, void* y, DType out, int64_t n);

}  // namespace fluvial::ops::rope
