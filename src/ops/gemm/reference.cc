// SPDX-License-Identifier: Apache-2.0
// The contract in fp64: exact products, one double sum in order of k, one rounding (to fp32 and then to y).
#include "ops/gemm/backends.h"

namespace fluvial::ops::gemm {
namespace {

Check CheckReference(const Problem&, const DeviceInfo& device) { return CheckCpu(device); }
size_t NoWorkspace(const Problem&, const DeviceInfo&) { return 0; }
double Cost(const Problem& p, const DeviceInfo& d) { return CostUs(CostClass::kReference, p, d); }

Status RunReference(Stream& stream, const Problem& p, const Args& a, Workspace) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  stream.pool().ParallelFor(p.m, [&](int64_t i, int) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        sum += LoadAsDouble(a.x.data, p.x, i * a.x.stride(0) + l) * LoadAsDouble(a.w.data, p.w, j * a.w.stride(0) + l);
      }
      if (p.has_bias) sum += LoadAsDouble(a.bias.data, p.bias, j);
      StoreFromDouble(a.y.data, p.y, i * a.y.stride(0) + j, sum);
    }
  });
  return Status::Ok();
}

}  // namespace

const GemmBackend& ReferenceBackend() {
  static constexpr GemmBackend backend = {
      "reference", "fp64 loop: the contract, for comparison", CheckReference, NoWorkspace, Cost, RunReference};
  return backend;
}

}  // namespace fluvial::ops::gemm
