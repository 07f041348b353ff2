// SPDX-License-Identifier: Apache-2.0
// The reference: every step of sampling.h in the order written there, in fp64 with a full sort.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/sampling/processors.h"

namespace fluvial::ops::sampling {

Verdict ReferenceProbabilities(const Row& row, int64_t vocab, std::span<double> probabilities) {
  const Params& p = *row.params;
  std::fill(probabilities.begin(), probabilities.end(), 0.0);
  std::vector<float> scores(row.logits, row.logits + vocab);
  for (float x : scores) {
    if (std::isnan(x) || x == INFINITY) return Verdict::kNotFinite;
  }
  // Steps 1 to 4 are shared with the fast path: they are a few exact fp32 operations per touched token.
  Process(row, vocab, scores.data());

  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  while (!order.empty() && scores[order.back()] == -INFINITY) order.pop_back();
  if (order.empty()) return Verdict::kNoToken;
  if (p.greedy()) {
    probabilities[order[0]] = 1.0;
    return Verdict::kOk;
  }

  size_t kept = order.size();
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < kept) {
    const float kth = scores[order[p.top_k - 1]];
    kept = static_cast<size_t>(p.top_k);
    while (kept < order.size() && scores[order[kept]] == kth) ++kept;
  }
  const double largest = scores[order[0]];
  auto weight = [&](size_t i) { return std::exp((static_cast<double>(scores[order[i]]) - largest) / p.temperature); };
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += weight(i);
  if (p.top_p < 1) {
    double before = 0;
    size_t i = 0;
    for (; i < kept && (i == 0 || before < p.top_p * total); ++i) before += weight(i);
    kept = i;
  }
  if (p.min_p > 0) {
    while (kept > 1 && weight(kept - 1) < p.min_p) --kept;
  }
  total = 0;
  for (size_t i = 0; i < kept; ++i) total += weight(i);
  for (size_t i = 0; i < kept; ++i) probabilities[order[i]] = weight(i) / total;
  return Verdict::kOk;
}

}  // namespace fluvial::ops::sampling
