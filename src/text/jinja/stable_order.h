// SPDX-License-Identifier: Apache-2.0
// Stable sorting that stays inside its array whatever the comparison answers: template values can be NaN, which no
// algorithm of the standard library allows. (std::stable_sort of GCC 12 also draws in a deprecated function under
// clang.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace fluvial::jinja {

/// Indices 0 .. count-1 in order of `less(a, b)`; equal ones keep their order. Bottom-up merge sort. `less` may throw.
template <class Less>
std::vector<size_t> StableOrder(size_t count, Less less) {
  std::vector<size_t> order(count), merged(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  for (size_t width = 1; width < count; width *= 2) {
    for (size_t begin = 0; begin < count; begin += 2 * width) {
      size_t middle = std::min(begin + width, count), end = std::min(begin + 2 * width, count);
      size_t left = begin, right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle || (right < end && less(order[right], order[left]));
        merged[out] = take_right ? order[right++] : order[left++];
      }
    }
    std::swap(order, merged);
  }
  return order;
}

}  // namespace fluvial::jinja
