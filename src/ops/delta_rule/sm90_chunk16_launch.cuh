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
  PrefillKernel<StateT, kMode, kGate><<<static_cast<unsigned>(tasks), kThreads<kGate>, sizeof(Smem<kGate>),
                                        static_cast<cudaStream_t>(stream.native())>>>(p);
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? Status::Ok() : CudaFailure("launch", e);
}

template <class StateT, Gate kGate>
Status LaunchSegments(Stream& stream, const sm90::DeltaParams& p, int64_t sequences, int64_t segments) {
  FLUVIAL_RETURN_IF_ERROR((Launch<StateT, Mode::kScan, kGate>(stream, p, segments * p.hv * 2)));
  const auto blocks = static_cast<unsigned>(sequences * p.hv * (kDim / kCombineRows));
  CombineSegments<StateT><<<blocks, kDim, 0, static_cast<cudaStream_t>(stream.native())>>>(p);
  const cudaError_t e = cudaGetLastError();
  if (e != cudaSuccess) return CudaFailure("launch", e);
  return Launch<StateT, Mode::kReplay, kGate>(stream, p, segments * p.hv);
}

/// What a call needs to know besides the parameters. segments = 0: one CTA per sequence and head.
struct LaunchShape {
  int64_t sequences = 0, segments = 0;
  bool fp32_state = true;
};

template <Gate kGate>
Status LaunchGate(Stream& stream, const DeltaParams& p, const LaunchShape& shape) {
  if (shape.segments == 0) {
    return shape.fp32_state ? Launch<float, Mode::kWhole, kGate>(stream, p, shape.sequences * p.hv)
                            : Launch<__nv_bfloat16, Mode::kWhole, kGate>(stream, p, shape.sequences * p.hv);
  }
  return shape.fp32_state ? LaunchSegments<float, kGate>(stream, p, shape.sequences, shape.segments)
                          : LaunchSegments<__nv_bfloat16, kGate>(stream, p, shape.sequences, shape.segments);
}

Status LaunchKda(Stream& stream, const DeltaParams& p, const LaunchShape& shape);  // sm90_chunk16_kda.cu
Status LaunchGdn(Stream& stream, const DeltaParams& p, const LaunchShape& shape);  // sm90_chunk16_gdn.cu

}  // namespace fluvial::sm90::chunk16
