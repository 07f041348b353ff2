// SPDX-License-Identifier: Apache-2.0
// The contract in fp64: exact products, double sums and activations, rounded where the contract says r().
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/moe/backends.h"

namespace fluvial::ops::moe {
namespace {

Check CheckReference(const Problem&, const DeviceInfo& device) { return CheckCpu(device); }
size_t NoWorkspace(const Problem&, const DeviceInfo&) { return 0; }

double Cost(const Problem& p, const DeviceInfo& d) {
  // About 0.3 GFLOP/s per thread.
  const double flops = 6.0 * double(p.tokens) * p.per_token * double(p.hidden) * double(p.inter);
  return 3 + flops / (0.3e3 * std::max(1, d.multiprocessors));
}

double Round(DType dtype, double x) {
  char bytes[8];
  StoreFromDouble(bytes, dtype, 0, x);
  return LoadAsDouble(bytes, dtype, 0);
}

double Dot(const std::vector<double>& x, const TensorView& w, int64_t row) {
  double sum = 0;
  for (size_t l = 0; l < x.size(); ++l) {
    sum += x[l] * LoadAsDouble(w.data, w.dtype, row * w.stride(0) + static_cast<int64_t>(l) * w.stride(1));
  }
  return sum;
}

void AddExpert(const Problem& p, const ExpertWeights& w, double weight, const std::vector<double>& x,
               std::vector<double>& y) {
  std::vector<double> a(static_cast<size_t>(p.inter));
  for (int64_t i = 0; i < p.inter; ++i) {
    double gate = Round(p.io, Dot(x, w.gate, i)), up = Round(p.io, Dot(x, w.up, i));
    if (p.limit > 0) {
      // NaN stays NaN, as in torch.clamp.
      gate = gate > p.limit ? p.limit : gate;
      up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
    }
    a[static_cast<size_t>(i)] = Round(p.io, Round(p.io, gate / (1 + std::exp(-gate))) * up);
  }
  for (int64_t h = 0; h < p.hidden; ++h) {
    const double out = Round(p.io, Dot(a, w.down, h));
    double& sum = y[static_cast<size_t>(h)];
    sum = Round(p.io, sum + Round(p.io, weight * out));
  }
}

Status RunReference(Stream& stream, const Problem& p, const Args& a, Workspace) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  const auto id = [&](int64_t t, int64_t k) { return a.ids.as<int32_t>()[t * a.ids.stride(0) + k]; };
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t k = 0; k < p.per_token; ++k) {
      if (id(t, k) >= p.experts) {
        return Status::InvalidArgument("moe: ids[" + std::to_string(t) + "," + std::to_string(k) + "]=" +
                                       std::to_string(id(t, k)) + ": must lie below " + std::to_string(p.experts));
      }
    }
  }
  stream.pool().ParallelFor(p.tokens, [&](int64_t t, int) {
    std::vector<double> x(static_cast<size_t>(p.hidden)), y(static_cast<size_t>(p.hidden), 0.0);
    for (int64_t h = 0; h < p.hidden; ++h) {
      x[static_cast<size_t>(h)] = LoadAsDouble(a.x.data, p.io, t * a.x.stride(0) + h);
    }
    std::vector<std::pair<int32_t, int64_t>> slots;
    for (int64_t k = 0; k < p.per_token; ++k) {
      if (id(t, k) >= 0) slots.emplace_back(id(t, k), k);
    }
    std::sort(slots.begin(), slots.end());
    for (const auto& [expert, k] : slots) {
      const double weight = a.weights.as<float>()[t * a.weights.stride(0) + k];
      AddExpert(p, a.experts[static_cast<size_t>(expert)], weight, x, y);
    }
    for (int64_t h = 0; h < p.hidden; ++h) {
      StoreFromDouble(a.y.data, p.io, t * a.y.stride(0) + h, y[static_cast<size_t>(h)]);
    }
  });
  return Status::Ok();
}

}  // namespace

const MoeBackend& ReferenceBackend() {
  static constexpr MoeBackend backend = {"reference",    "fp64 loop over tokens: the contract, for comparison",
                                         CheckReference, NoWorkspace,
                                         Cost,           RunReference};
  return backend;
}

}  // namespace fluvial::ops::moe
