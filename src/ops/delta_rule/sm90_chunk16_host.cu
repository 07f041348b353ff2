// SPDX-License-Identifier: Apache-2.0

#include <string>

#include "ops/common/sm90_tensor_map.cuh"
#include "ops/delta_rule/sm90_chunk16_launch.cuh"
#include "ops/delta_rule/sm90_delta_launch.h"

namespace fluvial::ops::delta_rule {
namespace {

namespace kernel = sm90::chunk16;

/// {128, heads, tokens} of bf16 with free token pitch, box {64, 1, 16}, 128-byte swizzle.
Status EncodeMap(const TensorView& t, CUtensorMap* map) {
  const cuuint64_t dims[3] = {static_cast<cuuint64_t>(t.dim(2)), static_cast<cuuint64_t>(t.dim(1)),
                              static_cast<cuuint64_t>(t.dim(0))};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(t.stride(1)) * 2, static_cast<cuuint64_t>(t.stride(0)) * 2};
  const cuuint32_t box[3] = {64, 1, kernel::kChunk}, element_strides[3] = {1, 1, 1};
  const CUresult e =
      sm90::TensorMapEncoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t.data, dims, strides, box, element_strides,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS) {
    return Status::Failed("delta rule cuda_chunk16: the driver refused a tensor map of " + t.ToString() + " (error " +
                          std::to_string(e) + ")");
  }
  return Status::Ok();
}

}  // namespace

Status LaunchChunk16(Stream& stream, const Problem& problem, const Args& args, int64_t parts, Workspace workspace) {
  const SequencePlan& plan = *args.plan;
  if (plan.sequences() == 0 && !stream.capturing()) return Status::Ok();
  if (sm90::TensorMapEncoder() == nullptr) {
    return Status::Failed(
        "delta rule cuda_chunk16: the NVIDIA driver is older than CUDA 12 and has no tensor maps; update it");
  }
  sm90::DeltaParams p{};
  if (args.q.dim(0) > 0) {
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.q, &p.q_map));
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.k, &p.k_map));
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.v, &p.v_map));
    if (problem.kda()) FLUVIAL_RETURN_IF_ERROR(EncodeMap(args.gate, &p.gate_map));
  }
  p.beta = args.beta.data;
  p.gate = args.gate.data;
  p.gate_row = args.gate.stride(0);
  p.gate_form = static_cast<int32_t>(problem.gate);
  p.gate_fp32 = problem.gate_dtype == DType::kF32;
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
  p.lower_bound2 = problem.lower_bound * 1.4426950408889634f;
  kernel::LaunchShape shape;
  // Replays of a captured launch may carry more than the capture did, up to the plan's capacity.
  shape.sequences = stream.capturing() ? plan.bounds().max_sequences : plan.sequences();
  shape.fp32_state = problem.state == DType::kF32;
  shape.parts = parts;
  if (parts != 0) {
    const size_t need = BalancedWorkspace(parts);
    if (workspace.bytes < need) {
      return Status::Resource(std::string(Name(problem.op)) + " cuda_chunk16_balanced: workspace of " +
                              std::to_string(workspace.bytes) + " bytes, but it needs " + std::to_string(need));
    }
    p.workspace = workspace.data;
    uint8_t* const boundaries = static_cast<uint8_t*>(workspace.data) + parts * sm90::kBalancedCell;
    p.boundaries = boundaries;
    p.failures = reinterpret_cast<int32_t*>(boundaries + parts * sm90::kBalancedBoundary);
  }
  return problem.kda() ? kernel::LaunchKda(stream, p, shape) : kernel::LaunchGdn(stream, p, shape);
}

}  // namespace fluvial::ops::delta_rule
