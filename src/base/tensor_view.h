// SPDX-License-Identifier: Apache-2.0
// TensorView: pointer, element type, dims and strides. No ownership, no arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "base/dtype.h"

namespace fluvial {

/// A view of up to kMaxRank dimensions. Strides count elements (64-bit), outermost first, and may exceed the
/// packed stride (a slice of a fused projection) - kernels state which strides they take. `data` may live on
/// any device; a view does not know which.
struct TensorView {
  static constexpr int kMaxRank = 5;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};

  TensorView() = default;

  /// Packed row-major view.
  TensorView(void* p, DType t, std::initializer_list<int64_t> shape) : data(p), dtype(t) {
    FLUVIAL_CHECK(shape.size() <= kMaxRank);
    for (int64_t d : shape) dims[rank++] = d;
    int64_t s = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = s;
      s *= dims[i];
    }
  }

  /// View with explicit strides (in elements).
  TensorView(void* p, DType t, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> stride)
      : TensorView(p, t, shape) {
    FLUVIAL_CHECK(stride.size() == shape.size());
    int i = 0;
    for (int64_t s : stride) strides[i++] = s;
  }

  bool defined() const { return data != nullptr; }
  int64_t dim(int i) const { return dims[i]; }
  int64_t stride(int i) const { return strides[i]; }

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  bool packed() const {
    int64_t s = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (dims[i] != 1 && strides[i] != s) return false;
      s *= dims[i];
    }
    return true;
  }

  template <class T>
  T* as() const {
    FLUVIAL_CHECK(DTypeOf<T>::value == dtype);
    return static_cast<T*>(data);
  }

  /// "bf16[8192,96,128]" (strides only when not packed), for messages.
  std::string ToString() const {
    std::string s(Name(dtype));
    s += '[';
    for (int i = 0; i < rank; ++i) s += (i ? "," : "") + std::to_string(dims[i]);
    s += ']';
    if (!packed()) {
      s += " strides [";
      for (int i = 0; i < rank; ++i) s += (i ? "," : "") + std::to_string(strides[i]);
      s += ']';
    }
    return s;
  }
};

}  // namespace fluvial
