// SPDX-License-Identifier: Apache-2.0
// For operators that work row by row over the last dimension: checks of float tensors and a parallel walk.
#pragma once

#include <algorithm>
#include <string>

#include "base/tensor_view.h"
#include "base/thread_pool.h"
#include "fluvial/status.h"

namespace fluvial::ops {

/// rank 1..3 as [outer][inner][row]: what every tensor of one call shares.
struct RowShape {
  int64_t outer = 1;
  int64_t inner = 1;
  int64_t n = 0;  ///< elements of a row
  int64_t rows() const { return outer * inner; }
};

inline RowShape RowShapeOf(const TensorView& t) {
  RowShape s;
  s.n = t.dim(t.rank - 1);
  if (t.rank >= 2) s.inner = t.dim(t.rank - 2);
  if (t.rank == 3) s.outer = t.dim(0);
  return s;
}

/// Address of row [outer][inner].
inline void* RowAt(const TensorView& t, int64_t outer, int64_t inner) {
  int64_t offset = 0;
  if (t.rank >= 2) offset += inner * t.stride(t.rank - 2);
  if (t.rank == 3) offset += outer * t.stride(0);
  return static_cast<char*>(t.data) + offset * static_cast<int64_t>(SizeOf(t.dtype));
}

/// kInvalidArgument unless `t` is fp32, bf16 or fp16, of rank min_rank..3, with unit inner stride, non-negative outer
/// strides, and data when it has elements.
inline Status CheckFloatRows(std::string_view op, std::string_view name, const TensorView& t, int min_rank = 1) {
  const std::string where = std::string(op) + ": " + std::string(name) + " is " + t.ToString();
  if (t.rank < min_rank || t.rank > 3) {
    return Status::InvalidArgument(where + ": give it rank " + std::to_string(min_rank) + " to 3");
  }
  if (t.dtype != DType::kF32 && t.dtype != DType::kBF16 && t.dtype != DType::kF16) {
    return Status::InvalidArgument(where + ": use fp32, bf16 or fp16");
  }
  for (int i = 0; i < t.rank; ++i) {
    if (t.dim(i) < 0) return Status::InvalidArgument(where + ": dimensions must not be negative");
    if (t.stride(i) < 0) return Status::InvalidArgument(where + ": strides must not be negative");
  }
  if (t.dim(t.rank - 1) > 1 && t.stride(t.rank - 1) != 1) {
    return Status::InvalidArgument(where + ": the inner stride must be 1");
  }
  if (t.elements() > 0 && !t.defined()) {
    return Status::InvalidArgument(std::string(op) + ": " + std::string(name) + " has no data");
  }
  return Status::Ok();
}

/// kInvalidArgument unless both have the same dims.
inline Status CheckSameDims(std::string_view op, std::string_view a_name, const TensorView& a, std::string_view b_name,
                            const TensorView& b) {
  bool same = a.rank == b.rank;
  for (int i = 0; same && i < a.rank; ++i) same = a.dim(i) == b.dim(i);
  if (same) return Status::Ok();
  return Status::InvalidArgument(std::string(op) + ": " + std::string(a_name) + " is " + a.ToString() + " but " +
                                 std::string(b_name) + " is " + b.ToString() + ": give them the same shape");
}

/// Calls fn(outer, inner) for every row, in parallel when there is enough to do. `work` is a row's cost in elements.
template <class Fn>
void ForEachRow(ThreadPool& pool, const RowShape& s, int64_t work, Fn&& fn) {
  // Waking the pool costs some microseconds, as much as this many elements of a cheap function.
  constexpr int64_t kWorth = 16384;
  const int64_t rows = s.rows();
  const int64_t per_task = std::max<int64_t>(1, kWorth / 2 / std::max<int64_t>(work, 1));
  auto task = [&](int64_t t, int) {
    const int64_t end = std::min(rows, (t + 1) * per_task);
    for (int64_t r = t * per_task; r < end; ++r) fn(r / s.inner, r % s.inner);
  };
  const int64_t tasks = (rows + per_task - 1) / per_task;
  if (rows * work < kWorth) {
    for (int64_t t = 0; t < tasks; ++t) task(t, 0);
  } else {
    pool.ParallelFor(tasks, task);
  }
}

}  // namespace fluvial::ops
