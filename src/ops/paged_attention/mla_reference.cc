// SPDX-License-Identifier: Apache-2.0
// The reference body of latent attention: the expanded formula in fp64, one rounding at the end.
#include <cmath>
#include <vector>

#include "ops/paged_attention/mla_bodies.h"

namespace fluvial::ops::mla_attention::internal {

Check ReferenceCheck(const Problem&, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  return Check::Accept();
}

size_t ReferenceWorkspace(const Problem&, const DeviceInfo&) { return 0; }

double ReferenceCost(const Problem& p, const DeviceInfo&) {
  return 1.0 + 0.005 * p.heads * static_cast<double>(p.pairs) * (p.nope + p.rope + p.v) +
         0.005 * p.heads * static_cast<double>(p.max_kv_length) * p.sequences * p.rank * (p.nope + p.v);
}

Status ReferenceRun(Stream& stream, const Problem& p, const Args& a, Workspace) {
  const KvPlan& plan = *a.plan;
  const double scale = p.Scale();
  const int64_t d_qk = p.nope + p.rope;
  for (int32_t n = 0; n < p.sequences; ++n) {
    const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first, context = plan.contexts()[n];
    if (length == 0) continue;
    const auto pages = plan.pages(n);
    stream.pool().ParallelFor(p.heads, [&](int64_t head, int) {
      std::vector<double> k(static_cast<size_t>((context + length) * d_qk)),
          v(static_cast<size_t>((context + length) * p.v));
      std::vector<double> latent(static_cast<size_t>(p.rank + p.rope)), s, o;
      for (int64_t j = 0; j < context + length; ++j) {
        const int64_t row = pages[j / p.page_size] * a.pages.strides[0] + j % p.page_size * a.pages.strides[1];
        for (int64_t c = 0; c < p.rank + p.rope; ++c) latent[c] = LoadAsDouble(a.pages.data, p.kv, row + c);
        for (int64_t i = 0; i < p.nope + p.v; ++i) {
          const int64_t w = (head * (p.nope + p.v) + i) * a.kv_b.strides[0];
          double sum = 0;
          for (int64_t c = 0; c < p.rank; ++c) sum += LoadAsDouble(a.kv_b.data, p.weight, w + c) * latent[c];
          (i < p.nope ? k[j * d_qk + i] : v[j * p.v + i - p.nope]) = sum;
        }
        for (int64_t c = 0; c < p.rope; ++c) k[j * d_qk + p.nope + c] = latent[p.rank + c];
      }
      for (int64_t i = 0; i < length; ++i) {
        const int64_t token = first + i, q = token * a.q.strides[0] + head * a.q.strides[1];
        const int64_t seen = p.selected > 0 ? static_cast<const int32_t*>(a.counts.data)[token] : context + i + 1;
        auto position = [&](int64_t j) {
          return p.selected > 0 ? static_cast<const int32_t*>(a.selected.data)[token * p.selected + j] : j;
        };
        s.assign(static_cast<size_t>(seen), 0.0);
        double largest = -INFINITY, sum = 0;
        for (int64_t j = 0; j < seen; ++j) {
          for (int64_t d = 0; d < d_qk; ++d) s[j] += LoadAsDouble(a.q.data, p.io, q + d) * k[position(j) * d_qk + d];
          largest = std::max(largest, s[j] *= scale);
        }
        o.assign(static_cast<size_t>(p.v), 0.0);
        for (int64_t j = 0; j < seen; ++j) {
          const double weight = std::exp(s[j] - largest);
          sum += weight;
          for (int64_t d = 0; d < p.v; ++d) o[d] += weight * v[position(j) * p.v + d];
        }
        const int64_t out = token * a.out.strides[0] + head * a.out.strides[1];
        for (int64_t d = 0; d < p.v; ++d) StoreFromDouble(a.out.data, p.io, out + d, o[d] / sum);
      }
    });
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::mla_attention::internal
