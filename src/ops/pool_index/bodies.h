// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the bodies that pool_index.cc lists, and what they share.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/pool_index/pool_index.h"

namespace fluvial::ops::pool_index::internal {

Check CpuCheck(const Problem& problem, const DeviceInfo& device);
size_t CpuWorkspace(const Problem& problem, const DeviceInfo& device);
double CpuCost(const Problem& problem, const DeviceInfo& device);
Status CpuRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);
size_t ReferenceWorkspace(const Problem& problem, const DeviceInfo& device);
double ReferenceCost(const Problem& problem, const DeviceInfo& device);
Status ReferenceRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

/// Writes the list of the query at `position` (row `token`) from the scores of its visible pools, none where all are
/// kept. order: scratch for as many indexes as there are visible pools.
template <class Score>
void WriteList(const Problem& p, const Args& a, int64_t token, int64_t position, const Score* scores, int32_t* order) {
  int32_t* list = static_cast<int32_t*>(a.selected.data) + token * p.most();
  const int64_t pools = (position + 1) / p.pool;
  int64_t count = 0;
  if (pools <= p.keep) {
    for (; count <= position; ++count) list[count] = static_cast<int32_t>(count);
  } else {
    for (int64_t n = 0; n < pools; ++n) order[n] = static_cast<int32_t>(n);
    const auto value = [&](int32_t n) {
      return std::isnan(scores[n]) ? -std::numeric_limits<Score>::infinity() : scores[n];
    };
    const auto better = [&](int32_t x, int32_t y) {
      const Score sx = value(x), sy = value(y);
      return sx != sy ? sx > sy : x < y;
    };
    std::nth_element(order, order + p.keep, order + pools, better);
    std::sort(order, order + p.keep);
    for (int32_t k = 0; k < p.keep; ++k) {
      for (int32_t i = 0; i < p.pool; ++i) list[count++] = order[k] * p.pool + i;
    }
    for (int64_t j = pools * p.pool; j <= position; ++j) list[count++] = static_cast<int32_t>(j);
  }
  static_cast<int32_t*>(a.counts.data)[token] = static_cast<int32_t>(count);
}

}  // namespace fluvial::ops::pool_index::internal
