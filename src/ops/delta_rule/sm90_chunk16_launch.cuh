// SPDX-License-Identifier: Apache-2.0
// Launches of the chunk-16 prefill kernel. Each gate has its own .cu file so that they compile side by side.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "device/device.h"
#include "ops/delta_rule/sm90_chunk16.cuh"

namespace fluvial::sm90::chunk16 {

inline Status CudaFailure(const char* what, cudaError_t e) {
  return Status::Failed(std::string("delta rule cuda_chunk16: ") + what + ": " + cudaGetErrorString(e));
}

/// Raises the kernel's shared-memory limit, once per device.
template <class StateT, Mode kMode, Gate kGate>
Status Prepare(int device) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device & 63);
  if (done.load(std::memory_order_relaxed) & bit) return Status::Ok();
  const cudaError_t e = cudaFuncSetAttribute(PrefillKernel<StateT, kMode, kGate>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem<kGate>));
  if (e != cudaSuccess) return CudaFailure("raising the shared-memory limit", e);
  done.fetch_or(bit, std::memory_order_relaxed);
  return Status::Ok();
}

template <class StateT, Mode kMode, Gate kGate>
Status Launch(Stream& stream, const sm90::DeltaParams& p, int64_t tasks) {
  FLUVIAL_RETURN_IF_ERROR((Prepare<StateT, kMode, kGate>(stream.device().index)));
  PrefillKernel<StateT, kMode, kGate>
      <<<static_cast<unsigned>(tasks), kThreads, sizeof(Smem<kGate>), static_cast<cudaStream_t>(stream.native())>>>(p);
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? Status::Ok() : CudaFailure("launch", e);
}

/// The balanced run, then what mends it: both of the latter end at once where every check passed.
template <class StateT, Gate kGate>
Status LaunchBalanced(Stream& stream, const sm90::DeltaParams& p, int64_t parts) {
  const auto native = static_cast<cudaStream_t>(stream.native());
  // The failure count lies behind the boundaries.
  cudaError_t e = cudaMemsetAsync(p.boundaries, 0, (parts + 1) * sizeof(Boundary), native);
  if (e != cudaSuccess) return CudaFailure("clearing the boundaries", e);
  FLUVIAL_RETURN_IF_ERROR((Launch<StateT, Mode::kBalanced, kGate>(stream, p, parts)));
  FLUVIAL_RETURN_IF_ERROR((Launch<StateT, Mode::kTransfer, kGate>(stream, p, parts)));
  FinishBalanced<<<static_cast<unsigned>(parts), kDim, 0, native>>>(p, static_cast<int>(parts));
  e = cudaGetLastError();
  if (e != cudaSuccess) return CudaFailure("launch", e);
  return Launch<StateT, Mode::kReplay, kGate>(stream, p, parts);
}

/// What a call needs to know besides the parameters. parts = 0: one CTA per sequence and head.
struct LaunchShape {
  int64_t sequences = 0, parts = 0;
  bool fp32_state = true;
};

template <Gate kGate>
Status LaunchGate(Stream& stream, const DeltaParams& p, const LaunchShape& shape) {
  if (shape.parts == 0) {
    return shape.fp32_state ? Launch<float, Mode::kWhole, kGate>(stream, p, shape.sequences * p.hv)
                            : Launch<__nv_bfloat16, Mode::kWhole, kGate>(stream, p, shape.sequences * p.hv);
  }
  return shape.fp32_state ? LaunchBalanced<float, kGate>(stream, p, shape.parts)
                          : LaunchBalanced<__nv_bfloat16, kGate>(stream, p, shape.parts);
}

Status LaunchKda(Stream& stream, const DeltaParams& p, const LaunchShape& shape);  // sm90_chunk16_kda.cu
Status LaunchGdn(Stream& stream, const DeltaParams& p, const LaunchShape& shape);  // sm90_chunk16_gdn.cu

}  // namespace fluvial::sm90::chunk16
