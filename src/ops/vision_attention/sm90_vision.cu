// SPDX-License-Identifier: Apache-2.0
// Host side of the sm_90a kernels: tensor maps, grids, launches.
#include <algorithm>
#include <atomic>
#include <string>

#include "ops/common/sm90_tensor_map.cuh"
#include "ops/vision_attention/sm90_vision_params.h"
#include "ops/vision_attention/sm90_vision_stream.cuh"
#include "ops/vision_attention/sm90_vision_window.cuh"

namespace fluvial::ops::vision_attention {
namespace {

namespace kernel = sm90::vision;

Status Failed(const std::string& what) { return Status::Failed(std::string(kOpName) + ": cuda: " + what); }

/// {d, heads, rows, sequences}, boxes of `columns` x 1 x `rows` x 1, swizzled over the box's columns.
Status EncodeMap(const Problem& p, const TensorView& t, int columns, int rows, CUtensorMap* map) {
  const RowStrides s = StridesOf(p, t);
  const int64_t per_sequence = p.padded != 0 ? p.padded : p.tokens, sequences = p.padded != 0 ? p.sequences : 1;
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(p.d), static_cast<cuuint64_t>(p.heads),
                              static_cast<cuuint64_t>(per_sequence), static_cast<cuuint64_t>(sequences)};
  // A dimension of one element may come with any stride, but the driver wants a plausible one.
  const auto bytes = [](int64_t elements) { return static_cast<cuuint64_t>(std::max<int64_t>(elements * 2, 16)); };
  const cuuint64_t strides[3] = {bytes(p.heads > 1 ? s.head : 0), bytes(per_sequence > 1 ? s.token : 0),
                                 bytes(sequences > 1 ? s.sequence : 0)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(columns), 1, static_cast<cuuint32_t>(rows), 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUresult e = sm90::TensorMapEncoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, t.data, dims, strides, box,
                                              element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                              columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS) {
    return Failed("the driver refused a tensor map of " + t.ToString() + " (error " + std::to_string(e) + ")");
  }
  return Status::Ok();
}

/// Raises the kernel's shared-memory limit, once per device, and launches.
template <auto kKernel>
Status Launch(Stream& stream, const kernel::Params& params, int64_t grid, int threads, uint32_t smem) {
  static std::atomic<uint64_t> done{0};
  const uint64_t bit = uint64_t{1} << (stream.device().index & 63);
  if ((done.load(std::memory_order_relaxed) & bit) == 0) {
    const cudaError_t e =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
    if (e != cudaSuccess) return Failed(std::string("raising the shared-memory limit: ") + cudaGetErrorString(e));
    done.fetch_or(bit, std::memory_order_relaxed);
  }
  kKernel<<<static_cast<unsigned>(grid), threads, smem, static_cast<cudaStream_t>(stream.native())>>>(params);
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? Status::Ok() : Failed(std::string("launch: ") + cudaGetErrorString(e));
}

template <int kMain, int kTail, int kGroups>
Status LaunchStream(Stream& stream, const kernel::Params& params, int64_t tiles) {
  using S = kernel::StreamShape<kMain, kTail, kGroups>;
  return Launch<kernel::StreamKernel<kMain, kTail, kGroups>>(stream, params, tiles, S::kThreads, S::kBytes);
}

template <int kMain, int kTail>
Status LaunchWindows(Stream& stream, const kernel::Params& params, int64_t sequences) {
  return Launch<kernel::WindowKernel<kMain, kTail>>(stream, params, sequences * params.heads, 128,
                                                    kernel::WindowSmem<kMain, kTail>::kBytes);
}

/// Blocks of `queries` over all sequences: exact, or for a captured launch what the plan's bounds allow at most.
int64_t CountBlocks(const SequencePlan& plan, int64_t queries, bool capturing) {
  if (capturing) return plan.bounds().max_tokens / queries + plan.bounds().max_sequences;
  int64_t blocks = 0;
  for (int32_t n = 0; n < plan.sequences(); ++n) {
    blocks += (plan.offsets()[n + 1] - plan.offsets()[n] + queries - 1) / queries;
  }
  return blocks;
}

}  // namespace

Status LaunchCuda(Stream& stream, const Problem& p, const Args& a) {
  const SequencePlan& plan = *a.plan;
  const bool capturing = stream.capturing();
  if (p.tokens == 0 || (plan.tokens() == 0 && !capturing)) return Status::Ok();
  if (sm90::TensorMapEncoder() == nullptr) {
    return Failed("the NVIDIA driver is older than CUDA 12 and has no tensor maps; update it");
  }
  // Replays of a captured launch may carry more than the capture did, up to the plan's capacity.
  const int64_t longest = capturing ? plan.bounds().max_length : plan.max_length();
  const int64_t sequences = capturing ? plan.bounds().max_sequences : plan.sequences();
  const bool windows = longest <= kWindowTokens;
  const int64_t queries = windows ? 64
                                  : ChooseQueries(p.d, capturing ? plan.bounds().max_tokens : plan.tokens(), sequences,
                                                  p.heads, longest, stream.device().multiprocessors);
  const bool tail = p.d == 72 || p.d == 80;
  int keys = 64;
  if (!windows) keys = tail && queries == 192 ? kernel::StreamShape<64, 16, 3>::kKeys : 128;
  kernel::Params params{};
  FLUVIAL_RETURN_IF_ERROR(EncodeMap(p, a.q, 64, static_cast<int>(queries), &params.q_main));
  FLUVIAL_RETURN_IF_ERROR(EncodeMap(p, a.k, 64, keys, &params.k_main));
  FLUVIAL_RETURN_IF_ERROR(EncodeMap(p, a.v, 64, keys, &params.v_main));
  if (tail) {
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(p, a.q, 16, static_cast<int>(queries), &params.q_tail));
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(p, a.k, 16, keys, &params.k_tail));
    FLUVIAL_RETURN_IF_ERROR(EncodeMap(p, a.v, 16, keys, &params.v_tail));
  }
  const RowStrides out = StridesOf(p, a.out), lse = p.lse ? LseStridesOf(p, a.lse) : RowStrides{};
  params.out = static_cast<__nv_bfloat16*>(a.out.data);
  params.lse = p.lse ? static_cast<float*>(a.lse.data) : nullptr;
  params.out_sequence = out.sequence;
  params.out_packed = out.packed;
  params.out_token = out.token;
  params.out_head = out.head;
  params.lse_sequence = lse.sequence;
  params.lse_packed = lse.packed;
  params.lse_token = lse.token;
  params.lse_head = lse.head;
  params.header = plan.device_header();
  params.offsets = plan.device_offsets();
  params.order = plan.device_order();
  params.heads = p.heads;
  params.d = p.d;
  params.padded = p.padded != 0 ? 1 : 0;
  params.scale = p.scale;
  params.scale_log2 = p.scale * 1.44269504f;
  if (windows) {
    if (p.d == 64) return LaunchWindows<64, 0>(stream, params, sequences);
    if (p.d == 128) return LaunchWindows<128, 0>(stream, params, sequences);
    return LaunchWindows<64, 16>(stream, params, sequences);
  }
  const int64_t tiles = CountBlocks(plan, queries, capturing) * p.heads;
  if (p.d == 128) return LaunchStream<128, 0, 2>(stream, params, tiles);
  if (p.d == 64) {
    return queries == 192 ? LaunchStream<64, 0, 3>(stream, params, tiles)
                          : LaunchStream<64, 0, 2>(stream, params, tiles);
  }
  return queries == 192 ? LaunchStream<64, 16, 3>(stream, params, tiles)
                        : LaunchStream<64, 16, 2>(stream, params, tiles);
}

}  // namespace fluvial::ops::vision_attention
