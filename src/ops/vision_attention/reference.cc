// SPDX-License-Identifier: Apache-2.0
// The reference body: fp64 scores, softmax and sums, rounded once to the io dtype.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/vision_attention/backends.h"

namespace fluvial::ops::vision_attention {
namespace {

Check CheckReference(const Problem&, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  return Check::Accept();
}

double Cost(const Problem& p, const DeviceInfo&) {
  return 1.0 + 0.01 * static_cast<double>(p.pairs) * p.heads * p.d;  // about 5 ns per multiply-add
}

Status Run(Stream& stream, const Problem& p, const Args& a, Workspace) {
  const RowStrides qs = StridesOf(p, a.q), ks = StridesOf(p, a.k), vs = StridesOf(p, a.v), os = StridesOf(p, a.out);
  const RowStrides ls = p.lse ? LseStridesOf(p, a.lse) : RowStrides{};
  const double scale = p.scale;
  for (int32_t n = 0; n < a.plan->sequences(); ++n) {
    const int64_t first = a.plan->offsets()[n], length = a.plan->offsets()[n + 1] - first;
    stream.pool().ParallelFor(length * p.heads, [&](int64_t task, int) {
      const int64_t i = task / p.heads, h = task % p.heads;
      const int64_t q = qs.At(n, first, i, h);
      std::vector<double> s(static_cast<size_t>(length));
      double largest = -INFINITY;
      for (int64_t j = 0; j < length; ++j) {
        const int64_t k = ks.At(n, first, j, h);
        double dot = 0;
        for (int64_t c = 0; c < p.d; ++c) {
          dot += LoadAsDouble(a.q.data, p.io, q + c) * LoadAsDouble(a.k.data, p.io, k + c);
        }
        s[j] = dot * scale;
        largest = std::max(largest, s[j]);
      }
      double sum = 0;
      std::vector<double> o(static_cast<size_t>(p.d), 0.0);
      for (int64_t j = 0; j < length; ++j) {
        const double weight = std::exp(s[j] - largest);
        sum += weight;
        const int64_t v = vs.At(n, first, j, h);
        for (int64_t c = 0; c < p.d; ++c) o[c] += weight * LoadAsDouble(a.v.data, p.io, v + c);
      }
      const int64_t out = os.At(n, first, i, h);
      for (int64_t c = 0; c < p.d; ++c) StoreFromDouble(a.out.data, p.io, out + c, o[c] / sum);
      if (p.lse) StoreFromDouble(a.lse.data, DType::kF32, ls.At(n, first, i, h), largest + std::log(sum));
    });
  }
  return Status::Ok();
}

}  // namespace

const VisionBackend kReference = {
    .name = "reference",
    .description = "fp64 scores, softmax and sums, one rounding",
    .check = CheckReference,
    .workspace_bytes = [](const Problem&, const DeviceInfo&) -> size_t { return 0; },
    .cost_us = Cost,
    .run = Run,
};

}  // namespace fluvial::ops::vision_attention
