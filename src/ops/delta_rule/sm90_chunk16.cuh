// SPDX-License-Identifier: Apache-2.0
// Delta-rule prefill on sm_90a, chunk 16: KDA with bounded gates, and GDN (sm90_chunk16_gdn.cuh). One CTA per
// (sequence, value head), or per segment of a sequence.
//
// Two math warpgroups each hold 64 rows of S^T (V x K) as fp32 wgmma accumulators for the whole sequence; two
// factor warpgroups (four teams of two warps) turn q, k, gate and beta of the next chunks into the operands of
// the chain. With G the cumulative log decay inside the chunk (inclusive), kd = k e^G, qd = scale q e^G,
// kn = k e^-G, A = strict_lower(beta_i <kd_i, kn_j>), P = lower(<qd_i, kn_j>), T = (I + A)^-1 (operators:
// Yang et al., arXiv 2412.06464, section 3; Kimi Linear, arXiv 2510.26692), the chain per chunk is
//     X = S kd^T,  R = v - X,  S <- S diag(e^G_end) + R W,  o = S_old qd^T + R P'^T,
//     W = diag(beta) T^T kn diag(e^G_end),   P' = P T diag(beta).
// The inverse and W are off the serial chain, which is two dependent groups of wgmma.
//
// Segments (few heads, long sequences): the recurrence is affine in S, so a segment maps the rows of S by s -> s M + b.
// Mode::kScan runs the chain of every segment but the last twice - from zero state (b) and from the identity with
// v = 0 (M) - CombineSegments turns these into the state at each segment's start, and Mode::kReplay runs all
// segments from there. Exact, at about three times the work of Mode::kWhole.
//
// Why 16: the bounded gate gives |G| <= 80 nats = 115.4 bits in a chunk, so kn stays below 2^116 and fits bf16.
// Rounding points (mirrored by the test reference): kd, qd, kn, W, P', T diag(beta), R and the copy of S that
// feeds X and o are bf16; everything else is fp32.
#pragma once

#include "ops/delta_rule/sm90_chunk16_chain.cuh"
#include "ops/delta_rule/sm90_chunk16_gdn.cuh"
#include "ops/delta_rule/sm90_chunk16_kda.cuh"

namespace fluvial::sm90::chunk16 {

template <class StateT, Mode kMode, Gate kGate>
__global__ void __launch_bounds__(kThreads<kGate>, 1) PrefillKernel(const __grid_constant__ DeltaParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& sm = *reinterpret_cast<Smem<kGate>*>(raw);
  Task task{};
  if (!FindTask<kMode>(p, &task)) return;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages<kGate>; ++i) {
      BarrierInit(&sm.full[i], kTeamThreads);
      BarrierInit(&sm.empty[i], kMathThreads / 32);
      BarrierInit(&sm.v[i], 1);
    }
    for (int t = 0; t < Shape<kGate>::kTeams; ++t) {
      BarrierInit(&sm.raw[t][0], 1);
      BarrierInit(&sm.raw[t][1], 1);
    }
    BarrierInitFence();
  }
  __syncthreads();
  if (threadIdx.x < kMathThreads) {
    RegistersUp<Shape<kGate>::kMathRegisters>();
    MathLoop<StateT, kMode, kGate>(sm, p, task);
  } else {
    RegistersDown<Shape<kGate>::kTeamRegisters>();
    if constexpr (kGate == Gate::kPerChannel)
      KdaFactorLoop<kMode>(sm, p, task);
    else
      GdnFactorLoop<kMode>(sm, p, task);
  }
}

constexpr int kCombineRows = 4;  // rows of S per CTA: rows are independent, and a segment costs latency, not work

/// Start states of all segments from the scan: start_0 = the slot's state, start_{s+1} = start_s M_s + b_s, each over
/// the b it consumed (cell 2 (segment hv + head) of the workspace becomes start of `segment`). fp32 throughout.
template <class StateT>
__global__ void __launch_bounds__(kDim) CombineSegments(const __grid_constant__ DeltaParams p) {
  __shared__ float s[kCombineRows][kDim];
  constexpr int kBlocks = kDim / kCombineRows;
  constexpr int kAhead = 64;  // rows of M in flight
  const int row0 = blockIdx.x % kBlocks * kCombineRows;
  const int head = blockIdx.x / kBlocks % p.hv, seq = blockIdx.x / kBlocks / p.hv;
  if (seq >= p.header->sequences) return;
  int first = 0;
  for (int n = 0; n < seq; ++n) first += Segments(p.offsets[n + 1] - p.offsets[n], p.segment_tokens);
  const int count = Segments(p.offsets[seq + 1] - p.offsets[seq], p.segment_tokens);
  const int column = threadIdx.x;

  float state[kCombineRows];
  const int slot = p.read_slots[seq];
#pragma unroll
  for (int r = 0; r < kCombineRows; ++r) {
    state[r] = 0.f;
    if (slot >= 0) {
      state[r] = static_cast<float>(PoolState<const StateT>(p, slot, head)[(row0 + r) * kDim + column]);
    }
  }
  for (int segment = 0; segment < count; ++segment) {
    float* b = p.workspace + (static_cast<int64_t>(first + segment) * p.hv + head) * 2 * (kDim * kDim);
    const float* m = b + kDim * kDim + column;
    const bool last = segment + 1 == count;
    float x[kAhead], next[kCombineRows];
    if (!last) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) x[i] = m[i * kDim];
    }
#pragma unroll
    for (int r = 0; r < kCombineRows; ++r) {
      float* cell = b + (row0 + r) * kDim + column;
      next[r] = last ? 0.f : *cell;
      *cell = state[r];
    }
    if (last) break;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kCombineRows; ++r) s[r][column] = state[r];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDim; k += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; i += 4) {
#pragma unroll
        for (int r = 0; r < kCombineRows; ++r) {
          const float4 y = *reinterpret_cast<const float4*>(&s[r][k + i]);
          next[r] = fmaf(y.x, x[i], fmaf(y.y, x[i + 1], fmaf(y.z, x[i + 2], fmaf(y.w, x[i + 3], next[r]))));
        }
        if (k + kAhead < kDim) {
#pragma unroll
          for (int j = i; j < i + 4; ++j) x[j] = m[(k + kAhead + j) * kDim];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kCombineRows; ++r) state[r] = next[r];
  }
}

}  // namespace fluvial::sm90::chunk16
