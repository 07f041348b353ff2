// SPDX-License-Identifier: Apache-2.0
// For tests of operators with several rounding points: intervals that hold every result that a correct fp32
// evaluation may give. An intermediate value known to within an error bound rounds to one of few neighbours; the
// interval carries them all on, so the check stays tight and never flakes on a tie.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/dtype.h"

namespace fluvial::ops {

inline constexpr double kUnit = 0x1p-24;  // fp32 unit roundoff

struct Interval {
  double lo = 0, hi = 0;
  Interval(double v) : lo(v), hi(v) {}  // NOLINT(google-explicit-constructor)
  Interval(double l, double h) : lo(l), hi(h) {}
  bool Contains(double v) const { return lo <= v && v <= hi; }
  /// Relative error `units` of fp32 roundoff, and a floor where fp32 is subnormal.
  Interval Widen(double units) const {
    const double slack = units * kUnit * std::max(std::abs(lo), std::abs(hi)) + 0x1p-126 * (units > 0);
    return {lo - slack, hi + slack};
  }
  Interval Plus(double absolute) const { return {lo - absolute, hi + absolute}; }
  /// r(): through fp32 to `t`.
  Interval Rounded(DType t) const {
    auto round = [t](double v) {
      char room[8];
      StoreFromDouble(room, t, 0, v);
      return LoadAsDouble(room, t, 0);
    };
    return {round(lo), round(hi)};
  }
};
inline Interval operator+(Interval a, Interval b) { return {a.lo + b.lo, a.hi + b.hi}; }
inline Interval operator-(Interval a, Interval b) { return {a.lo - b.hi, a.hi - b.lo}; }
inline Interval operator*(Interval a, Interval b) {
  const double p[] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  return {*std::min_element(p, p + 4), *std::max_element(p, p + 4)};
}

}  // namespace fluvial::ops
