// SPDX-License-Identifier: Apache-2.0
// The reference body: fp64 scores, softmax and sums, rounding exactly where the problem says.
#include <cmath>
#include <vector>

#include "ops/paged_attention/bodies.h"

namespace fluvial::ops::paged_attention::internal {
namespace {

double RoundTo(DType dtype, double x) {
  uint32_t storage = 0;
  StoreFromDouble(&storage, dtype, 0, x);
  return LoadAsDouble(&storage, dtype, 0);
}

}  // namespace

Check ReferenceCheck(const Problem&, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  return Check::Accept();
}

size_t ReferenceWorkspace(const Problem&, const DeviceInfo&) { return 0; }

double ReferenceCost(const Problem& p, const DeviceInfo&) {
  return 1.0 + 0.005 * static_cast<double>(p.pairs) * p.hq * (p.d_qk + p.d_v);  // about 5 ns per multiply
}

Status ReferenceRun(Stream& stream, const Problem& p, const Args& a, Workspace) {
  const KvPlan& plan = *a.plan;
  const bool eager = p.rounding == Rounding::kEager;
  const double scale = p.Scale();
  for (int32_t n = 0; n < p.sequences; ++n) {
    const auto pages = plan.pages(n);
    auto row = [&](const TensorView& v, int64_t position, int64_t head) {
      return pages[position / p.page_size] * v.strides[0] + head * v.strides[1] + position % p.page_size * v.strides[2];
    };
    const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first;
    stream.pool().ParallelFor(length * p.hq, [&](int64_t task, int) {
      const int64_t i = task / p.hq, h = task % p.hq, kv_head = h / (p.hq / p.hkv);
      const int64_t keys = plan.contexts()[n] + i + 1;
      const int64_t q = (first + i) * a.q.strides[0] + h * a.q.strides[1];
      std::vector<double> s(static_cast<size_t>(keys));
      double largest = -INFINITY;
      for (int64_t j = 0; j < keys; ++j) {
        const int64_t k = row(a.k_pages, j, kv_head);
        double dot = 0;
        for (int64_t d = 0; d < p.d_qk; ++d) {
          dot += LoadAsDouble(a.q.data, p.io, q + d) * LoadAsDouble(a.k_pages.data, p.kv, k + d);
        }
        s[j] = eager ? RoundTo(p.io, RoundTo(p.io, dot) * scale) : dot * scale;
        largest = std::max(largest, s[j]);
      }
      double sum = 0;
      for (double& x : s) sum += x = std::exp(x - largest);
      std::vector<double> o(static_cast<size_t>(p.d_v), 0.0);
      for (int64_t j = 0; j < keys; ++j) {
        const double weight = eager ? RoundTo(p.io, s[j] / sum) : s[j];
        const int64_t v = row(a.v_pages, j, kv_head);
        for (int64_t d = 0; d < p.d_v; ++d) o[d] += weight * LoadAsDouble(a.v_pages.data, p.kv, v + d);
      }
      const int64_t out = (first + i) * a.out.strides[0] + h * a.out.strides[1];
      for (int64_t d = 0; d < p.d_v; ++d) StoreFromDouble(a.out.data, p.io, out + d, eager ? o[d] : o[d] / sum);
      if (p.lse) {
        StoreFromDouble(a.lse.data, DType::kF32, (first + i) * a.lse.strides[0] + h * a.lse.strides[1],
                        largest + std::log(sum));
      }
    });
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::paged_attention::internal
