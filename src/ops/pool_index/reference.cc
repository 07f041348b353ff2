// SPDX-License-Identifier: Apache-2.0
// The reference body: the header's formula in fp64 with its rounding points.
#include <vector>

#include "ops/pool_index/bodies.h"

namespace fluvial::ops::pool_index::internal {
namespace {

double RoundTo(DType dtype, double x) {
  uint32_t storage = 0;
  StoreFromDouble(&storage, dtype, 0, x);
  return LoadAsDouble(&storage, dtype, 0);
}

}  // namespace

size_t ReferenceWorkspace(const Problem&, const DeviceInfo&) { return 0; }

double ReferenceCost(const Problem& p, const DeviceInfo&) {
  return 1.0 + 0.005 * static_cast<double>(p.pairs) / p.pool * p.heads * p.dim;
}

Status ReferenceRun(Stream& stream, const Problem& p, const Args& a, Workspace) {
  const KvPlan& plan = *a.plan;
  for (int32_t n = 0; n < p.sequences; ++n) {
    const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first, context = plan.contexts()[n];
    if (length == 0) continue;
    const auto pages = plan.pages(n);
    const int64_t pools = (context + length) / p.pool;
    std::vector<double> keys(static_cast<size_t>(pools * p.dim));
    for (int64_t m = 0; m < pools; ++m) {
      for (int64_t d = 0; d < p.dim; ++d) {
        const auto cached = [&](int64_t i, int64_t column) {
          const int64_t j = m * p.pool + i;
          return LoadAsDouble(
              a.pages.data, p.io,
              pages[j / p.page_size] * a.pages.strides[0] + j % p.page_size * a.pages.strides[1] + column);
        };
        const auto logit = [&](int64_t i) { return cached(i, p.dim + d) + a.ape.as<float>()[i * p.dim + d]; };
        double largest = -INFINITY, sum = 0, key = 0;
        for (int64_t i = 0; i < p.pool; ++i) largest = std::max(largest, logit(i));
        for (int64_t i = 0; i < p.pool; ++i) sum += std::exp(logit(i) - largest);
        for (int64_t i = 0; i < p.pool; ++i) {
          key += RoundTo(p.io, RoundTo(p.io, std::exp(logit(i) - largest) / sum) * cached(i, d));
        }
        keys[static_cast<size_t>(m * p.dim + d)] = RoundTo(p.io, key);
      }
    }
    stream.pool().ParallelFor(length, [&](int64_t i, int) {
      const int64_t token = first + i, visible = (context + i + 1) / p.pool;
      std::vector<double> scores(static_cast<size_t>(visible));
      std::vector<int32_t> order(static_cast<size_t>(visible));
      for (int64_t m = 0; m < visible && visible > p.keep; ++m) {
        for (int64_t h = 0; h < p.heads; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < p.dim; ++d) {
            dot += LoadAsDouble(a.q.data, p.io, (token * p.heads + h) * p.dim + d) *
                   keys[static_cast<size_t>(m * p.dim + d)];
          }
          const double w = LoadAsDouble(a.weights.data, p.io, token * a.weights.strides[0] + h) / std::sqrt(p.heads);
          scores[static_cast<size_t>(m)] += w * std::max(0.0, dot / std::sqrt(p.dim));
        }
      }
      WriteList(p, a, token, context + i, scores.data(), order.data());
    });
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::pool_index::internal
