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
// Mode::kScan runs every segment from zero state with outputs (the first from the slot: it is done then), and beside it
// the transfer M from the identity with v = 0. Decays shrink M; once every element of it is exactly zero, in most
// inputs after a few chunks, nothing of the start state is left and the transfer stops: from there on the run from
// zero is the true one. CombineSegments makes the state at the end of each segment, and Mode::kReplay runs the chunks
// before M vanished - all of the segment where it did not - from the true start. Exact for any gates: they decide the
// time only, 1 to 3 times the work of Mode::kWhole.
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
    sm.stop = kNever;
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

/// After the scan: turns the b of every segment whose transfer did not vanish into the state at its end, end_s =
/// end_{s-1} M_s + b_s (where it did vanish b_s is that state already), and writes the last end to the slot unless the
/// replay does. fp32 throughout.
template <class StateT>
__global__ void __launch_bounds__(kDim) CombineSegments(const __grid_constant__ DeltaParams p) {
  __shared__ float s[kCombineRows][kDim];
  __shared__ int steps[kDim];
  constexpr int kBlocks = kDim / kCombineRows;
  constexpr int kAhead = 64;  // rows of M in flight
  const int row0 = blockIdx.x % kBlocks * kCombineRows;
  const int head = blockIdx.x / kBlocks % p.hv, seq = blockIdx.x / kBlocks / p.hv;
  if (seq >= p.header->sequences) return;
  int first = 0;
  for (int n = 0; n < seq; ++n) first += Segments(p.offsets[n + 1] - p.offsets[n], p.segment_tokens);
  const int count = Segments(p.offsets[seq + 1] - p.offsets[seq], p.segment_tokens);
  if (count == 1) return;  // the scan has written the slot
  const int column = threadIdx.x;

  float state[kCombineRows];
  bool held = false;  // `state` is the end of the segment before
  auto cell = [&](int segment) {
    return p.workspace + (static_cast<int64_t>(first + segment) * p.hv + head) * (2 * kDim * kDim);
  };
  auto load = [&](int segment) {
#pragma unroll
    for (int r = 0; r < kCombineRows; ++r) state[r] = cell(segment)[(row0 + r) * kDim + column];
  };
  for (int segment = 1; segment < count; ++segment) {
    const int at = (segment - 1) % kDim;
    if (at == 0) {
      __syncthreads();
      if (segment + column < count)
        steps[column] = p.steps[static_cast<int64_t>(first + segment + column) * p.hv + head];
      __syncthreads();
    }
    if (steps[at] != kNever) {
      held = false;
      continue;
    }
    if (segment + 1 == count) return;
    if (!held) load(segment - 1);
    held = true;
    float* const b = cell(segment);
    const float* const m = b + kDim * kDim + column;
    float x[kAhead], next[kCombineRows];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) x[i] = m[i * kDim];
#pragma unroll
    for (int r = 0; r < kCombineRows; ++r) next[r] = b[(row0 + r) * kDim + column];
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
    for (int r = 0; r < kCombineRows; ++r) {
      state[r] = next[r];
      b[(row0 + r) * kDim + column] = next[r];
    }
  }
  const int slot = p.write_slots[seq];
  if (slot < 0) return;
  if (!held) load(count - 1);
#pragma unroll
  for (int r = 0; r < kCombineRows; ++r) {
    StateT* const to = PoolState<StateT>(p, slot, head) + (row0 + r) * kDim + column;
    if constexpr (sizeof(StateT) == 4)
      *to = state[r];
    else
      *to = __float2bfloat16_rn(state[r]);
  }
}

}  // namespace fluvial::sm90::chunk16
