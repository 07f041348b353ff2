// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the vector kernel of the cpu body, dispatched at run time to the best Highway target.
// Arithmetic: ops/common/attention_tiles-inl.h, tiles cut at multiples of 64 keys from the sequence's start; then
// out = acc / l and lse = m + ln l.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/attention_tiles.h"
#include "ops/vision_attention/cpu_blocks.h"

namespace fluvial::ops::vision_attention {

inline constexpr int64_t kCpuRows = 128;  ///< queries of one block: they share the packing of a key tile
inline constexpr int64_t kCpuStep = 8;    ///< rows in flight

/// fp32 scratch of one worker, in floats.
struct CpuScratch {
  float* q = nullptr;    ///< [rows][d]
  float* kt = nullptr;   ///< keys, transposed
  float* v = nullptr;    ///< values
  float* s = nullptr;    ///< [rows][kTile]
  float* acc = nullptr;  ///< [rows][padded]
  float* m = nullptr;    ///< [rows]
  float* l = nullptr;    ///< [rows]

  static constexpr int64_t KeyFloats(int64_t d) { return (d + 1) / 2 * 2 * attention::kTile; }
  static constexpr int64_t ValueFloats(int64_t d) {
    return attention::kTile * attention::RoundedToPanels(attention::PaddedDim(d));
  }
  static constexpr size_t Bytes(int64_t d) {
    return sizeof(float) * static_cast<size_t>(kCpuRows * (attention::PaddedDim(d) * 2 + attention::kTile + 2) +
                                               KeyFloats(d) + ValueFloats(d));
  }
  static CpuScratch At(void* data, int64_t d) {
    const int64_t padded = attention::PaddedDim(d);
    CpuScratch s;
    s.acc = static_cast<float*>(data);
    s.kt = s.acc + kCpuRows * padded;
    s.v = s.kt + KeyFloats(d);
    s.s = s.v + ValueFloats(d);
    s.q = s.s + kCpuRows * attention::kTile;
    s.m = s.q + kCpuRows * padded;
    s.l = s.m + kCpuRows;
    return s;
  }
};

void AttendBlock(const Block& block, const CpuScratch& scratch);

}  // namespace fluvial::ops::vision_attention
