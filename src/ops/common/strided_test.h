// SPDX-License-Identifier: Apache-2.0
// For tests: a tensor [A, B, C] with gaps after every row and every outer slice, all poisoned with NaN.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/tensor_view.h"

namespace fluvial::ops {

class Strided {
 public:
  Strided(DType dtype, int64_t a, int64_t b, int64_t c, int64_t gap = 3)
      : dtype_(dtype), a_(a), b_(b), c_(c), row_(c + gap), outer_(b * row_ + gap) {
    bytes_.resize(size_t(a * outer_ + gap + 1) * SizeOf(dtype));
    for (int64_t i = 0; i < a * outer_ + gap; ++i) Put(i, std::numeric_limits<double>::quiet_NaN());
  }
  /// Rank 3, or rank 2 when b == 1 and `flat`.
  TensorView view(bool flat = false) {
    if (flat) return TensorView(data(), dtype_, {a_, c_}, {outer_, 1});
    return TensorView(data(), dtype_, {a_, b_, c_}, {outer_, row_, 1});
  }
  double Get(int64_t i, int64_t j, int64_t l) const { return LoadAsDouble(data(), dtype_, i * outer_ + j * row_ + l); }
  void Set(int64_t i, int64_t j, int64_t l, double v) { Put(i * outer_ + j * row_ + l, v); }
  template <class Fn>
  void Fill(Fn&& fn) {
    ForEach([&](int64_t i, int64_t j, int64_t l) { Set(i, j, l, fn()); });
  }
  template <class Fn>
  void ForEach(Fn&& fn) const {
    for (int64_t i = 0; i < a_; ++i)
      for (int64_t j = 0; j < b_; ++j)
        for (int64_t l = 0; l < c_; ++l) fn(i, j, l);
  }
  void ExpectGapsUntouched() const {
    for (int64_t at = 0; at < a_ * outer_; ++at) {
      const int64_t in_outer = at % outer_;
      if (in_outer < b_ * row_ && in_outer % row_ < c_) continue;
      ASSERT_TRUE(std::isnan(LoadAsDouble(data(), dtype_, at))) << "a gap was written at element " << at;
    }
  }
  bool SameBytes(const Strided& o) const {
    return bytes_.size() == o.bytes_.size() && std::memcmp(bytes_.data(), o.bytes_.data(), bytes_.size()) == 0;
  }

 private:
  // One element in: aligned to the element only.
  void* data() const { return const_cast<char*>(bytes_.data()) + SizeOf(dtype_); }
  void Put(int64_t at, double v) { StoreFromDouble(data(), dtype_, at, v); }

  DType dtype_;
  int64_t a_, b_, c_, row_, outer_;
  std::vector<char> bytes_;
};

}  // namespace fluvial::ops
