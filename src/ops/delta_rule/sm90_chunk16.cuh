// SPDX-License-Identifier: Apache-2.0
// Delta-rule prefill on sm_90a, chunk 16: KDA with bounded gates, and GDN (sm90_chunk16_gdn.cuh). One CTA per
// (sequence, value head), or per equal part of all of them.
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
// Balanced parts (few heads, long sequences, uneven lengths): all tasks in a row, cut into one part per CTA. A piece
// that starts inside a sequence runs from zero and leaves its state after 2, 4, ... 32 chunks. The CTA before it, which
// holds the sequence's state at the cut, runs on into the piece until its state has the very bits of one that was left.
// From there on nothing can differ, because the chain is a function of state and inputs; the chunks before are written
// over. With decays that forget within a few hundred tokens this costs a few chunks per piece, and the result is
// Mode::kWhole's, bit for bit. Where the states do not meet, the recurrence being affine in S (a piece maps its rows by
// s -> s M + b) mends it exactly: Mode::kTransfer makes M from the identity with v = 0, FinishBalanced the true states
// at the cuts, and Mode::kReplay runs those pieces again. Gates decide the time only.
//
// Why 16: the bounded gate gives |G| <= 80 nats = 115.4 bits in a chunk, so kn stays below 2^116 and fits bf16.
// Rounding points (mirrored by the test reference): kd, qd, kn, W, P', T diag(beta), R and the copy of S that
// feeds X and o are bf16; everything else is fp32.
#pragma once

#include "ops/delta_rule/sm90_chunk16_chain.cuh"
#include "ops/delta_rule/sm90_chunk16_gdn.cuh"
#include "ops/delta_rule/sm90_chunk16_kda.cuh"

namespace fluvial::sm90::chunk16 {

template <Mode kMode, Gate kGate>
__device__ __forceinline__ void StartRound(Smem<kGate>& sm, const DeltaParams& p, int round, int lane) {
  MakePieces<kMode>(p, &sm.table, round, lane);
  if (lane != 0) return;
  // Between rounds no copy is under way and nobody waits.
  auto init = [round](uint64_t* bar, uint32_t count) {
    if (round > 0) BarrierInvalidate(bar);
    BarrierInit(bar, count);
  };
  sm.stop = 0x7fffffff;
  for (int i = 0; i < kStages<kGate>; ++i) {
    init(&sm.full[i], kTeamThreads);
    init(&sm.empty[i], kMathThreads / 32);
    init(&sm.v[i], 1);
  }
  BarrierInitFence();
}

template <class StateT, Mode kMode, Gate kGate>
__global__ void __launch_bounds__(kThreads, 1) PrefillKernel(const __grid_constant__ DeltaParams p) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& sm = *reinterpret_cast<Smem<kGate>*>(raw);
  if (threadIdx.x < 32) StartRound<kMode>(sm, p, 0, threadIdx.x);
  __syncthreads();
  if (sm.table.pieces == 0) return;
  // Between two barriers the first warp makes the next round; most parts have one.
  auto another = [&] { return kMode == Mode::kBalanced && sm.table.more; };
  if (threadIdx.x < kMathThreads) {
    RegistersUp<kMathRegisters>();
    for (int round = 1;; ++round) {
      MathLoop<StateT, kMode, kGate>(sm, p);
      if (!another()) return;
      NamedBarrier(kCtaBarrier, kThreads);
      if (threadIdx.x < 32) StartRound<kMode>(sm, p, round, threadIdx.x);
      NamedBarrier(kCtaBarrier, kThreads);
    }
  } else {
    RegistersDown<kTeamRegisters>();
    for (;;) {
      if constexpr (kGate == Gate::kPerChannel)
        KdaFactorLoop<kMode>(sm, p);
      else
        GdnFactorLoop<kMode>(sm, p);
      if (!another()) return;
      NamedBarrier(kCtaBarrier, kThreads);
      NamedBarrier(kCtaBarrier, kThreads);
    }
  }
}

constexpr int kFinishRows = 4;  // rows of S per CTA: rows are independent, and a piece costs latency, not work

__device__ __forceinline__ void FinishTask(const DeltaParams& p, int j, int row0, int parts) {
  __shared__ float s[kFinishRows][kDim];
  constexpr int kAhead = 64;  // rows of M in flight
  const Boundary* const at = static_cast<const Boundary*>(p.boundaries);
  const int task = at[j].task;
  if (task == 0 || (j > 0 && at[j - 1].task == task)) return;
  const int column = threadIdx.x;
  bool failed = false;
  float state[kFinishRows];
  for (; j < parts && at[j].task == task && at[j].last == 0; ++j) {
    if (!failed) {
      if (at[j].failed == 0) continue;
      failed = true;
#pragma unroll
      for (int r = 0; r < kFinishRows; ++r) state[r] = CellOf(p, j)->end[FragmentIndex(row0 + r, column)];
    }
    float* const end = CellOf(p, j + 1)->end;
    const float* const m = CellOf(p, j)->saves[0];
    float x[kAhead], next[kFinishRows];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) x[i] = m[FragmentIndex(i, column)];
#pragma unroll
    for (int r = 0; r < kFinishRows; ++r) next[r] = end[FragmentIndex(row0 + r, column)];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kFinishRows; ++r) s[r][column] = state[r];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDim; k += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; i += 4) {
#pragma unroll
        for (int r = 0; r < kFinishRows; ++r) {
          const float4 y = *reinterpret_cast<const float4*>(&s[r][k + i]);
          next[r] = fmaf(y.x, x[i], fmaf(y.y, x[i + 1], fmaf(y.z, x[i + 2], fmaf(y.w, x[i + 3], next[r]))));
        }
        if (k + kAhead < kDim) {
#pragma unroll
          for (int q = i; q < i + 4; ++q) x[q] = m[FragmentIndex(k + kAhead + q, column)];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kFinishRows; ++r) {
      state[r] = next[r];
      end[FragmentIndex(row0 + r, column)] = next[r];
    }
  }
}

/// Where checks failed: turns the ends of pieces into the true ones, end_{j+1} = end_j M_j + end_{j+1}, for the replay.
/// An item is a boundary that is its task's first, and a block of rows. fp32 throughout.
static __global__ void __launch_bounds__(kDim) FinishBalanced(const __grid_constant__ DeltaParams p, int parts) {
  if (*p.failures == 0) return;
  constexpr int kBlocks = kDim / kFinishRows;
  for (int item = blockIdx.x; item < parts * kBlocks; item += gridDim.x) {
    FinishTask(p, item / kBlocks, item % kBlocks * kFinishRows, parts);
  }
}

}  // namespace fluvial::sm90::chunk16
