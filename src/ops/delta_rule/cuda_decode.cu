// SPDX-License-Identifier: Apache-2.0
// One token per sequence, k = 128: the state is read once and written once, and little else happens.
//
// 16 lanes share a row of S (a value), 8 key channels each; every group of 16 lanes makes q, k and the decay for itself
// (three small loads that L2 serves), so a CTA needs no shared memory and no barrier, and state loads are in flight
// from the first instruction on. Rows are taken four at a time with the next four already loading.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <string>

#include "ops/delta_rule/cuda_elements.cuh"
#include "ops/delta_rule/sm90_delta_launch.h"

namespace fluvial::ops::delta_rule {
namespace {

constexpr int kThreads = 128;
constexpr int kGroups = kThreads / 16;
constexpr int kDim = 128;
constexpr int kRows = 4;  // rows of a group in flight

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

template <class IoT, class StateT>
__global__ void __launch_bounds__(kThreads) DecodeKernel(const __grid_constant__ TokenParams p) {
  const int split = blockIdx.x % p.tiles;  // of the values
  const int head = blockIdx.x / p.tiles % p.hv;
  const int task = blockIdx.x / p.tiles / p.hv;
  if (task >= p.header->sequences) return;
  const int64_t token = p.offsets[task];
  const bool empty = p.offsets[task + 1] == token;
  const int lane = threadIdx.x & 15, group = threadIdx.x >> 4;
  const int per_split = p.v_dim / p.tiles;
  const int read = p.read_slots[task], write = p.write_slots[task];
  if (empty && (read == write || write < 0)) return;
  StateT* const pool = static_cast<StateT*>(p.state);
  const int64_t head_state = static_cast<int64_t>(head) * p.v_dim * kDim;
  const StateT* from = pool + read * p.slot_pitch + head_state;
  StateT* to = pool + write * p.slot_pitch + head_state;

  // This group's rows: first, first + kGroups, ... below end.
  const int end = (split + 1) * per_split;
  int row = split * per_split + group;
  float s[kRows][8], next[kRows][8];
  auto load = [&](int row0, float(&x)[kRows][8]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int at = row0 + r * kGroups;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[r][i] = 0.f;
      if (read >= 0 && at < end) Load8(from + static_cast<int64_t>(at) * kDim, lane, x[r]);
    }
  };
  load(row, s);

  float k[8], q[8], e[8];
  float beta = 0;
  if (!empty) {
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
    const float kf = NormOf(p, Sum16(k2)), qf = NormOf(p, Sum16(q2));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      k[i] *= kf;
      q[i] *= qf * p.scale;
    }
  }

  for (; row < end; row += kRows * kGroups) {
    load(row + kRows * kGroups, next);
    if (!empty) {
      float predict[kRows], value[kRows], result[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int at = row + r * kGroups;
        value[r] = at < end
                       ? Get(static_cast<const IoT*>(p.v)[token * p.v_row + static_cast<int64_t>(head) * p.v_dim + at])
                       : 0.f;
        predict[r] = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          s[r][i] *= e[i];
          predict[r] = fmaf(s[r][i], k[i], predict[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) predict[r] = Sum16(predict[r]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float d = beta * (value[r] - predict[r]);
        result[r] = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          s[r][i] = fmaf(d, k[i], s[r][i]);
          result[r] = fmaf(s[r][i], q[i], result[r]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) result[r] = Sum16(result[r]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int at = row + r * kGroups;
        if (lane == 0 && at < end) {
          Put(&static_cast<IoT*>(p.out)[token * p.out_row + static_cast<int64_t>(head) * p.v_dim + at], result[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int at = row + r * kGroups;
      if (write >= 0 && at < end) {
        StateT* cell = to + static_cast<int64_t>(at) * kDim;
        Store4(cell + Channel(lane, 0), &s[r][0]);
        Store4(cell + Channel(lane, 4), &s[r][4]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) s[r][i] = next[r][i];
    }
  }
}

template <class IoT>
cudaError_t LaunchState(const TokenParams& p, DType state, unsigned blocks, cudaStream_t stream) {
  if (state == DType::kF32)
    DecodeKernel<IoT, float><<<blocks, kThreads, 0, stream>>>(p);
  else if (state == DType::kBF16)
    DecodeKernel<IoT, __nv_bfloat16><<<blocks, kThreads, 0, stream>>>(p);
  else
    DecodeKernel<IoT, __half><<<blocks, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

Status LaunchDecode(Stream& stream, const Problem& problem, const Args& args) {
  const SequencePlan& plan = *args.plan;
  const int64_t sequences = stream.capturing() ? plan.bounds().max_sequences : plan.sequences();
  if (sequences == 0) return Status::Ok();
  TokenParams p = MakeTokenParams(problem, args);
  // Values are split over CTAs only as far as the GPU would idle: every CTA repeats the work on q, k and gates.
  p.tiles = 1;
  while (p.tiles < 4 && sequences * p.hv * p.tiles < 2 * stream.device().multiprocessors) p.tiles *= 2;
  const auto blocks = static_cast<unsigned>(sequences * p.hv * p.tiles);
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
