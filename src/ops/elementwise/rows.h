// SPDX-License-Identifier: Apache-2.0
// Internal to the room: one row of each operator, dispatched to the best instruction set.
#pragma once

#include <cstdint>

#include "ops/elementwise/elementwise.h"

namespace fluvial::ops::elementwise {

struct In {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};
struct Out {
  void* data = nullptr;
  DType dtype = DType::kF32;
};

void ApplyRow(Function f, In x, Out y, int64_t n);
void GluRow(const GluArgs& form, In gate, In up, Out y, int64_t n);
/// `gate` has n elements, or one when `single`.
void SigmoidMulRow(In x, In gate, bool single, Out y, int64_t n);
void AddRow(In a, In b, Out y, int64_t n);
void ScaleRow(In x, float scale, Out y, int64_t n);
void CastRow(In x, Out y, int64_t n);

}  // namespace fluvial::ops::elementwise
