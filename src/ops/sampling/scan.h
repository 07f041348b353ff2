// SPDX-License-Identifier: Apache-2.0
// Internal to this room: passes over a whole row of logits, dispatched at run time to the best Highway target.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace fluvial::ops::sampling {

struct MaxScan {
  float max = 0;
  int64_t index = 0;  ///< first with x[index] == max
  bool nan = false;   ///< then max and index mean nothing
};
/// Largest of n >= 1 values, where it is first, and whether any is NaN.
MaxScan FindMax(const float* x, int64_t n);

/// First index with x[i] == value, n when there is none.
int64_t FirstEqual(const float* x, int64_t n, float value);

/// Number of x[i] > value.
int64_t CountGreater(const float* x, int64_t n, float value);

/// Appends the indexes with x[i] >= value, rising.
void CollectAtLeast(const float* x, int64_t n, float value, std::vector<int32_t>* out);

/// Appends the indexes with low <= x[i] < high, rising.
void CollectBetween(const float* x, int64_t n, float low, float high, std::vector<int32_t>* out);

/// The k-th largest value, k >= 1; -inf when fewer than k values are larger than -inf. One pass with a buffer of a few
/// k, no sort of the row. `buffer` is scratch.
float KthLargest(const float* x, int64_t n, int64_t k, std::vector<float>* buffer);

/// Sum of exp((x[i] - shift) * inverse), x <= shift. Sums of kBlock terms in fp32 lanes, blocks in fp64.
double SumExp(const float* x, int64_t n, float shift, float inverse);

/// w[i] = exp((x[i] - shift) * inverse), and the sum of each run of kBlock weights.
inline constexpr int64_t kBlock = 1024;
void ExpBlocks(const float* x, int64_t n, float shift, float inverse, float* w, double* block_sums);

/// mass[t] = sum of w[i] where x[i] >= threshold[t], one pass for all; sums as ExpBlocks'.
inline constexpr int kThresholds = 8;
void MassAtLeast(const float* x, const float* w, int64_t n, const float (&threshold)[kThresholds],
                 double (&mass)[kThresholds]);

/// Which tokens are kept: those up to (score, id) in falling score and rising id, with at least min_weight.
struct Boundary {
  float score = -std::numeric_limits<float>::infinity();
  int64_t id = std::numeric_limits<int64_t>::max();
  float min_weight = 0;
  bool Keeps(float x, float w, int64_t i) const { return w >= min_weight && (x > score || (x == score && i <= id)); }
};

/// Sum of each run of kBlock weights over kept tokens.
void KeptBlocks(const float* x, const float* w, int64_t n, const Boundary& boundary, double* block_sums);

}  // namespace fluvial::ops::sampling
