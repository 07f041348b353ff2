// SPDX-License-Identifier: Apache-2.0
// KDA's factor teams: two warps turn a chunk's q, k, gate and beta into the chain's operands.
#pragma once

#include "ops/delta_rule/sm90_chunk16_factors.cuh"

namespace fluvial::sm90::chunk16 {

/// Starts the copies of one chunk's q, k and gate into raw buffer `buffer`; one thread. Rows beyond the sequence arrive
/// as whatever follows (zeros beyond the tensor): FillRawTail replaces them.
__device__ __forceinline__ void FetchRaw(const DeltaParams& p, KdaScratch& sc, uint64_t* bar, int buffer, int key_head,
                                         int head, int token) {
  BarrierExpect(bar, 3 * kTile);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t at = half * (kTile / 2);
    TensorLoad3(SmemAddr(sc.k[buffer]) + at, &p.k_map, bar, 64 * half, key_head, token);
    TensorLoad3(SmemAddr(sc.q[buffer]) + at, &p.q_map, bar, 64 * half, key_head, token);
    TensorLoad3(SmemAddr(sc.x[buffer]) + at, &p.gate_map, bar, 64 * half, head, token);
  }
}

/// Raw tiles of a sequence's last chunk: no key, no query, and a gate input whose decay is 1 (the lowest bf16 twice).
__device__ __forceinline__ void FillRawTail(uint32_t sc, int lane, int valid) {
  using Scratch = KdaScratch;
  FillTail(sc + offsetof(Scratch, k), lane, 32, valid, 0);
  FillTail(sc + offsetof(Scratch, q), lane, 32, valid, 0);
  FillTail(sc + offsetof(Scratch, x), lane, 32, valid, 0xff7fff7fu);
  __syncwarp();
}

template <Mode kMode>
__device__ __forceinline__ void KdaFactorLoop(Smem<Gate::kPerChannel>& sm, const DeltaParams& p) {
  using Stage = chunk16::Stage<Gate::kPerChannel>;
  using Scratch = KdaScratch;
  constexpr int kTeams = Shape<Gate::kPerChannel>::kTeams, kStagesPerTeam = Shape<Gate::kPerChannel>::kStagesPerTeam;
  constexpr bool kWithV = kMode != Mode::kTransfer;
  const int id = static_cast<int>(Opaque(threadIdx.x)) - kMathThreads;
  const int thread = id & (kTeamThreads - 1), team = id / kTeamThreads;
  const int warp = thread >> 5;  // 0 or 1
  const int bar = 1 + team;
  const PieceTable& table = sm.table;
  const int chunks = table.piece[table.pieces - 1].end;
  Scratch& scratch = sm.scratch[team];

  // This thread forms channels 2 thread, 2 thread + 1.
  const float kLog2e = 1.4426950408889634f;
  float slope = 0, bias0 = 0, bias1 = 0;
  int head = -1;  // that these are of
  const float bound = p.lower_bound * kLog2e;

  int piece = 0;
  const int issuer = 32;  // the thread that starts copies: warp 1 waits for warp 0 rather than the reverse
  uint32_t beta_next = 0;
  if (team < chunks) {
    const int lane = thread & 31;
    const ChunkAt at = FindChunk(table, team, 0);
    const int valid = at.valid;
    if (thread == issuer) {
      FetchRaw(p, scratch, &sm.raw[team][0], 0, at.head / p.group, at.head, at.token);
      if (team + kTeams < chunks) {
        const ChunkAt two = FindChunk(table, team + kTeams, at.piece);
        FetchRaw(p, scratch, &sm.raw[team][1], 1, two.head / p.group, two.head, two.token);
      }
    }
    if ((lane & 15) < valid) beta_next = LoadBeta(p, at.token + (lane & 15), at.head);
    if (warp == 1) {
      BarrierWait(&sm.raw[team][0], 0);
      if (valid < kChunk) FillRawTail(SmemAddr(&scratch), lane, valid);
      WriteNorms(p, SmemAddr(scratch.k[0]) + MatrixLane(lane), SmemAddr(scratch.k_norm), 1.f, lane, valid);
      WriteNorms(p, SmemAddr(scratch.q[0]) + MatrixLane(lane), SmemAddr(scratch.q_norm), p.scale, lane, valid);
    }
  }

#pragma unroll 1
  for (int c = team, n = 0; c < chunks; c += kTeams, ++n) {
    const int at_stage = team + n % kStagesPerTeam * kTeams, turn = n / kStagesPerTeam & 1;
    // Unhoisted: addresses are recomputed from these few registers in every turn, which is cheaper than the spills
    // that hoisting them out of the loop costs.
    const int lane = Unhoisted(thread & 31);
    const uint32_t sc = Unhoisted(SmemAddr(&scratch)), st = Unhoisted(SmemAddr(&sm.stage[at_stage]));
    const ChunkAt at = FindChunk(table, c, piece);
    piece = at.piece;
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
    const uint32_t beta_stored = beta_next;
    if (n >= kStagesPerTeam) {
      BarrierWait(&sm.empty[at_stage], turn ^ 1);  // the stage is free again
      if (kMode == Mode::kBalanced && c - kStages<Gate::kPerChannel> >= sm.stop) {
        // The copies of the chunk after this one must land before the CTA may end.
        if (thread == issuer && c + kTeams < chunks) BarrierWait(&sm.raw[team][(n + 1) & 1], ((n + 1) >> 1) & 1);
        return;
      }
    }
    if (kWithV && thread == issuer) FetchV(p, sm.stage[at_stage].v, &sm.v[at_stage], head, at.token);
    NamedBarrier(bar, kTeamThreads);  // norms are written, the last chunk's kn is read

    // 1. Decays and the decayed operands. Row r of this thread's two channels is at `^ ((r & 7) << 4)` + 128 r.
    {
      const uint32_t mine = sc + warp * (kTile / 2) + lane * 4, raw = mine + (n & 1) * kTile;
      const uint32_t formed = st + warp * kHalf + lane * 4;
      float g0 = 0, g1 = 0;
      uint32_t x[4], k[4], q[4];
      auto load = [&](int r4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at = (raw ^ (((r4 + i) & 7) << 4)) + (r4 + i) * 128;
          x[i] = LoadShared(at + offsetof(Scratch, x));
          k[i] = LoadShared(at + offsetof(Scratch, k));
          q[i] = LoadShared(at + offsetof(Scratch, q));
        }
      };
      load(0);
#pragma unroll
      for (int r4 = 0; r4 < kChunk; r4 += 4) {
        const float4 kn4 = LoadShared4(sc + offsetof(Scratch, k_norm) + r4 * 4);
        const float4 qn4 = LoadShared4(sc + offsetof(Scratch, q_norm) + r4 * 4);
        uint32_t kd[4], qd[4], kn[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float kf = i == 0 ? kn4.x : i == 1 ? kn4.y : i == 2 ? kn4.z : kn4.w;
          const float qf = i == 0 ? qn4.x : i == 1 ? qn4.y : i == 2 ? qn4.z : qn4.w;
          g0 = fmaf(bound, Reciprocal(1.f + Exp2(fmaf(Bf16Lo(x[i]), slope, bias0))), g0);
          g1 = fmaf(bound, Reciprocal(1.f + Exp2(fmaf(Bf16Hi(x[i]), slope, bias1))), g1);
          const float e0 = Exp2(g0), e1 = Exp2(g1), n0 = Exp2(-g0), n1 = Exp2(-g1);
          const float k0 = Bf16Lo(k[i]) * kf, k1 = Bf16Hi(k[i]) * kf;
          kd[i] = PackBf16(k0 * e0, k1 * e1);
          qd[i] = PackBf16(Bf16Lo(q[i]) * qf * e0, Bf16Hi(q[i]) * qf * e1);
          kn[i] = PackBf16(k0 * n0, k1 * n1);
        }
        // The next rows are loaded before these are stored: the stores would hold the loads back.
        if (r4 + 4 < kChunk) load(r4 + 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at = (formed ^ (((r4 + i) & 7) << 4)) + (r4 + i) * 128;
          StoreShared(at, kd[i]);
          StoreShared(at + kQdRows, qd[i]);
          StoreShared((mine ^ (((r4 + i) & 7) << 4)) + (r4 + i) * 128 + offsetof(Scratch, kn), kn[i]);
        }
      }
      StoreShared2(st + offsetof(Stage, decay) + (thread & 3) * (kDecayPitch * 4) + (thread >> 2) * 8, Exp2(g0),
                   Exp2(g1));
    }
    NamedBarrier(bar, kTeamThreads);

    // 2. This chunk's raw tiles are read: fetch the chunk after the next into them.
    if (thread == issuer && c + 2 * kTeams < chunks) {
      const ChunkAt two = FindChunk(table, c + 2 * kTeams, piece);
      FetchRaw(p, scratch, &sm.raw[team][n & 1], n & 1, two.head / p.group, two.head, two.token);
    }
    int next = 0;
    if (c + kTeams < chunks) {
      const ChunkAt one = FindChunk(table, c + kTeams, piece);
      next = one.valid;
      if ((lane & 15) < next) beta_next = LoadBeta(p, one.token + (lane & 15), one.head);
    }

    // 3. A (warp 0) and P (warp 1).
    const uint32_t matrix = st + MatrixLane(lane);
    float d0[4] = {0, 0, 0, 0}, d1[4] = {0, 0, 0, 0};
    {
      const uint32_t left = matrix + warp * kQdRows, right = sc + offsetof(Scratch, kn) + MatrixLane(lane);
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
      const float beta = (lane & 15) < valid ? Beta(p, beta_stored) : 0.f;
      const float b0 = __shfl_sync(~0u, beta, i0), b1 = __shfl_sync(~0u, beta, i0 + 8);
      const uint32_t columns = sc + offsetof(Scratch, a_columns), to = columns + j0 * 80 + i0 * 4;
      StoreShared(to, j0 < i0 ? b0 * d0[0] : 0.f);
      StoreShared(to + 80, j0 + 1 < i0 ? b0 * d0[1] : 0.f);
      StoreShared(to + 32, b1 * d0[2]);
      StoreShared(to + 80 + 32, b1 * d0[3]);
      StoreShared(to + 8 * 80 + 32, j0 < i0 ? b1 * d1[2] : 0.f);
      StoreShared(to + 9 * 80 + 32, j0 + 1 < i0 ? b1 * d1[3] : 0.f);
      __syncwarp();
      float t[16];
      InvertColumn(columns, lane, t);
      if (lane < 16) {
        uint32_t y[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = PackBf16(t[2 * i] * beta, t[2 * i + 1] * beta);
        StoreShared4(sc + offsetof(Scratch, y) + lane * 32, y[0], y[1], y[2], y[3]);
        StoreShared4(sc + offsetof(Scratch, y) + lane * 32 + 16, y[4], y[5], y[6], y[7]);
      }
    } else {
      // Meanwhile warp 1 readies the next chunk: tail and row norms; and this chunk's v if it is the last.
      if (next > 0) {
        const uint32_t buffer = sc + ((n + 1) & 1) * kTile;
        BarrierWait(&sm.raw[team][(n + 1) & 1], ((n + 1) >> 1) & 1);
        if (next < kChunk) FillRawTail(buffer, lane, next);
        const uint32_t raw = buffer + MatrixLane(lane);
        WriteNorms(p, raw + offsetof(Scratch, k), sc + offsetof(Scratch, k_norm), 1.f, lane, next);
        WriteNorms(p, raw + offsetof(Scratch, q), sc + offsetof(Scratch, q_norm), p.scale, lane, next);
      }
      if (kWithV && valid < kChunk) {
        BarrierWait(&sm.v[at_stage], turn);
        FillTail(st + offsetof(Stage, v), lane, 32, valid, 0);
      }
    }
    NamedBarrier(bar, kTeamThreads);

    // 4. W (half of the channels per warp) and P' (warp 1).
    {
      uint32_t y[4];
      LoadMatrix4(y, sc + offsetof(Scratch, y) + (lane & 15) * 32 + (lane >> 4) * 16);
      const uint32_t from = sc + offsetof(Scratch, kn) + MatrixLane(lane) + warp * (kTile / 2);
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
        const uint32_t pt = st + offsetof(Stage, p) + i0 * 16 + j0 * 2;
        StoreShared(pt, PackBf16(p0[0], p0[1]));
        StoreShared(pt + 128, PackBf16(p1[0], p1[1]));
        StoreShared(pt + 256, PackBf16(p0[2], p0[3]));
        StoreShared(pt + 384, PackBf16(p1[2], p1[3]));
      }
    }
    FenceProxyAsync();
    BarrierArrive(&sm.full[at_stage]);
  }
}

}  // namespace fluvial::sm90::chunk16
