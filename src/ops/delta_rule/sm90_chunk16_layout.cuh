// SPDX-License-Identifier: Apache-2.0
// Shared memory and work distribution of the chunk-16 prefill kernel (sm90_chunk16.cuh explains the algorithm).
#pragma once

#include <cstddef>

#include "ops/delta_rule/sm90_chunk16_pieces.cuh"

namespace fluvial::sm90::chunk16 {

constexpr int kTeamThreads = 64;
constexpr int kMathThreads = 256;
constexpr int kMathBarrier = 15, kCtaBarrier = 14;  // named barriers; the teams use 1 ...
constexpr int kTile = kChunk * kDim * 2;            // bytes of one bf16 chunk tile

/// Decay per key channel (KDA) or per head (GDN).
enum class Gate { kPerChannel, kPerHead };

/// How the CTA is made up. Team t of kTeams makes chunks t, t + kTeams, ...; chunk c lives in stage c % kStages.
/// Registers are per thread, of 64 K in all. Measured: docs/kernels/delta_rule_chunk16.md.
constexpr int kTeams = 6, kMathRegisters = 144, kTeamRegisters = 64;
constexpr int kThreads = kMathThreads + kTeams * kTeamThreads;
template <Gate kGate>
constexpr int kStages = kGate == Gate::kPerChannel ? 9 : 12;

constexpr int kDecayPitch = 36;  // floats; 32 would put the four lanes of a quad on one bank

/// One pipeline stage, written by a team, read by both math warpgroups. Tiles hold [channel half][row][64 channels]
/// with the 128-byte swizzle: 16-byte unit u of row r sits at u ^ (r & 7).
template <Gate kGate>
struct alignas(1024) Stage {
  uint8_t operands[2 * kTile];  // [half][32][128 B]: rows 0..15 kd, 16..31 qd, in place of k and q (GDN: as given)
  uint8_t w[kTile];             // [half][16][128 B], columns contiguous (MN-major B operand)
  uint8_t v[kTile];             // [half][16][128 B]
  uint8_t kn[kGate == Gate::kPerChannel ? kTile : 128];  // KDA: kn in place of the gate, [half][16][128 B]
  uint8_t p[512];                                        // P' as [i/8][j/8][i%8][j%8], no swizzle
  // KDA: e^G_end of channel 8 j + 2 m + e at [m][2 j + e], eight 16-byte loads per math thread. GDN: e^G_end first.
  float decay[kGate == Gate::kPerChannel ? 4 * kDecayPitch : 4];
  float x_rows[kChunk], o_rows[kChunk];  // factors of S k and S q per token
};
constexpr uint32_t kHalf = 32 * 128;  // bytes between the channel halves of `operands`
constexpr uint32_t kQdRows = 16 * 128;

/// A team's private memory.
struct alignas(128) KdaScratch {
  float a_columns[kChunk][20];  // A transposed: [j][i]; 20 keeps rows 16-byte aligned
  uint8_t y[kChunk * 32];       // Y^T as [j][i] bf16
  uint32_t k_power[kChunk];     // 2^n per row, twice as bf16
  int stopped;                  // the chain will not read the team's next chunk
};
struct alignas(128) GdnScratch {
  float a_columns[kChunk][20];
  uint8_t y_w[kChunk * 32], y_p[kChunk * 32];  // (T diag(beta))^T with the row factors of W and of P'
  float w_rows[kChunk], p_rows[kChunk];
  int stopped;
};
template <Gate kGate>
struct ScratchOf {
  using Type = KdaScratch;
};
template <>
struct ScratchOf<Gate::kPerHead> {
  using Type = GdnScratch;
};

template <Gate kGate>
struct Smem {
  Stage<kGate> stage[kStages<kGate>];
  typename ScratchOf<kGate>::Type scratch[kTeams];
  uint8_t out[8][512];             // per math warp: [16 tokens][16 values] bf16 on its way out
  uint64_t full[kStages<kGate>];   // factors are written
  uint64_t empty[kStages<kGate>];  // the chain has read them
  uint64_t v[kStages<kGate>];      // k, q, v (KDA: and the gate) have arrived
  volatile int stop;               // chunks that the chain reads, once it is known to be fewer than all
  PieceTable table;
};

/// Byte offset of (row, 16-byte unit 0..15) in a tile of `rows` rows.
template <int kRows>
__device__ __forceinline__ uint32_t TileOffset(int row, int unit) {
  return (unit >> 3) * (kRows * 128) + row * 128 + (((unit ^ row) & 7) << 4);
}

}  // namespace fluvial::sm90::chunk16
