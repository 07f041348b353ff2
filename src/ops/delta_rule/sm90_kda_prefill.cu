// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/sm90_kda_prefill.cuh"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "ops/delta_rule/sm90_delta_launch.h"

namespace fluvial::ops::delta_rule {
namespace {

namespace kernel = sm90::kda16;

Status CudaFailure(const char* what, cudaError_t e) {
  return Status::Failed(std::string("kda_prefill cuda: ") + what + ": " + cudaGetErrorString(e));
}

/// The driver's tensor-map encoder, looked up through the runtime so that nothing links libcuda.
PFN_cuTensorMapEncodeTiled_v12000 Encoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 encoder = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      f = nullptr;
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(f);
  }();
  return encoder;
}

/// {128, heads, tokens} of bf16 with free token pitch, box {64, 1, 16}, 128-byte swizzle.
Status EncodeMap(const TensorView& t, CUtensorMap* map) {
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(t.dim(2)), static_cast<cuuint64_t>(t.dim(1)),
                              static_cast<cuuint64_t>(t.dim(0))};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(t.stride(1)) * 2, static_cast<cuuint64_t>(t.stride(0)) * 2};
  const cuuint32_t box[3] = {64, 1, kernel::kChunk}, element_strides[3] = {1, 1, 1};
  const CUresult e = Encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t.data, dims, strides, box, element_strides,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS) {
    return Status::Failed("kda_prefill cuda: the driver refused a tensor map of " + t.ToString() + " (error " +
                          std::to_string(e) + ")");
  }
  return Status::Ok();
}

/// Raises the kernel's shared-memory limit, once per device.
template <class StateT, kernel::Mode kMode>
Status Prepare(int device) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (device & 63);
  if (done.load(std::memory_order_relaxed) & bit) return Status::Ok();
  const cudaError_t e = cudaFuncSetAttribute(kernel::KdaPrefillKernel<StateT, kMode>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(kernel::Smem));
  if (e != cudaSuccess) return CudaFailure("raising the shared-memory limit", e);
  done.fetch_or(bit, std::memory_order_relaxed);
  return Status::Ok();
}

template <class StateT, kernel::Mode kMode>
Status Launch(Stream& stream, const sm90::DeltaParams& p, int64_t tasks) {
  FLUVIAL_RETURN_IF_ERROR((Prepare<StateT, kMode>(stream.device().index)));
  kernel::KdaPrefillKernel<StateT, kMode><<<static_cast<unsigned>(tasks), kernel::kThreads, sizeof(kernel::Smem),
                                            static_cast<cudaStream_t>(stream.native())>>>(p);
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? Status::Ok() : CudaFailure("launch", e);
}

template <class StateT>
Status LaunchSegments(Stream& stream, const sm90::DeltaParams& p, int64_t sequences, int64_t segments) {
  FLUVIAL_RETURN_IF_ERROR((Launch<StateT, kernel::Mode::kScan>(stream, p, segments * p.hv * 2)));
  const auto blocks = static_cast<unsigned>(sequences * p.hv * (kernel::kDim / kernel::kCombineRows));
  kernel::CombineSegments<StateT><<<blocks, 256, 0, static_cast<cudaStream_t>(stream.native())>>>(p);
  const cudaError_t e = cudaGetLastError();
  if (e != cudaSuccess) return CudaFailure("launch", e);
  return Launch<StateT, kernel::Mode::kReplay>(stream, p, segments * p.hv);
}

}  // namespace

Status LaunchKdaPrefillChunk16(Stream& stream, const Problem& problem, const Args& args, int64_t segment_tokens,
                               Workspace workspace) {
  const SequencePlan& plan = *args.plan;
  if (plan.sequences() == 0 && !stream.capturing()) return Status::Ok();
  if (Encoder() == nullptr) {
    return Status::Failed(
        "kda_prefill cuda: the NVIDIA driver is older than CUDA 12 and has no tensor maps; update it");
  }
  sm90::DeltaParams p{};
  if (args.q.dim(0) > 0) {
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.q, &p.q_map));
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.k, &p.k_map));
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.v, &p.v_map));
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.gate, &p.gate_map));
  }
  p.beta = args.beta.data;
  p.a_log = static_cast<const float*>(args.a_log.data);
  p.dt_bias = static_cast<const float*>(args.dt_bias.data);
  p.out = args.out.data;
  p.state = args.state.data;
  p.beta_row = args.beta.stride(0);
  p.out_row = args.out.stride(0);
  p.slot_pitch = args.state.stride(0);
  p.header = plan.device_header();
  p.offsets = plan.device_offsets();
  p.read_slots = plan.device_read_slots();
  p.write_slots = plan.device_write_slots();
  p.order = plan.device_order();
  p.hv = problem.hv;
  p.group = problem.hv / problem.hk;
  p.norm_form = static_cast<int32_t>(problem.norm);
  p.beta_form = static_cast<int32_t>(problem.beta);
  p.beta_fp32 = problem.beta_dtype == DType::kF32;
  p.norm_eps = problem.norm_eps;
  p.scale = problem.scale;
  p.lower_bound = problem.lower_bound;
  p.segment_tokens = segment_tokens;
  p.workspace = static_cast<float*>(workspace.data);
  // Replays of a captured launch may carry more than the capture did, up to the plan's capacity.
  const int64_t sequences = stream.capturing() ? plan.bounds().max_sequences : plan.sequences();
  const int64_t tokens = stream.capturing() ? plan.bounds().max_tokens : plan.tokens();
  const bool fp32 = problem.state == DType::kF32;
  if (segment_tokens == 0) {
    return fp32 ? Launch<float, kernel::Mode::kWhole>(stream, p, sequences * p.hv)
                : Launch<__nv_bfloat16, kernel::Mode::kWhole>(stream, p, sequences * p.hv);
  }
  const int64_t segments = tokens / segment_tokens + sequences;
  const size_t need = KdaSegmentsWorkspace(segments, problem.hv);
  if (workspace.bytes < need) {
    return Status::Resource("kda_prefill cuda_chunk16_segments: workspace of " + std::to_string(workspace.bytes) +
                            " bytes, but it needs " + std::to_string(need));
  }
  return fp32 ? LaunchSegments<float>(stream, p, sequences, segments)
              : LaunchSegments<__nv_bfloat16>(stream, p, sequences, segments);
}

}  // namespace fluvial::ops::delta_rule
