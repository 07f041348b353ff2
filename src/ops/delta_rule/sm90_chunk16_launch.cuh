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

/// Launches `kernel`; with `ahead`, its CTAs may start (and wait, AwaitGridsBefore) while the kernel before them ends.
template <class... Params, class... Args>
Status LaunchAhead(Stream& stream, void (*kernel)(Params...), int64_t blocks, int threads, size_t smem, bool ahead,
                   Args... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = smem;
  config.stream = static_cast<cudaStream_t>(stream.native());
  config.attrs = &attribute;
  config.numAttrs = ahead ? 1 : 0;
  const cudaError_t e = cudaLaunchKernelEx(&config, kernel, Params(args)...);
  return e == cudaSuccess ? Status::Ok() : CudaFailure("launch", e);
}

template <class StateT, Mode kMode, Gate kGate>
Status Launch(Stream& stream, const sm90::DeltaParams& p, int64_t tasks, bool ahead = false) {
  FLUVIAL_RETURN_IF_ERROR((Prepare<StateT, kMode, kGate>(stream.device().index)));
  return LaunchAhead(stream, PrefillKernel<StateT, kMode, kGate>, tasks, kThreads, sizeof(Smem<kGate>), ahead, p);
}

/// The balanced run, then what mends it: both of the latter end at once where every check passed.
template <class StateT, Gate kGate>
Status LaunchBalanced(Stream& stream, const sm90::DeltaParams& p, int64_t parts) {
  // The failure count lies behind the boundaries.
  const cudaError_t e =
      cudaMemsetAsync(p.boundaries, 0, (parts + 1) * sizeof(Boundary), static_cast<cudaStream_t>(stream.native()));
  if (e != cudaSuccess) return CudaFailure("clearing the boundaries", e);
  FLUVIAL_RETURN_IF_ERROR((Launch<StateT, Mode::kBalanced, kGate>(stream, p, parts)));
  FLUVIAL_RETURN_IF_ERROR((Launch<StateT, Mode::kTransfer, kGate>(stream, p, parts, true)));
  FLUVIAL_RETURN_IF_ERROR(LaunchAhead(stream, FinishBalanced, parts, kDim, 0, true, p, static_cast<int>(parts)));
  return Launch<StateT, Mode::kReplay, kGate>(stream, p, parts, true);
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
