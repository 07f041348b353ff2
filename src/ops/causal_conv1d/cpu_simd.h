// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the vector kernels of the cpu body, dispatched at run time to the best Highway target.
#pragma once

#include <cstdint>

#include "ops/causal_conv1d/causal_conv1d.h"

namespace fluvial::ops::causal_conv1d::internal {

/// `count` consecutive tokens of one channel chunk. Input row j of token i starts at rows[j] + i * row_pitch (bytes).
struct RowsCall {
  const void* rows[kMaxWidth] = {};
  int64_t row_pitch = 0;
  void* out = nullptr;
  int64_t out_pitch = 0;  ///< bytes
  int64_t count = 0;
  const float* taps = nullptr;  ///< [width][taps_pitch]
  const float* bias = nullptr;  ///< [channels], zeros when there is none
  int64_t taps_pitch = 0;
  int64_t channels = 0;
  int32_t width = 0;
  DType io = DType::kF32;
  bool silu = false;
  bool eager = false;
};
void ConvRows(const RowsCall& call);

/// weight [channels][width] of `dtype` -> fp32 taps [width][pitch].
void ExpandTaps(const void* weight, DType dtype, int32_t width, int64_t channels, float* taps, int64_t pitch);

}  // namespace fluvial::ops::causal_conv1d::internal
