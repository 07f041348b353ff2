// SPDX-License-Identifier: Apache-2.0
// KDA prefill on sm_90a, chunk 16, bounded gate: one CTA per (sequence, value head), or per segment of a sequence.
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

#include "ops/delta_rule/sm90_kda_chain.cuh"
#include "ops/delta_rule/sm90_kda_factors.cuh"

namespace fluvial::sm90::kda16 {

template <class StateT, Mode kMode>
__global__ void __launch_bounds__(kThreads, 1) KdaPrefillKernel(const __grid_constant__ DeltaParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Smem& sm = *reinterpret_cast<Smem*>(raw);
  Task task{};
  if (!FindTask<kMode>(p, &task)) return;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(&sm.full[i], kTeamThreads);
      BarrierInit(&sm.empty[i], kMathThreads / 32);
      BarrierInit(&sm.v[i], 1);
    }
    for (int t = 0; t < kTeams; ++t) BarrierInit(&sm.raw[t], 1);
    BarrierInitFence();
  }
  __syncthreads();
  if (threadIdx.x < kMathThreads) {
    RegistersUp<kMathRegisters>();
    MathLoop<StateT, kMode>(sm, p, task);
  } else {
    RegistersDown<kTeamRegisters>();
    FactorLoop<kMode>(sm, p, task);
  }
}

constexpr int kCombineRows = 16;  // rows of S per CTA: rows are independent

/// Start states of all segments from the scan: start_0 = the slot's state, start_{s+1} = start_s M_s + b_s, each over
/// the b it consumed (cell 2 (segment hv + head) of the workspace becomes start of `segment`). fp32 throughout.
template <class StateT>
__global__ void __launch_bounds__(256) CombineSegments(const __grid_constant__ DeltaParams p) {
  __shared__ float s[kCombineRows][kDim + 4];
  const int blocks = kDim / kCombineRows;
  const int row0 = blockIdx.x % blocks * kCombineRows;
  const int head = blockIdx.x / blocks % p.hv, seq = blockIdx.x / blocks / p.hv;
  if (seq >= p.header->sequences) return;
  int first = 0;
  for (int n = 0; n < seq; ++n) first += Segments(p.offsets[n + 1] - p.offsets[n], p.segment_tokens);
  const int count = Segments(p.offsets[seq + 1] - p.offsets[seq], p.segment_tokens);
  const int column = threadIdx.x & 127, half = threadIdx.x >> 7;  // eight rows per thread
  constexpr int kRows = kCombineRows / 2;

  float state[kRows];
  const int slot = p.read_slots[seq];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = row0 + half * kRows + r;
    state[r] = 0.f;
    if (slot >= 0) state[r] = static_cast<float>(PoolState<const StateT>(p, slot, head)[row * kDim + column]);
  }
  for (int segment = 0; segment < count; ++segment) {
    float* b = p.workspace + (static_cast<int64_t>(first + segment) * p.hv + head) * 2 * (kDim * kDim);
    const float* m = b + kDim * kDim;
    float next[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float* cell = b + (row0 + half * kRows + r) * kDim + column;
      next[r] = segment + 1 < count ? *cell : 0.f;
      *cell = state[r];
    }
    if (segment + 1 == count) break;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) s[half * kRows + r][column] = state[r];
    __syncthreads();
    for (int k = 0; k < kDim; k += 8) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = m[(k + i) * kDim + column];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 lo = *reinterpret_cast<const float4*>(&s[half * kRows + r][k]);
        const float4 hi = *reinterpret_cast<const float4*>(&s[half * kRows + r][k + 4]);
        next[r] = fmaf(lo.x, x[0], fmaf(lo.y, x[1], fmaf(lo.z, x[2], fmaf(lo.w, x[3], next[r]))));
        next[r] = fmaf(hi.x, x[4], fmaf(hi.y, x[5], fmaf(hi.z, x[6], fmaf(hi.w, x[7], next[r]))));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) state[r] = next[r];
  }
}

}  // namespace fluvial::sm90::kda16
