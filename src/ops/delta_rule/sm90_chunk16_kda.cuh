// SPDX-License-Identifier: Apache-2.0
// KDA's factor teams: two warps turn a chunk's q, k, gate and beta into the chain's operands, in place. With G the
// cumulative log decay (inclusive), kf and qf the norm factors (qf with scale), kf = 2^n rest with 1 <= rest < 2:
//     kd = 2^n k e^G,  qd = q e^G,  kn = 2^n k e^-G  (bf16 products of bf16 factors; 2^n keeps kn below 2^117),
//     A_ij = beta_i rest_i rest_j <kd_i, kn_j>,  T = (I + A)^-1,  Y_ij = rest_i T_ij beta_j,
//     W = Y^T kn diag(e^G_end),  P'_ij = qf_i sum_l <qd_i, kn_l> Y_lj,
//     R_j = v_j - rest_j S kd_j,  o_i = qf_i S qd_i + P'_i R.
#pragma once

#include "ops/delta_rule/sm90_chunk16_factors.cuh"

namespace fluvial::sm90::chunk16 {

template <Mode kMode>
__device__ __forceinline__ void KdaFactorLoop(Smem<Gate::kPerChannel>& sm, const DeltaParams& p) {
  using Stage = chunk16::Stage<Gate::kPerChannel>;
  using Scratch = KdaScratch;
  constexpr int kRing = kStages<Gate::kPerChannel>;
  constexpr bool kWithV = kMode != Mode::kTransfer;
  const int id = static_cast<int>(Opaque(threadIdx.x)) - kMathThreads;
  const int thread = id & (kTeamThreads - 1), team = id / kTeamThreads;
  const int warp = thread >> 5;  // 0 or 1
  const int bar = 1 + team;
  const PieceTable& table = sm.table;
  const int chunks = table.piece[table.pieces - 1].end;
  const int issuer = 32;  // the thread that starts copies

  // This thread forms channels 2 thread, 2 thread + 1.
  const float kLog2e = 1.4426950408889634f;
  float slope = 0, bias0 = 0, bias1 = 0;
  int head = -1;  // that these are of

  auto fetch = [&](const ChunkAt& at, int at_stage) {
    Stage& stage = sm.stage[at_stage];
    const uint32_t st = SmemAddr(&stage);
    const int key_head = at.head / p.group;
    BarrierExpect(&sm.v[at_stage], (3 + kWithV) * kTile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t tile = half * (kTile / 2);
      TensorLoad3(st + half * kHalf, &p.k_map, &sm.v[at_stage], 64 * half, key_head, at.token);
      TensorLoad3(st + half * kHalf + kQdRows, &p.q_map, &sm.v[at_stage], 64 * half, key_head, at.token);
      TensorLoad3(SmemAddr(stage.kn) + tile, &p.gate_map, &sm.v[at_stage], 64 * half, at.head, at.token);
      if (kWithV) TensorLoad3(SmemAddr(stage.v) + tile, &p.v_map, &sm.v[at_stage], 64 * half, at.head, at.token);
    }
  };
  uint32_t beta = 0;  // as stored, of row lane & 15
  ChunkAt at{};
  if (team < chunks) {
    at = FindChunk(table, team, 0);
    if (thread == issuer) fetch(at, team);
    if ((thread & 15) < at.valid) beta = LoadBeta(p, at.token + (thread & 15), at.head);
  }

  int at_stage = team, turn = 0;
#pragma unroll 1
  for (int c = team; c < chunks; c += kTeams) {
    // Warp 1 has waited for the stage, below; a chunk that the chain did not read has not been fetched.
    if (kMode == Mode::kBalanced && c >= kRing && sm.scratch[team].stopped) return;
    // Unhoisted: addresses are recomputed from these few registers in every turn, which is cheaper than the spills
    // that hoisting them out of the loop costs.
    const int lane = Unhoisted(thread & 31);
    const uint32_t sc = Unhoisted(SmemAddr(&sm.scratch[team])), st = Unhoisted(SmemAddr(&sm.stage[at_stage]));
    const int valid = at.valid;
    if (at.head != head) {
      head = at.head;
      // Not 0 even where exp underflows: the tail's gate input must saturate.
      slope = -kLog2e * (p.a_log != nullptr ? fmaxf(__expf(p.a_log[head]), 1e-30f) : 1.f);
      if (p.dt_bias != nullptr) {
        bias0 = p.dt_bias[head * kDim + 2 * thread] * slope;
        bias1 = p.dt_bias[head * kDim + 2 * thread + 1] * slope;
      }
    }

    // 1. Row norms: warp 0 of k, warp 1 of q.
    BarrierWait(&sm.v[at_stage], turn);
    if (valid < kChunk) {
      // Rows past the end hold the next sequence (or NaN): no key, no query, no value, and a gate input whose decay is
      // 1 (the lowest bf16 twice).
      const uint32_t rows = st + warp * kQdRows;
      for (int i = lane; i < (kChunk - valid) * 16; i += 32) {
        StoreShared4(rows + ((i & 15) >> 3) * kHalf + (valid + (i >> 4)) * 128 + (i & 7) * 16, 0, 0, 0, 0);
      }
      if (warp == 0) FillTail(st + offsetof(Stage, kn), lane, 32, valid, 0xff7fff7fu);
      if (kWithV && warp == 1) FillTail(st + offsetof(Stage, v), lane, 32, valid, 0);
      __syncwarp();
    }
    {
      const float2 squares = RowSquares(st + MatrixLane(lane) + warp * kQdRows, lane, kHalf);
      const int i = lane >> 2;
      if ((lane & 3) == (i >> 1)) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float norm = NormFactor(p, r == 0 ? squares.x : squares.y);
          const uint32_t row = (i + 8 * r) * 4;
          if (warp == 0) {
            const uint32_t bits = __float_as_uint(fminf(norm, 1e30f)), power = bits & 0x7f800000u;
            StoreShared(sc + offsetof(Scratch, k_power) + row, power | power >> 16);
            StoreShared(st + offsetof(Stage, x_rows) + row, (bits & 0x007fffffu) | 0x3f800000u);
          } else {
            StoreShared(st + offsetof(Stage, o_rows) + row, p.scale * norm);
          }
        }
      }
    }
    NamedBarrier(bar, kTeamThreads);

    // 2. Decays and the decayed operands. Row r of this thread's two channels is at `^ ((r & 7) << 4)` + 128 r.
    {
      const uint32_t keys = st + warp * kHalf + lane * 4;
      const uint32_t gates = st + offsetof(Stage, kn) + warp * (kTile / 2) + lane * 4;
      float g0 = 0, g1 = 0;
      uint32_t x[4], k[4], q[4];
      auto load = [&](int r4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t swizzle = ((r4 + i) & 7) << 4, down = (r4 + i) * 128;
          x[i] = LoadShared((gates ^ swizzle) + down);
          k[i] = LoadShared((keys ^ swizzle) + down);
          q[i] = LoadShared((keys ^ swizzle) + down + kQdRows);
        }
      };
      load(0);
#pragma unroll
      for (int r4 = 0; r4 < kChunk; r4 += 4) {
        const uint4 power = LoadSharedU4(sc + offsetof(Scratch, k_power) + r4 * 4);
        uint32_t kd[4], qd[4], kn[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          g0 = fmaf(p.lower_bound2, Reciprocal(1.f + Exp2(fmaf(Bf16Lo(x[i]), slope, bias0))), g0);
          g1 = fmaf(p.lower_bound2, Reciprocal(1.f + Exp2(fmaf(Bf16Hi(x[i]), slope, bias1))), g1);
          const uint32_t e = PackBf16(Exp2(g0), Exp2(g1)), n = PackBf16(Exp2(-g0), Exp2(-g1));
          const uint32_t kp = MulBf16(k[i], i == 0 ? power.x : i == 1 ? power.y : i == 2 ? power.z : power.w);
          kd[i] = MulBf16(kp, e);
          qd[i] = MulBf16(q[i], e);
          kn[i] = MulBf16(kp, n);
        }
        // The next rows are loaded before these are stored: the stores would hold the loads back.
        if (r4 + 4 < kChunk) load(r4 + 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t swizzle = ((r4 + i) & 7) << 4, down = (r4 + i) * 128;
          StoreShared((keys ^ swizzle) + down, kd[i]);
          StoreShared((keys ^ swizzle) + down + kQdRows, qd[i]);
          StoreShared((gates ^ swizzle) + down, kn[i]);
        }
      }
      StoreShared2(st + offsetof(Stage, decay) + (thread & 3) * (kDecayPitch * 4) + (thread >> 2) * 8, Exp2(g0),
                   Exp2(g1));
    }
    NamedBarrier(bar, kTeamThreads);

    // 3. A (warp 0) and P (warp 1).
    float d0[4] = {0, 0, 0, 0}, d1[4] = {0, 0, 0, 0};
    {
      const uint32_t left = st + MatrixLane(lane) + warp * kQdRows, right = st + offsetof(Stage, kn) + MatrixLane(lane);
      float e0[4] = {0, 0, 0, 0}, e1[4] = {0, 0, 0, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t m[4][4], b[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          LoadMatrix4(m[k], (left ^ (k << 5)) + half * kHalf);
          LoadMatrix4(b[k], (right ^ (k << 5)) + half * (kTile / 2));
        }
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
          Mma16816(d0, m[k], b[k][0], b[k][2]);
          Mma16816(d1, m[k], b[k][1], b[k][3]);
          Mma16816(e0, m[k + 1], b[k + 1][0], b[k + 1][2]);
          Mma16816(e1, m[k + 1], b[k + 1][1], b[k + 1][3]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        d0[i] += e0[i];
        d1[i] += e1[i];
      }
    }
    const int i0 = lane >> 2, j0 = 2 * (lane & 3);
    if (warp == 0) {
      // A transposed and masked; the upper part may be infinite and is selected away.
      const float b = (lane & 15) < valid ? Beta(p, beta) : 0.f;
      const uint32_t rest = st + offsetof(Stage, x_rows), columns = sc + offsetof(Scratch, a_columns);
      const float b0 = __shfl_sync(~0u, b, i0) * LoadSharedFloat(rest + i0 * 4);
      const float b1 = __shfl_sync(~0u, b, i0 + 8) * LoadSharedFloat(rest + i0 * 4 + 32);
      const float2 ka = LoadShared2(rest + j0 * 4), kc = LoadShared2(rest + j0 * 4 + 32);
      const uint32_t to = columns + j0 * 80 + i0 * 4;
      StoreShared(to, j0 < i0 ? b0 * ka.x * d0[0] : 0.f);
      StoreShared(to + 80, j0 + 1 < i0 ? b0 * ka.y * d0[1] : 0.f);
      StoreShared(to + 32, b1 * ka.x * d0[2]);
      StoreShared(to + 80 + 32, b1 * ka.y * d0[3]);
      StoreShared(to + 8 * 80 + 32, j0 < i0 ? b1 * kc.x * d1[2] : 0.f);
      StoreShared(to + 9 * 80 + 32, j0 + 1 < i0 ? b1 * kc.y * d1[3] : 0.f);
      __syncwarp();
      float t[16];
      InvertColumn(columns, lane, t);
      if (lane < 16) {
        uint32_t y[8];
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
          const float4 f = LoadShared4(rest + i * 4);
          y[i / 2] = PackBf16(t[i] * b * f.x, t[i + 1] * b * f.y);
          y[i / 2 + 1] = PackBf16(t[i + 2] * b * f.z, t[i + 3] * b * f.w);
        }
        StoreShared4(sc + offsetof(Scratch, y) + lane * 32, y[0], y[1], y[2], y[3]);
        StoreShared4(sc + offsetof(Scratch, y) + lane * 32 + 16, y[4], y[5], y[6], y[7]);
      }
    }
    // The next chunk's copies. Its stage was last read for the chunk kRing before it.
    int next_stage = at_stage + kTeams, next_turn = turn;
    if (next_stage >= kRing) next_stage -= kRing, next_turn ^= 1;
    if (c + kTeams < chunks) {
      at = FindChunk(table, c + kTeams, at.piece);  // the next from here on
      if ((lane & 15) < at.valid) beta = LoadBeta(p, at.token + (lane & 15), at.head);
      if (warp == 1) {
        bool stopped = false;
        if (c + kTeams >= kRing) {
          BarrierWait(&sm.empty[next_stage], next_turn ^ 1);
          stopped = kMode == Mode::kBalanced && c + kTeams - kRing >= sm.stop;
        }
        if (thread == issuer) {
          if (kMode == Mode::kBalanced) sm.scratch[team].stopped = stopped;
          if (!stopped) fetch(at, next_stage);
        }
      }
    }
    NamedBarrier(bar, kTeamThreads);

    // 4. W (half of the channels per warp) and P' (warp 1).
    {
      uint32_t y[4];
      LoadMatrix4(y, sc + offsetof(Scratch, y) + (lane & 15) * 32 + (lane >> 4) * 16);
      const uint32_t from = st + offsetof(Stage, kn) + MatrixLane(lane) + warp * (kTile / 2);
      const uint32_t to = st + offsetof(Stage, w) + warp * (kTile / 2) + i0 * 128 + i0 * 16 + j0 * 2;
      const uint32_t decay = st + offsetof(Stage, decay) + (lane & 3) * (kDecayPitch * 4) + warp * 64;
#pragma unroll
      for (int u = 0; u < 8; u += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(b, from ^ (u << 4));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float w[4] = {0, 0, 0, 0};
          Mma16816(w, y, b[2 * h], b[2 * h + 1]);
          const float2 e = LoadShared2(decay + (u + h) * 8);
          StoreShared(to ^ ((u + h) << 4), PackBf16(w[0] * e.x, w[1] * e.y));
          StoreShared((to ^ ((u + h) << 4)) + 1024, PackBf16(w[2] * e.x, w[3] * e.y));
        }
      }
      if (warp == 1) {
        uint32_t pf[4];
        pf[0] = PackBf16(j0 <= i0 ? d0[0] : 0.f, j0 + 1 <= i0 ? d0[1] : 0.f);
        pf[1] = PackBf16(d0[2], d0[3]);
        pf[2] = 0;
        pf[3] = PackBf16(j0 <= i0 ? d1[2] : 0.f, j0 + 1 <= i0 ? d1[3] : 0.f);
        float p0[4] = {0, 0, 0, 0}, p1[4] = {0, 0, 0, 0};
        Mma16816(p0, pf, y[0], y[2]);
        Mma16816(p1, pf, y[1], y[3]);
        const float qf0 = LoadSharedFloat(st + offsetof(Stage, o_rows) + i0 * 4);
        const float qf1 = LoadSharedFloat(st + offsetof(Stage, o_rows) + i0 * 4 + 32);
        const uint32_t pt = st + offsetof(Stage, p) + i0 * 16 + j0 * 2;
        StoreShared(pt, PackBf16(qf0 * p0[0], qf0 * p0[1]));
        StoreShared(pt + 128, PackBf16(qf0 * p1[0], qf0 * p1[1]));
        StoreShared(pt + 256, PackBf16(qf1 * p0[2], qf1 * p0[3]));
        StoreShared(pt + 384, PackBf16(qf1 * p1[2], qf1 * p1[3]));
      }
    }
    FenceProxyAsync();
    BarrierArrive(&sm.full[at_stage]);
    at_stage = next_stage;
    turn = next_turn;
  }
}

}  // namespace fluvial::sm90::chunk16
