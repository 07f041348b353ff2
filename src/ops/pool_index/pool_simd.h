// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the vector kernels of the cpu body, dispatched at run time to the best Highway target.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace fluvial::ops::pool_index::internal {

inline constexpr int64_t kMaxPool = 4096;

/// The pooled key of one complete pool: rows[i] points at token i's key and gate, 2*dim numbers of type io; ape fp32
/// [pool, dim]; key io [dim].
void PoolKey(const void* const* rows, DType io, int64_t pool, int64_t dim, const float* ape, void* key);

/// score[m] += weight * max(0, dots[m] * scale) for m < n; NaN passes.
void AddScores(const float* dots, float scale, float weight, int64_t n, float* score);

}  // namespace fluvial::ops::pool_index::internal
