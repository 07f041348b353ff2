// SPDX-License-Identifier: Apache-2.0
// The recurrence token by token on any CUDA GPU: the whole contract, fp32 arithmetic. The decode kernel, and the
// prefill kernel for what the chunked ones refuse.
//
// One CTA takes 8 * kRows rows of S (values) of one sequence and head and keeps them in registers for all tokens:
// 16 lanes share a row, each with kPerLane key channels in groups of four (16-byte loads of fp32 state). Per token
// the CTA first makes q, k and the decay once in shared memory (one thread per channel), then every row does
//     s <- a s,  d = beta (v - <s, k>),  s <- s + d k,  o = scale <s, q>.
// Bound by state traffic when sequences are short: it reads and writes each state once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <string>

#include "ops/delta_rule/cuda_elements.cuh"
#include "ops/delta_rule/sm90_delta_launch.h"

namespace fluvial::ops::delta_rule {
namespace {

constexpr int kThreads = 128;
constexpr int kGroups = kThreads / 16;  // row groups in a CTA
constexpr int kStep = 4;                // tokens prepared between two barriers

/// Channel of element i of a lane: groups of four, 64 channels apart.
__device__ __forceinline__ int Channel(int lane, int i) { return (i >> 2) * 64 + lane * 4 + (i & 3); }

template <class StateT, int kRows, int kPerLane, bool kFull>
struct Rows {
  float s[kRows][kPerLane];

  __device__ __forceinline__ void Read(const StateT* slot, const TokenParams& p, int row0, int lane) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = row0 + r * kGroups;
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        if constexpr (kFull) {
          if (slot != nullptr) {
            Load4(slot + static_cast<int64_t>(row) * p.k_dim + Channel(lane, i), &s[r][i]);
            continue;
          }
        }
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
          const int c = Channel(lane, j);
          const bool in = slot != nullptr && row < p.v_dim && c < p.k_dim;
          s[r][j] = in ? Get(slot[static_cast<int64_t>(row) * p.k_dim + c]) : 0.f;
        }
      }
    }
  }

  __device__ __forceinline__ void Write(StateT* slot, const TokenParams& p, int row0, int lane) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = row0 + r * kGroups;
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        if constexpr (kFull) {
          Store4(slot + static_cast<int64_t>(row) * p.k_dim + Channel(lane, i), &s[r][i]);
        } else {
#pragma unroll
          for (int j = i; j < i + 4; ++j) {
            const int c = Channel(lane, j);
            if (row < p.v_dim && c < p.k_dim) Put(&slot[static_cast<int64_t>(row) * p.k_dim + c], s[r][j]);
          }
        }
      }
    }
  }
};

/// kFull: k_dim = 16 kPerLane, v_dim a multiple of the CTA's rows, states 16-byte aligned.
template <class IoT, class StateT, int kRows, int kPerLane, bool kFull>
__global__ void __launch_bounds__(kThreads) TokensKernel(const __grid_constant__ TokenParams p) {
  constexpr int kK = kPerLane * 16;  // padded key channels
  __shared__ float k_s[kStep][kK], q_s[kStep][kK], a_s[kStep][kK];
  __shared__ float sums[2 * kStep][kThreads / 32];
  __shared__ float beta_s[kStep];

  const int tile = blockIdx.x % p.tiles;
  const int head = blockIdx.x / p.tiles % p.hv;
  const int task = blockIdx.x / p.tiles / p.hv;
  if (task >= p.header->sequences) return;
  const int seq = p.order[task];
  const int64_t begin = p.offsets[seq], length = p.offsets[seq + 1] - begin;
  const int key_head = head / p.group;
  const int lane = threadIdx.x & 15, group = threadIdx.x >> 4;
  const int row0 = tile * (kGroups * kRows) + group;  // this group's rows: row0, row0 + 8, ...
  const int64_t head_state = static_cast<int64_t>(head) * p.v_dim * p.k_dim;
  StateT* const pool = static_cast<StateT*>(p.state);

  Rows<StateT, kRows, kPerLane, kFull> rows;
  const int read = p.read_slots[seq];
  rows.Read(read >= 0 ? pool + read * p.slot_pitch + head_state : nullptr, p, row0, lane);

  int64_t checkpoint_row = 0;
  if (p.checkpoint_every > 0) {
    for (int m = 0; m < seq; ++m) checkpoint_row += (p.offsets[m + 1] - p.offsets[m]) / p.checkpoint_every;
  }
  const float a = p.a_log != nullptr ? expf(p.a_log[head]) : 1.f;

  for (int64_t t0 = 0; t0 < length; t0 += kStep) {
    const int steps = static_cast<int>(min(static_cast<int64_t>(kStep), length - t0));
    // Prepare: thread c makes channels c, c + 128, ... of these tokens; values stay in registers for the norm.
    constexpr int kPerThread = (kK + kThreads - 1) / kThreads;
    float kv[kStep][kPerThread], qv[kStep][kPerThread];
    __syncthreads();  // the previous tokens are consumed
#pragma unroll
    for (int t = 0; t < kStep; ++t) {
      float k2 = 0, q2 = 0;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int c = threadIdx.x + i * kThreads;
        kv[t][i] = qv[t][i] = 0.f;
        if (t < steps && c < p.k_dim) {
          const int64_t token = begin + t0 + t;
          kv[t][i] = Get(static_cast<const IoT*>(p.k)[token * p.k_row + key_head * p.k_dim + c]);
          qv[t][i] = Get(static_cast<const IoT*>(p.q)[token * p.q_row + key_head * p.k_dim + c]);
          if (p.kda) {
            const float bias = p.dt_bias != nullptr ? p.dt_bias[head * p.k_dim + c] : 0.f;
            const float x = LoadAny(p.gate, p.gate_dtype, token * p.gate_row + head * p.k_dim + c);
            a_s[t][c] = expf(LogDecay(p, x, a, bias));
          } else {
            const float bias = p.dt_bias != nullptr ? p.dt_bias[head] : 0.f;
            a_s[t][c] = expf(LogDecay(p, LoadAny(p.gate, p.gate_dtype, token * p.gate_row + head), a, bias));
          }
        } else if (c < kK) {
          a_s[t][c] = 0.f;
        }
        k2 = fmaf(kv[t][i], kv[t][i], k2);
        q2 = fmaf(qv[t][i], qv[t][i], q2);
      }
#pragma unroll
      for (int m = 16; m > 0; m >>= 1) {
        k2 += __shfl_xor_sync(~0u, k2, m);
        q2 += __shfl_xor_sync(~0u, q2, m);
      }
      if ((threadIdx.x & 31) == 0) {
        sums[2 * t][threadIdx.x >> 5] = k2;
        sums[2 * t + 1][threadIdx.x >> 5] = q2;
      }
      if (t < steps && threadIdx.x == t) {
        beta_s[t] = BetaOf(p, LoadAny(p.beta, p.beta_dtype, (begin + t0 + t) * p.beta_row + head));
      }
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kStep; ++t) {
      const float* ks = sums[2 * t];
      const float* qs = sums[2 * t + 1];
      const float kf = NormOf(p, (ks[0] + ks[1]) + (ks[2] + ks[3]));
      const float qf = NormOf(p, (qs[0] + qs[1]) + (qs[2] + qs[3]));
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int c = threadIdx.x + i * kThreads;
        if (c < kK) {
          k_s[t][c] = kv[t][i] * kf;
          q_s[t][c] = qv[t][i] * qf * p.scale;
        }
      }
    }
    __syncthreads();

    for (int t = 0; t < steps; ++t) {
      const int64_t token = begin + t0 + t;
      float kk[kPerLane], qq[kPerLane], ee[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        *reinterpret_cast<float4*>(&kk[i]) = *reinterpret_cast<const float4*>(&k_s[t][Channel(lane, i)]);
        *reinterpret_cast<float4*>(&qq[i]) = *reinterpret_cast<const float4*>(&q_s[t][Channel(lane, i)]);
        *reinterpret_cast<float4*>(&ee[i]) = *reinterpret_cast<const float4*>(&a_s[t][Channel(lane, i)]);
      }
      const float beta = beta_s[t];
      float predict[kRows], value[kRows], result[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = row0 + r * kGroups;
        value[r] = kFull || row < p.v_dim
                       ? Get(static_cast<const IoT*>(p.v)[token * p.v_row + static_cast<int64_t>(head) * p.v_dim + row])
                       : 0.f;
        predict[r] = 0;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          rows.s[r][i] *= ee[i];
          predict[r] = fmaf(rows.s[r][i], kk[i], predict[r]);
        }
      }
#pragma unroll
      for (int m = 8; m > 0; m >>= 1) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) predict[r] += __shfl_xor_sync(~0u, predict[r], m);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float d = beta * (value[r] - predict[r]);
        result[r] = 0;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          rows.s[r][i] = fmaf(d, kk[i], rows.s[r][i]);
          result[r] = fmaf(rows.s[r][i], qq[i], result[r]);
        }
      }
#pragma unroll
      for (int m = 8; m > 0; m >>= 1) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) result[r] += __shfl_xor_sync(~0u, result[r], m);
      }
      if (lane == 0) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int row = row0 + r * kGroups;
          if (kFull || row < p.v_dim) {
            Put(&static_cast<IoT*>(p.out)[token * p.out_row + static_cast<int64_t>(head) * p.v_dim + row], result[r]);
          }
        }
      }
      if (p.checkpoint_every > 0 && (t0 + t + 1) % p.checkpoint_every == 0) {
        StateT* to = static_cast<StateT*>(p.checkpoints) +
                     (checkpoint_row + (t0 + t + 1) / p.checkpoint_every - 1) * p.hv * p.v_dim * p.k_dim + head_state;
        rows.Write(to, p, row0, lane);
      }
      if (p.token_slots != nullptr) {
        const int slot = p.token_slots[seq * p.token_slots_row + t0 + t];
        if (slot >= 0) rows.Write(pool + slot * p.slot_pitch + head_state, p, row0, lane);
      }
    }
  }
  const int write = p.write_slots[seq];
  if (p.token_slots == nullptr && write >= 0) rows.Write(pool + write * p.slot_pitch + head_state, p, row0, lane);
}

template <class IoT, class StateT, int kRows, int kPerLane>
cudaError_t LaunchRows(TokenParams p, int64_t sequences, bool full, cudaStream_t stream) {
  constexpr int kTile = kGroups * kRows;
  p.tiles = (p.v_dim + kTile - 1) / kTile;
  const auto blocks = static_cast<unsigned>(sequences * p.hv * p.tiles);
  if (full && p.k_dim == 16 * kPerLane && p.v_dim % kTile == 0) {
    TokensKernel<IoT, StateT, kRows, kPerLane, true><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    TokensKernel<IoT, StateT, kRows, kPerLane, false><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

template <class IoT, class StateT>
cudaError_t LaunchDims(const TokenParams& p, int64_t sequences, bool full, cudaStream_t stream) {
  if (p.k_dim <= 64) return LaunchRows<IoT, StateT, 4, 4>(p, sequences, full, stream);
  if (p.k_dim <= 128) return LaunchRows<IoT, StateT, 4, 8>(p, sequences, full, stream);
  if (p.k_dim <= 256) return LaunchRows<IoT, StateT, 2, 16>(p, sequences, full, stream);
  return LaunchRows<IoT, StateT, 1, 32>(p, sequences, full, stream);
}

template <class IoT>
cudaError_t LaunchState(const TokenParams& p, DType state, int64_t sequences, bool full, cudaStream_t stream) {
  if (state == DType::kF32) return LaunchDims<IoT, float>(p, sequences, full, stream);
  if (state == DType::kBF16) return LaunchDims<IoT, __nv_bfloat16>(p, sequences, full, stream);
  return LaunchDims<IoT, __half>(p, sequences, full, stream);
}

}  // namespace

Status LaunchTokens(Stream& stream, const Problem& problem, const Args& args) {
  const SequencePlan& plan = *args.plan;
  const int64_t sequences = stream.capturing() ? plan.bounds().max_sequences : plan.sequences();
  if (sequences == 0) return Status::Ok();
  const TokenParams p = MakeTokenParams(problem, args);
  const bool full = problem.alignment == 16;
  auto* native = static_cast<cudaStream_t>(stream.native());
  cudaError_t e = cudaSuccess;
  switch (problem.io) {
    case DType::kF32:
      e = LaunchState<float>(p, problem.state, sequences, full, native);
      break;
    case DType::kBF16:
      e = LaunchState<__nv_bfloat16>(p, problem.state, sequences, full, native);
      break;
    default:
      e = LaunchState<__half>(p, problem.state, sequences, full, native);
      break;
  }
  if (e == cudaSuccess) return Status::Ok();
  return Status::Failed(std::string(Name(problem.op)) + " cuda: launch: " + cudaGetErrorString(e));
}

}  // namespace fluvial::ops::delta_rule
