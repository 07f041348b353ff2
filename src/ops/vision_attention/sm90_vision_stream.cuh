// SPDX-License-Identifier: Apache-2.0
// Whole images: a CTA takes 64 queries per consumer warpgroup of one (sequence, head) and streams the keys and values
// past them in tiles of kKeys rows. One thread of the producer warpgroup keeps kStages tiles of K and of V in flight by
// TMA. Each consumer keeps its scores, probabilities and outputs in registers: while it takes the exponentials of tile
// n, its product of tile n - 1 with the values runs on the tensor cores, and so do the other warpgroups' products.
//
// Tiles are numbered over the plan's order, longest sequences first; a CTA finds its tile by a scan of the lengths on
// the device, so a captured launch serves every refill of its plan.
#pragma once

#include "ops/vision_attention/sm90_vision.cuh"

namespace fluvial::sm90::vision {

template <int kMain, int kTail, int kGroups>
struct StreamShape {
  static constexpr int kQueries = 64 * kGroups;
  // Scores, probabilities and outputs of 128 keys and 80 columns would not fit in the registers of three consumers.
  static constexpr int kKeys = kGroups == 3 && kTail != 0 ? 96 : 128;
  static constexpr int kStages = kMain == 128 ? 2 : 3;
  static constexpr int kThreads = 128 * (kGroups + 1);
  // Of 64 Ki registers: consumers need scores, probabilities and outputs.
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 24 : 32;
  using T = Tile<kMain, kTail>;
  static constexpr uint32_t kQMain = T::MainBytes(kQueries), kQTail = T::TailBytes(kQueries);
  static constexpr uint32_t kMainTile = T::MainBytes(kKeys), kTailTile = T::TailBytes(kKeys);
  // q main, then stages of k main and v main, then the tails in the same order; 1023 bytes to align the first.
  static constexpr uint32_t kBytes = kQMain + kQTail + 2 * kStages * (kMainTile + kTailTile) + 1024;
};

struct Assignment {
  int sequence, head, length, query;  ///< length 0: nothing to do
  int64_t first;
};

/// The tile numbered `tile`, by one warp: sequences in the plan's order, heads of a sequence one after another, their
/// blocks of kQueries queries inside.
template <int kQueries>
__device__ __forceinline__ Assignment FindTile(const Params& p, int64_t tile, int lane) {
  const int sequences = p.header->sequences;
  int64_t before = 0;
  for (int base = 0; base < sequences; base += 32) {
    const int i = base + lane;
    int length = 0, sequence = 0;
    int64_t first = 0;
    if (i < sequences) {
      sequence = p.order[i];
      first = p.offsets[sequence];
      length = static_cast<int>(p.offsets[sequence + 1] - first);
    }
    const int blocks = (length + kQueries - 1) / kQueries;
    int64_t sum = int64_t{blocks} * p.heads;
#pragma unroll
    for (int x = 1; x < 32; x *= 2) {
      const int64_t other = __shfl_up_sync(0xffffffffu, sum, x);
      if (lane >= x) sum += other;
    }
    const unsigned here = __ballot_sync(0xffffffffu, before + sum > tile);
    if (here != 0) {
      const int source = __ffs(static_cast<int>(here)) - 1;
      const int64_t rest = tile - before - __shfl_sync(0xffffffffu, sum - int64_t{blocks} * p.heads, source);
      const int n = __shfl_sync(0xffffffffu, blocks, source);
      Assignment a;
      a.sequence = __shfl_sync(0xffffffffu, sequence, source);
      a.length = __shfl_sync(0xffffffffu, length, source);
      a.first = __shfl_sync(0xffffffffu, first, source);
      a.head = static_cast<int>(rest / n);
      a.query = static_cast<int>(rest % n) * kQueries;
      return a;
    }
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  return {0, 0, 0, 0, 0};
}

/// Grid: tiles, or an upper bound of them. Preconditions: scale > 0, so that the largest score is the largest exponent.
template <int kMain, int kTail, int kGroups>
__global__ void __launch_bounds__(StreamShape<kMain, kTail, kGroups>::kThreads, 1)
    StreamKernel(const __grid_constant__ Params p) {
  using S = StreamShape<kMain, kTail, kGroups>;
  constexpr int kStages = S::kStages, kKeyTile = S::kKeys;
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t q_full, k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
  __shared__ Assignment shared;
  const int warp = static_cast<int>(Opaque(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp / 4;
  if (warp == 0) {
    const Assignment a = FindTile<S::kQueries>(p, blockIdx.x, lane);
    if (lane == 0) {
      shared = a;
      BarrierInit(&q_full, 1);
      for (int i = 0; i < kStages; ++i) {
        BarrierInit(&k_full[i], 1);
        BarrierInit(&v_full[i], 1);
        BarrierInit(&k_empty[i], 4 * kGroups);
        BarrierInit(&v_empty[i], 4 * kGroups);
      }
      BarrierInitFence();
    }
  }
  __syncthreads();
  const Assignment a = shared;
  if (a.length == 0) return;
  const int tiles = (a.length + kKeyTile - 1) / kKeyTile;
  const uint32_t q_main = (SmemAddr(raw) + 1023) & ~1023u, stages_main = q_main + S::kQMain;
  const uint32_t q_tail = stages_main + 2 * kStages * S::kMainTile, stages_tail = q_tail + S::kQTail;
  const auto k_main = [&](int s) { return stages_main + 2 * s * S::kMainTile; };
  const auto v_main = [&](int s) { return stages_main + (2 * s + 1) * S::kMainTile; };
  const auto k_tail = [&](int s) { return stages_tail + 2 * s * S::kTailTile; };
  const auto v_tail = [&](int s) { return stages_tail + (2 * s + 1) * S::kTailTile; };

  if (group == 0) {
    RegistersDown<S::kProducerRegisters>();
    if (warp == 0 && lane == 0) {
      const int row = p.padded != 0 ? 0 : static_cast<int>(a.first), block = p.padded != 0 ? a.sequence : 0;
      BarrierExpect(&q_full, S::kQMain + S::kQTail);
      LoadTile<kMain, kTail, S::kQueries>(q_main, q_tail, &p.q_main, &p.q_tail, &q_full, a.head, row + a.query, block);
#pragma unroll 1
      for (int n = 0; n < tiles; ++n) {
        const int s = n % kStages;
        const uint32_t freed = ((n / kStages) & 1) ^ 1;  // a new barrier counts as freed
        BarrierWait(&k_empty[s], freed);
        BarrierExpect(&k_full[s], S::kMainTile + S::kTailTile);
        LoadTile<kMain, kTail, kKeyTile>(k_main(s), k_tail(s), &p.k_main, &p.k_tail, &k_full[s], a.head,
                                         row + n * kKeyTile, block);
        BarrierWait(&v_empty[s], freed);
        BarrierExpect(&v_full[s], S::kMainTile + S::kTailTile);
        LoadTile<kMain, kTail, kKeyTile>(v_main(s), v_tail(s), &p.v_main, &p.v_tail, &v_full[s], a.head,
                                         row + n * kKeyTile, block);
      }
    }
    return;
  }

  RegistersUp<S::kConsumerRegisters>();
  const int consumer = group - 1, thread = static_cast<int>(threadIdx.x) % 128;
  const int valid = a.length - (tiles - 1) * kKeyTile;  // keys of the last tile
  const auto release = [&](uint64_t* bar) {
    __syncwarp();
    if (lane == 0) BarrierArrive(bar);
  };
  float m0 = -INFINITY, m8 = -INFINITY, l0 = 0, l8 = 0;
  float s[kKeyTile / 2];
  uint32_t operands[kKeyTile / 4];
  Output<kMain, kTail> o;
  o.Clear();

  BarrierWait(&q_full, 0);
  BarrierWait(&k_full[0], 0);
  WgmmaFence();
  Scores<kMain, kTail, S::kQueries, kKeyTile>(s, q_main, q_tail, 64 * consumer, k_main(0), k_tail(0));
  WgmmaCommit();
  WgmmaWait<0>();
  Pin(s);
  release(&k_empty[0]);
  if (tiles == 1) MaskKeys(s, valid, lane);
  RowMaxima(s, m0, m8);
  Exponentials(s, p.scale_log2, m0, m8, l0, l8);
  PackOperands(s, operands);

  int stage = 0, turn = 0;  // of the values that are next
#pragma unroll 1
  for (int n = 1; n < tiles; ++n) {
    const int next = stage + 1 == kStages ? 0 : stage + 1, next_turn = stage + 1 == kStages ? turn ^ 1 : turn;
    BarrierWait(&k_full[next], next_turn);
    o.PinAll();
    Pin(operands);
    Pin(s);
    WgmmaFence();
    Scores<kMain, kTail, S::kQueries, kKeyTile>(s, q_main, q_tail, 64 * consumer, k_main(next), k_tail(next));
    WgmmaCommit();
    BarrierWait(&v_full[stage], turn);
    Values<kMain, kTail, kKeyTile>(o, operands, v_main(stage), v_tail(stage));
    WgmmaCommit();
    WgmmaWait<1>();
    Pin(s);
    release(&k_empty[next]);
    if (n == tiles - 1 && valid < kKeyTile) MaskKeys(s, valid, lane);
    const float old0 = m0, old8 = m8;
    RowMaxima(s, m0, m8);
    const float alpha0 = Exp2((old0 - m0) * p.scale_log2), alpha8 = Exp2((old8 - m8) * p.scale_log2);
    l0 *= alpha0;
    l8 *= alpha8;
    Exponentials(s, p.scale_log2, m0, m8, l0, l8);
    WgmmaWait<0>();
    o.PinAll();
    Pin(operands);
    release(&v_empty[stage]);
    o.Scale(alpha0, alpha8);
    PackOperands(s, operands);
    stage = next;
    turn = next_turn;
  }

  BarrierWait(&v_full[stage], turn);
  if (valid < kKeyTile) {
    // Every consumer zeroes the same rows itself: it need not wait for the others.
    ZeroRows<kMain, kTail, kKeyTile>(v_main(stage), v_tail(stage), valid, thread);
    NamedBarrier(1 + consumer, 128);
  }
  o.PinAll();
  Pin(operands);
  WgmmaFence();
  Values<kMain, kTail, kKeyTile>(o, operands, v_main(stage), v_tail(stage));
  WgmmaCommit();
  WgmmaWait<0>();
  o.PinAll();
  const int row = a.query + 64 * consumer;
  FinishRows(p, o, m0, m8, l0, l8, a.sequence, a.first, row, a.length - row, a.head, warp % 4, lane);
}

}  // namespace fluvial::sm90::vision
