// SPDX-License-Identifier: Apache-2.0
// Checks of tensor arguments that every operator family makes: shape, dtype, unit inner stride, overlap. The messages
// name the operator, the tensor, what is asked and what was given.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/tensor_view.h"
#include "fluvial/status.h"

namespace fluvial::ops {

/// Shape and dtype as asked, data present unless empty, unit inner stride.
inline Status CheckView(std::string_view op, std::string_view name, const TensorView& v, DType dtype,
                        std::initializer_list<int64_t> dims) {
  const TensorView want(nullptr, dtype, dims);
  const std::string head = std::string(op) + ": " + std::string(name);
  const bool empty = want.elements() == 0;
  bool same = v.rank == want.rank && v.dtype == dtype;
  for (int i = 0; same && i < v.rank; ++i) same = v.dims[i] == want.dims[i];
  if (!same) return Status::InvalidArgument(head + " must be " + want.ToString() + ", got " + v.ToString());
  if (empty) return Status::Ok();
  if (!v.defined()) return Status::InvalidArgument(head + " has no data");
  if (v.dims[v.rank - 1] > 1 && v.strides[v.rank - 1] != 1) {
    return Status::InvalidArgument(head + " must have unit inner stride, got " + v.ToString());
  }
  return Status::Ok();
}

/// CheckView, and packed row-major.
inline Status CheckPacked(std::string_view op, std::string_view name, const TensorView& v, DType dtype,
                          std::initializer_list<int64_t> dims) {
  FLUVIAL_RETURN_IF_ERROR(CheckView(op, name, v, dtype, dims));
  if (v.elements() != 0 && !v.packed()) {
    return Status::InvalidArgument(std::string(op) + ": " + std::string(name) + " must be packed, got " + v.ToString());
  }
  return Status::Ok();
}

/// Bytes [first, last) that a view with non-negative strides may touch.
inline std::pair<const char*, const char*> Extent(const TensorView& v) {
  const char* base = static_cast<const char*>(v.data);
  if (!v.defined() || v.elements() == 0) return {base, base};
  int64_t last = 0;
  for (int i = 0; i < v.rank; ++i) last += (v.dims[i] - 1) * v.strides[i];
  return {base, base + (last + 1) * static_cast<int64_t>(SizeOf(v.dtype))};
}

/// Whether two views may share a byte. Two matrices of equal row pitch may be different columns of one buffer; any
/// other pair counts as overlapping when their extents do.
inline bool MayOverlap(const TensorView& a, const TensorView& b) {
  const auto [a0, a1] = Extent(a);
  const auto [b0, b1] = Extent(b);
  if (a0 == a1 || b0 == b1 || a1 <= b0 || b1 <= a0) return false;
  const int64_t pitch = a.strides[0] * static_cast<int64_t>(SizeOf(a.dtype));
  if (a.rank != 2 || b.rank != 2 || pitch <= 0 || b.strides[0] * static_cast<int64_t>(SizeOf(b.dtype)) != pitch) {
    return true;
  }
  const int64_t distance = ((b0 - a0) % pitch + pitch) % pitch;
  return distance < a.dims[1] * static_cast<int64_t>(SizeOf(a.dtype)) ||
         distance + b.dims[1] * static_cast<int64_t>(SizeOf(b.dtype)) > pitch;
}

}  // namespace fluvial::ops
