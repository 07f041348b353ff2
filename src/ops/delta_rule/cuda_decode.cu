// SPDX-License-Identifier: Apache-2.0
// One token per sequence, k = 128: the state is read once and written once, and little else happens.
//
// Every warp works alone on 32 rows of S (values) of one sequence and head: a bulk copy brings them to shared memory
// while the warp makes q, k and the decay for itself; it updates the rows in place - 16 lanes share a row, 8 key
// channels each - and a bulk copy takes them back. No barrier between warps; what is in flight per SM is bounded by
// shared memory (three fp32 or six bf16 CTAs), well above what hides the latency of HBM.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <string>

#include "ops/common/sm90_ptx.cuh"
#include "ops/delta_rule/cuda_elements.cuh"
#include "ops/delta_rule/sm90_delta_launch.h"

namespace fluvial::ops::delta_rule {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kDim = 128;
constexpr int kWarpRows = 32;
constexpr int kBatch = 4;  // rows of a half-warp at once

/// Channel of element i of a lane: two groups of four, so that 16 lanes read 256 contiguous bytes of fp32 state.
__device__ __forceinline__ int Channel(int lane, int i) { return (i >> 2) * 64 + lane * 4 + (i & 3); }

template <class T>
__device__ __forceinline__ void Load8(const T* p, int lane, float (&x)[8]) {
  Load4(p + Channel(lane, 0), &x[0]);
  Load4(p + Channel(lane, 4), &x[4]);
}

__device__ __forceinline__ float Sum16(float x) {
#pragma unroll
  for (int m = 8; m > 0; m >>= 1) x += __shfl_xor_sync(~0u, x, m);
  return x;
}

/// q (normalised, scaled), k (normalised), decay and beta of one token, this lane's channels.
template <class IoT>
struct Operands {
  float q[8], k[8], e[8], beta;

  __device__ __forceinline__ void Make(const TokenParams& p, int64_t token, int head, int lane) {
    const int key_head = head / p.group;
    Load8(static_cast<const IoT*>(p.k) + token * p.k_row + key_head * kDim, lane, k);
    Load8(static_cast<const IoT*>(p.q) + token * p.q_row + key_head * kDim, lane, q);
    const float a = p.a_log != nullptr ? expf(p.a_log[head]) : 1.f;
    beta = BetaOf(p, LoadAny(p.beta, p.beta_dtype, token * p.beta_row + head));
    if (p.kda) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int c = head * kDim + Channel(lane, i);
        const float bias = p.dt_bias != nullptr ? p.dt_bias[c] : 0.f;
        e[i] = expf(LogDecay(p, LoadAny(p.gate, p.gate_dtype, token * p.gate_row + c), a, bias));
      }
    } else {
      const float bias = p.dt_bias != nullptr ? p.dt_bias[head] : 0.f;
      const float x = expf(LogDecay(p, LoadAny(p.gate, p.gate_dtype, token * p.gate_row + head), a, bias));
#pragma unroll
      for (int i = 0; i < 8; ++i) e[i] = x;
    }
    float k2 = 0, q2 = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      k2 = fmaf(k[i], k[i], k2);
      q2 = fmaf(q[i], q[i], q2);
    }
    const float kf = NormOf(p, Sum16(k2)), qf = NormOf(p, Sum16(q2)) * p.scale;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      k[i] *= kf;
      q[i] *= qf;
    }
  }
};

template <class IoT, class StateT>
__global__ void __launch_bounds__(kThreads) DecodeKernel(const __grid_constant__ TokenParams p) {
  extern __shared__ __align__(128) uint8_t raw[];
  __shared__ uint64_t arrived[kWarps];
  const int warp = threadIdx.x >> 5;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + warp;  // 32 rows of one sequence and head
  const int blocks = p.v_dim / kWarpRows;
  const int row0 = static_cast<int>(unit % blocks) * kWarpRows;
  const int head = static_cast<int>(unit / blocks % p.hv);
  const int64_t task = unit / blocks / p.hv;
  if (task >= p.header->sequences) return;
  const int64_t token = p.offsets[task];
  const bool empty = p.offsets[task + 1] == token;
  const int read = p.read_slots[task], write = p.write_slots[task];
  if (empty && (read == write || write < 0)) return;

  const int lane32 = threadIdx.x & 31;
  const int lane = lane32 & 15, half = lane32 >> 4;
  StateT* const rows = reinterpret_cast<StateT*>(raw) + warp * (kWarpRows * kDim);
  StateT* const pool = static_cast<StateT*>(p.state);
  const int64_t inside = (static_cast<int64_t>(head) * p.v_dim + row0) * kDim;
  constexpr uint32_t kBytes = kWarpRows * kDim * sizeof(StateT);
  if (read >= 0) {
    if (lane32 == 0) {
      sm90::BarrierInit(&arrived[warp], 1);
      sm90::BarrierInitFence();
      sm90::BarrierExpect(&arrived[warp], kBytes);
      sm90::BulkLoad(sm90::SmemAddr(rows), pool + read * p.slot_pitch + inside, kBytes, &arrived[warp]);
    }
    __syncwarp();
  } else {
    for (int i = lane32; i < kWarpRows * kDim; i += 32) Put(&rows[i], 0.f);
    __syncwarp();
  }

  if (!empty) {
    Operands<IoT> x;
    x.Make(p, token, head, lane);
    // Both halves of the warp start from the same value rows' tokens: row = row0 + 2 * i + half.
    const IoT* v = static_cast<const IoT*>(p.v) + token * p.v_row + static_cast<int64_t>(head) * p.v_dim + row0;
    IoT* out = static_cast<IoT*>(p.out) + token * p.out_row + static_cast<int64_t>(head) * p.v_dim + row0;
    const float value = Get(v[lane32]);  // of row lane32
    float result = 0;                    // of row lane32
    if (read >= 0) sm90::BarrierWait(&arrived[warp], 0);
#pragma unroll 1
    for (int i = 0; i < kWarpRows / 2; i += kBatch) {
      float s[kBatch][8], predict[kBatch], sum[kBatch];
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        Load8(rows + (2 * (i + r) + half) * kDim, lane, s[r]);
        predict[r] = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          s[r][j] *= x.e[j];
          predict[r] = fmaf(s[r][j], x.k[j], predict[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kBatch; ++r) predict[r] = Sum16(predict[r]);
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        const float d = x.beta * (__shfl_sync(~0u, value, 2 * (i + r) + half) - predict[r]);
        sum[r] = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          s[r][j] = fmaf(d, x.k[j], s[r][j]);
          sum[r] = fmaf(s[r][j], x.q[j], sum[r]);
        }
        StateT* to = rows + (2 * (i + r) + half) * kDim;
        Store4(to + Channel(lane, 0), &s[r][0]);
        Store4(to + Channel(lane, 4), &s[r][4]);
      }
#pragma unroll
      for (int r = 0; r < kBatch; ++r) {
        const float total = Sum16(sum[r]);
        const float even = __shfl_sync(~0u, total, 0), odd = __shfl_sync(~0u, total, 16);
        if (lane32 == 2 * (i + r)) result = even;
        if (lane32 == 2 * (i + r) + 1) result = odd;
      }
    }
    Put(&out[lane32], result);
  } else if (read >= 0) {
    sm90::BarrierWait(&arrived[warp], 0);
  }
  if (write >= 0) {
    sm90::FenceProxyAsync();  // every lane's stores, before the copy engine reads them
    __syncwarp();
    if (lane32 == 0) sm90::BulkStoreAndWait(pool + write * p.slot_pitch + inside, sm90::SmemAddr(rows), kBytes);
  }
}

template <class IoT, class StateT>
cudaError_t Launch(const TokenParams& p, unsigned blocks, cudaStream_t stream) {
  constexpr int kBytes = kWarps * kWarpRows * kDim * sizeof(StateT);
  // Per device and idempotent; a microsecond, and only where the default limit is too small.
  if constexpr (kBytes > 48 * 1024) {
    const cudaError_t e =
        cudaFuncSetAttribute(DecodeKernel<IoT, StateT>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (e != cudaSuccess) return e;
  }
  DecodeKernel<IoT, StateT><<<blocks, kThreads, kBytes, stream>>>(p);
  return cudaGetLastError();
}

template <class IoT>
cudaError_t LaunchState(const TokenParams& p, DType state, unsigned blocks, cudaStream_t stream) {
  if (state == DType::kF32) return Launch<IoT, float>(p, blocks, stream);
  if (state == DType::kBF16) return Launch<IoT, __nv_bfloat16>(p, blocks, stream);
  return Launch<IoT, __half>(p, blocks, stream);
}

}  // namespace

Status LaunchDecode(Stream& stream, const Problem& problem, const Args& args) {
  const SequencePlan& plan = *args.plan;
  const int64_t sequences = stream.capturing() ? plan.bounds().max_sequences : plan.sequences();
  if (sequences == 0) return Status::Ok();
  const TokenParams p = MakeTokenParams(problem, args);
  const int64_t units = sequences * p.hv * (p.v_dim / kWarpRows);
  const auto blocks = static_cast<unsigned>((units + kWarps - 1) / kWarps);
  auto* native = static_cast<cudaStream_t>(stream.native());
  cudaError_t e = cudaSuccess;
  switch (problem.io) {
    case DType::kF32:
      e = LaunchState<float>(p, problem.state, blocks, native);
      break;
    case DType::kBF16:
      e = LaunchState<__nv_bfloat16>(p, problem.state, blocks, native);
      break;
    default:
      e = LaunchState<__half>(p, problem.state, blocks, native);
      break;
  }
  if (e == cudaSuccess) return Status::Ok();
  return Status::Failed(std::string(Name(problem.op)) + " cuda_decode: launch: " + cudaGetErrorString(e));
}

}  // namespace fluvial::ops::delta_rule
