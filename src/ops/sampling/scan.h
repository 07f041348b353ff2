// SPDX-License-Identifier: Apache-2.0
// Internal to this room: passes over a whole row of logits, dispatched at run time to the best Highway target.
#pragma once

#include <cstdint>
#include <vector>

namespace fluvial::ops::sampling {

struct MaxScan {
  float max = 0;
  bool nan = false;
};
/// Largest of n >= 1 values and whether any is NaN (then max means nothing).
MaxScan FindMax(const float* x, int64_t n);

/// First index with x[i] == value, n when there is none.
int64_t FirstEqual(const float* x, int64_t n, float value);

/// Number of x[i] > value.
int64_t CountGreater(const float* x, int64_t n, float value);

/// Appends the indexes with x[i] >= value, rising.
void CollectAtLeast(const float* x, int64_t n, float value, std::vector<int32_t>* out);

/// The k-th largest value, k >= 1; -inf when fewer than k values are larger than -inf. One pass with a buffer of a few
/// k, no sort of the row. `buffer` is scratch.
float KthLargest(const float* x, int64_t n, int64_t k, std::vector<float>* buffer);

/// Sum of exp((x[i] - shift) * inverse), x <= shift. Sums of kBlock terms in fp32 lanes, blocks in fp64.
double SumExp(const float* x, int64_t n, float shift, float inverse);

/// w[i] = exp((x[i] - shift) * inverse), and the sum of each run of kBlock weights.
inline constexpr int64_t kBlock = 1024;
void ExpBlocks(const float* x, int64_t n, float shift, float inverse, float* w, double* block_sums);

}  // namespace fluvial::ops::sampling
