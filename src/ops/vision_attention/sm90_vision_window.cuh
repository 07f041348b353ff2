// SPDX-License-Identifier: Apache-2.0
// Windows: sequences of at most 64 tokens. One warpgroup takes one (window, head): three tiles of 64 rows come by TMA,
// one product, one softmax without a running maximum, one product, one store. Several CTAs share an SM and hide each
// other's loads; thousands of windows are one launch.
#pragma once

#include "ops/vision_attention/sm90_vision.cuh"

namespace fluvial::sm90::vision {

template <int kMain, int kTail>
struct WindowSmem {
  static constexpr int kRows = 64;
  static constexpr uint32_t kMainTile = Tile<kMain, kTail>::MainBytes(kRows);
  static constexpr uint32_t kTailTile = Tile<kMain, kTail>::TailBytes(kRows);
  // q, k, v main, then their tails; 1023 bytes to align the first.
  static constexpr uint32_t kBytes = 3 * (kMainTile + kTailTile) + 1024;
};

/// Grid: sequences (or the plan's capacity) x heads. Preconditions: every length <= 64.
template <int kMain, int kTail>
__global__ void __launch_bounds__(128) WindowKernel(const __grid_constant__ Params p) {
  using S = WindowSmem<kMain, kTail>;
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t full[2];  // q and k; v
  const int sequence = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) % p.heads;
  if (sequence >= p.header->sequences) return;
  const int64_t first = p.offsets[sequence];
  const int length = static_cast<int>(p.offsets[sequence + 1] - first);
  if (length == 0) return;
  const uint32_t main = (SmemAddr(raw) + 1023) & ~1023u, tail = main + 3 * S::kMainTile;
  const uint32_t q_main = main, k_main = main + S::kMainTile, v_main = main + 2 * S::kMainTile;
  const uint32_t q_tail = tail, k_tail = tail + S::kTailTile, v_tail = tail + 2 * S::kTailTile;
  if (threadIdx.x == 0) {
    BarrierInit(&full[0], 1);
    BarrierInit(&full[1], 1);
    BarrierInitFence();
    const int row = p.padded != 0 ? 0 : static_cast<int>(first), block = p.padded != 0 ? sequence : 0;
    constexpr uint32_t kTileBytes = S::kMainTile + S::kTailTile;
    BarrierExpect(&full[0], 2 * kTileBytes);
    LoadTile<kMain, kTail, 64>(q_main, q_tail, &p.q_main, &p.q_tail, &full[0], head, row, block);
    LoadTile<kMain, kTail, 64>(k_main, k_tail, &p.k_main, &p.k_tail, &full[0], head, row, block);
    BarrierExpect(&full[1], kTileBytes);
    LoadTile<kMain, kTail, 64>(v_main, v_tail, &p.v_main, &p.v_tail, &full[1], head, row, block);
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  float s[32];
  BarrierWait(&full[0], 0);
  WgmmaFence();
  Scores<kMain, kTail, 64, 64>(s, q_main, q_tail, 0, k_main, k_tail);
  WgmmaCommit();
  WgmmaWait<0>();
  Pin(s);
  if (length < 64) MaskKeys(s, length, lane);
  float m0 = -INFINITY, m8 = -INFINITY, l0 = 0, l8 = 0;
  RowMaxima(s, m0, m8);
  Exponentials(s, p.scale_log2, m0, m8, l0, l8);
  uint32_t operands[16];
  PackOperands(s, operands);

  BarrierWait(&full[1], 0);
  if (length < 64) {
    ZeroRows<kMain, kTail, 64>(v_main, v_tail, length, static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  Output<kMain, kTail> o;
  o.Clear();
  o.PinAll();
  Pin(operands);
  WgmmaFence();
  Values<kMain, kTail, 64>(o, operands, v_main, v_tail);
  WgmmaCommit();
  WgmmaWait<0>();
  o.PinAll();
  FinishRows(p, o, m0, m8, l0, l8, sequence, first, 0, length, head, warp, lane);
}

}  // namespace fluvial::sm90::vision
