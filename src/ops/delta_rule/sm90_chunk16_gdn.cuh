// SPDX-License-Identifier: Apache-2.0
// GDN's factor teams. The decay is one scalar per token, so it factors out of the dot products: k and q go from memory
// to the chain's operand tile as they are, and only 16 x 16 matrices and rows carry e^G. With G inclusive, kf and qf
// the norm factors (qf with scale) and raw products <.,.>:
//     A_ij = beta_i kf_i kf_j e^{G_i-G_j} <k_i, k_j>,   P_il = e^{G_i-G_l} <q_i, k_l>,   T = (I + A)^-1,
//     W_j = sum_i T_ij beta_j kf_i e^{G_end-G_i} k_i,   P'_ij = qf_i sum_l P_il kf_l T_lj beta_j,
//     R_j = v_j - kf_j e^{G_j} S k_j,   o_i = qf_i e^{G_i} S q_i + P'_i R.
// Every exponent is of a difference <= 0: any decay is safe, bounded or not.
#pragma once

#include "ops/delta_rule/sm90_chunk16_factors.cuh"

namespace fluvial::sm90::chunk16 {

/// The log2 decay of one gate input. form: 0 log, 1 softplus, 2 bounded (GateForm).
__device__ __forceinline__ float Log2Decay(const DeltaParams& p, float x, float a, float bias) {
  constexpr float kLog2e = 1.4426950408889634f;
  if (p.gate_form == 0) return x * kLog2e;
  const float y = x + bias;
  if (p.gate_form == 1) return -a * kLog2e * (y > 20.f ? y : log1pf(expf(y)));
  return p.lower_bound2 / (1.f + expf(-a * y));
}

__device__ __forceinline__ float LoadScalar(const void* base, bool fp32, int64_t at) {
  return fp32 ? static_cast<const float*>(base)[at] : __bfloat162float(static_cast<const __nv_bfloat16*>(base)[at]);
}

/// Value of row `row` (0..15) spread over a quad-indexed pair as RowSquares returns it.
__device__ __forceinline__ float RowOf(float2 squares, int row) {
  const int from = 4 * (row & 7) + ((row & 7) >> 1);
  const float low = __shfl_sync(~0u, squares.x, from), high = __shfl_sync(~0u, squares.y, from);
  return row < 8 ? low : high;
}

template <Mode kMode>
__device__ __forceinline__ void GdnFactorLoop(Smem<Gate::kPerHead>& sm, const DeltaParams& p) {
  using Stage = chunk16::Stage<Gate::kPerHead>;
  using Scratch = GdnScratch;
  constexpr int kStagesPerTeam = kStages<Gate::kPerHead> / kTeams;
  const int id = static_cast<int>(Opaque(threadIdx.x)) - kMathThreads;
  const int thread = id & (kTeamThreads - 1), team = id / kTeamThreads;
  const int warp = thread >> 5;  // 0 or 1
  const int bar = 1 + team;
  constexpr bool kWithV = kMode != Mode::kTransfer;
  const PieceTable& table = sm.table;
  const int chunks = table.piece[table.pieces - 1].end;
  const uint32_t sc = SmemAddr(&sm.scratch[team]);
  float a_scale = 1.f, bias = 0.f;
  int head = -1;  // that these are of
  const int issuer = 32;

  // k and q of a chunk go straight into its stage, v with them on one barrier; `parts` counts the bytes.
  auto fetch = [&](const ChunkAt& at, int at_stage) {
    Stage& stage = sm.stage[at_stage];
    const uint32_t st = SmemAddr(&stage);
    const int token = at.token, key_head = at.head / p.group;
    BarrierExpect(&sm.v[at_stage], (2 + kWithV) * kTile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      TensorLoad3(st + half * kHalf, &p.k_map, &sm.v[at_stage], 64 * half, key_head, token);
      TensorLoad3(st + half * kHalf + kQdRows, &p.q_map, &sm.v[at_stage], 64 * half, key_head, token);
      if (kWithV) {
        TensorLoad3(SmemAddr(stage.v) + half * (kTile / 2), &p.v_map, &sm.v[at_stage], 64 * half, at.head, token);
      }
    }
  };
  // Scalars of row lane & 15, a turn ahead.
  uint32_t beta_next = 0;
  float x_next = 0;
  auto fetch_scalars = [&](const ChunkAt& at) {
    const int row = thread & 15;
    if (row < at.valid) {
      const int64_t token = at.token + row;
      x_next = LoadScalar(p.gate, p.gate_fp32, token * p.gate_row + at.head);
      beta_next = LoadBeta(p, token, at.head);
    }
  };
  ChunkAt at{};
  if (team < chunks) {
    at = FindChunk(table, team, 0);
    if (thread == issuer) fetch(at, team);
    fetch_scalars(at);
  }

#pragma unroll 1
  for (int c = team, n = 0; c < chunks; c += kTeams, ++n) {
    // Warp 1 has waited for the stage, below; a chunk that the chain did not read has not been fetched.
    if (kMode == Mode::kBalanced && n >= kStagesPerTeam && sm.scratch[team].stopped) return;
    const int at_stage = team + n % kStagesPerTeam * kTeams, turn = n / kStagesPerTeam & 1;
    const int lane = Unhoisted(thread & 31);
    const uint32_t st = SmemAddr(&sm.stage[at_stage]);
    const int valid = at.valid;
    if (at.head != head) {
      head = at.head;
      if (p.a_log != nullptr) a_scale = expf(p.a_log[head]);
      if (p.dt_bias != nullptr) bias = p.dt_bias[head];
    }
    const int row = lane & 15;
    const float x = x_next, beta = row < valid ? Beta(p, beta_next) : 0.f;
    if (c + kTeams < chunks) {
      at = FindChunk(table, c + kTeams, at.piece);  // the next from here on
      fetch_scalars(at);
    }
    // Inclusive prefix sums of the log2 decays over the rows; rows past the end decay by 1.
    float g = row < valid ? Log2Decay(p, x, a_scale, bias) : 0.f;
#pragma unroll
    for (int m = 1; m < 16; m <<= 1) {
      const float up = __shfl_up_sync(~0u, g, m, 16);
      if (row >= m) g += up;
    }
    const float g_end = __shfl_sync(~0u, g, 15);
    BarrierWait(&sm.v[at_stage], turn);
    if (valid < kChunk) {
      // Rows past the end hold the next sequence (or NaN): no factor, however zero, may meet them.
      if (warp == 0) {
        for (int i = lane; i < (kChunk - valid) * 16; i += 32) {
          StoreShared4(st + ((i & 15) >> 3) * kHalf + (valid + (i >> 4)) * 128 + (i & 7) * 16, 0, 0, 0, 0);
          StoreShared4(st + ((i & 15) >> 3) * kHalf + kQdRows + (valid + (i >> 4)) * 128 + (i & 7) * 16, 0, 0, 0, 0);
        }
      } else if (kWithV) {
        FillTail(st + offsetof(Stage, v), lane, 32, valid, 0);
      }
    }
    NamedBarrier(bar, kTeamThreads);  // tails are written; the last chunk's y is read

    const int i0 = lane >> 2, j0 = 2 * (lane & 3);
    const uint32_t matrix = st + MatrixLane(lane);
    float d0[4] = {0, 0, 0, 0}, d1[4] = {0, 0, 0, 0};
    float qf0 = 0, qf1 = 0;  // of rows i0, i0 + 8 (warp 1)
    {
      // Raw products of k (warp 0) or q (warp 1) with k.
      const uint32_t left = matrix + warp * kQdRows;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t m[4][4], b[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          LoadMatrix4(m[k], (left ^ (k << 5)) + half * kHalf);
          LoadMatrix4(b[k], (matrix ^ (k << 5)) + half * kHalf);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          Mma16816(d0, m[k], b[k][0], b[k][2]);
          Mma16816(d1, m[k], b[k][1], b[k][3]);
        }
      }
      const float gi0 = __shfl_sync(~0u, g, i0), gi1 = __shfl_sync(~0u, g, i0 + 8);
      const float ga = __shfl_sync(~0u, g, j0), gb = __shfl_sync(~0u, g, j0 + 1);
      const float gc = __shfl_sync(~0u, g, j0 + 8), gd = __shfl_sync(~0u, g, j0 + 9);
      if (warp == 0) {
        // The diagonal of K K^T is the keys' squared norms.
        const bool odd = (lane >> 2) & 1;
        const float2 squares = make_float2(odd ? d0[1] : d0[0], odd ? d1[3] : d1[2]);
        const float k2 = RowOf(squares, row);  // a shuffle: not inside a branch
        const float kf = row < valid ? NormFactor(p, k2) : 0.f;
        const float left0 = __shfl_sync(~0u, kf * beta, i0), left1 = __shfl_sync(~0u, kf * beta, i0 + 8);
        const float ka = __shfl_sync(~0u, kf, j0), kb = __shfl_sync(~0u, kf, j0 + 1);
        const float kc = __shfl_sync(~0u, kf, j0 + 8), kd = __shfl_sync(~0u, kf, j0 + 9);
        const uint32_t columns = sc + offsetof(Scratch, a_columns), to = columns + j0 * 80 + i0 * 4;
        StoreShared(to, j0 < i0 ? left0 * ka * Exp2(gi0 - ga) * d0[0] : 0.f);
        StoreShared(to + 80, j0 + 1 < i0 ? left0 * kb * Exp2(gi0 - gb) * d0[1] : 0.f);
        StoreShared(to + 32, left1 * ka * Exp2(gi1 - ga) * d0[2]);
        StoreShared(to + 80 + 32, left1 * kb * Exp2(gi1 - gb) * d0[3]);
        StoreShared(to + 8 * 80 + 32, j0 < i0 ? left1 * kc * Exp2(gi1 - gc) * d1[2] : 0.f);
        StoreShared(to + 9 * 80 + 32, j0 + 1 < i0 ? left1 * kd * Exp2(gi1 - gd) * d1[3] : 0.f);
        if (lane < 16) {
          StoreShared(sc + offsetof(Scratch, p_rows) + lane * 4, kf);
          StoreShared(sc + offsetof(Scratch, w_rows) + lane * 4, kf * Exp2(g_end - g));
          StoreShared(st + offsetof(Stage, x_rows) + lane * 4, kf * Exp2(g));
        }
        if (lane == 0) StoreShared(st + offsetof(Stage, decay), Exp2(g_end));
        __syncwarp();
        float t[16];
        InvertColumn(columns, lane, t);
        if (lane < 16) {
          // Column `lane` of T, times beta: for W with kf e^{G_end-G} per row, for P' with kf.
          uint32_t w[8], y[8];
#pragma unroll
          for (int i = 0; i < 16; i += 4) {
            const float4 f = LoadShared4(sc + offsetof(Scratch, p_rows) + i * 4);
            const float4 e = LoadShared4(sc + offsetof(Scratch, w_rows) + i * 4);
            y[i / 2] = PackBf16(t[i] * beta * f.x, t[i + 1] * beta * f.y);
            y[i / 2 + 1] = PackBf16(t[i + 2] * beta * f.z, t[i + 3] * beta * f.w);
            w[i / 2] = PackBf16(t[i] * beta * e.x, t[i + 1] * beta * e.y);
            w[i / 2 + 1] = PackBf16(t[i + 2] * beta * e.z, t[i + 3] * beta * e.w);
          }
          StoreShared4(sc + offsetof(Scratch, y_w) + lane * 32, w[0], w[1], w[2], w[3]);
          StoreShared4(sc + offsetof(Scratch, y_w) + lane * 32 + 16, w[4], w[5], w[6], w[7]);
          StoreShared4(sc + offsetof(Scratch, y_p) + lane * 32, y[0], y[1], y[2], y[3]);
          StoreShared4(sc + offsetof(Scratch, y_p) + lane * 32 + 16, y[4], y[5], y[6], y[7]);
        }
      } else {
        const float2 squares = RowSquares(matrix + kQdRows, lane, kHalf);
        const float q2 = RowOf(squares, row);
        const float qf = row < valid ? p.scale * NormFactor(p, q2) : 0.f;
        if (lane < 16) StoreShared(st + offsetof(Stage, o_rows) + lane * 4, qf * Exp2(g));
        qf0 = __shfl_sync(~0u, qf, i0);
        qf1 = __shfl_sync(~0u, qf, i0 + 8);
        d0[0] = j0 <= i0 ? Exp2(gi0 - ga) * d0[0] : 0.f;
        d0[1] = j0 + 1 <= i0 ? Exp2(gi0 - gb) * d0[1] : 0.f;
        d0[2] *= Exp2(gi1 - ga);
        d0[3] *= Exp2(gi1 - gb);
        d1[2] = j0 <= i0 ? Exp2(gi1 - gc) * d1[2] : 0.f;
        d1[3] = j0 + 1 <= i0 ? Exp2(gi1 - gd) * d1[3] : 0.f;
      }
    }
    if (warp == 1 && c + kTeams < chunks) {
      // The next chunk's copies. Its stage was last read for this team's chunk before the one being built.
      const int next_stage = team + (n + 1) % kStagesPerTeam * kTeams;
      if (n + 1 >= kStagesPerTeam) BarrierWait(&sm.empty[next_stage], ((n + 1) / kStagesPerTeam & 1) ^ 1);
      const bool stopped = kMode == Mode::kBalanced && c + kTeams - kStages<Gate::kPerHead> >= sm.stop;
      if (thread == issuer) {
        if (kMode == Mode::kBalanced) sm.scratch[team].stopped = stopped;
        if (!stopped) fetch(at, next_stage);
      }
    }
    NamedBarrier(bar, kTeamThreads);

    // W (half of the channels per warp) and P' (warp 1).
    {
      uint32_t y[4];
      LoadMatrix4(y, sc + offsetof(Scratch, y_w) + (lane & 15) * 32 + (lane >> 4) * 16);
      const uint32_t from = matrix + warp * kHalf;
      const uint32_t to = st + offsetof(Stage, w) + warp * (kTile / 2) + i0 * 128 + i0 * 16 + j0 * 2;
#pragma unroll
      for (int u = 0; u < 8; u += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(b, from ^ (u << 4));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float w[4] = {0, 0, 0, 0};
          Mma16816(w, y, b[2 * h], b[2 * h + 1]);
          StoreShared(to ^ ((u + h) << 4), PackBf16(w[0], w[1]));
          StoreShared((to ^ ((u + h) << 4)) + 1024, PackBf16(w[2], w[3]));
        }
      }
      if (warp == 1) {
        LoadMatrix4(y, sc + offsetof(Scratch, y_p) + (lane & 15) * 32 + (lane >> 4) * 16);
        const uint32_t pf[4] = {PackBf16(d0[0], d0[1]), PackBf16(d0[2], d0[3]), 0, PackBf16(d1[2], d1[3])};
        float p0[4] = {0, 0, 0, 0}, p1[4] = {0, 0, 0, 0};
        Mma16816(p0, pf, y[0], y[2]);
        Mma16816(p1, pf, y[1], y[3]);
        const uint32_t pt = st + offsetof(Stage, p) + i0 * 16 + j0 * 2;
        StoreShared(pt, PackBf16(qf0 * p0[0], qf0 * p0[1]));
        StoreShared(pt + 128, PackBf16(qf0 * p1[0], qf0 * p1[1]));
        StoreShared(pt + 256, PackBf16(qf1 * p0[2], qf1 * p0[3]));
        StoreShared(pt + 384, PackBf16(qf1 * p1[2], qf1 * p1[3]));
      }
    }
    FenceProxyAsync();
    BarrierArrive(&sm.full[at_stage]);
  }
}

}  // namespace fluvial::sm90::chunk16
