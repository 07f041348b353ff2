// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the kernel of the cpu_bf16 body. cpu_bf16.cc is compiled for AVX-512 BF16; nothing in it may
// run unless HasAvx512Bf16().
//
// Arithmetic of one row, with tiles of 64 keys cut from the sequence's first key:
//   score  t_j = (sum over pairs of dimensions, in rising order, of vdpbf16ps) * scale * log2(e)
//   tile   when max_j t_j > m + 8: m' = max_j t_j, and l and acc are multiplied by 2^(m - m'); else m' = m
//          p_j = 2^(t_j - m'); l = l + (lane sums of p); acc = acc + vdpbf16ps chain over pairs of keys of bf16(p) v
//   end    out = acc / l, lse = m ln 2 + ln l
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/vision_attention/cpu_blocks.h"

namespace fluvial::ops::vision_attention {

inline constexpr int64_t kBf16Rows = 192;  ///< queries of one block: a multiple of kBf16Step and of 6
inline constexpr int64_t kBf16Step = 12;
inline constexpr int64_t kBf16Keys = 64;

/// Scratch of one worker, 64-byte aligned parts.
struct Bf16Scratch {
  float* acc = nullptr;    ///< [rows][padded]
  float* l = nullptr;      ///< [rows][16]: lane sums
  float* m = nullptr;      ///< [rows]
  float* alpha = nullptr;  ///< [rows]
  uint32_t* q = nullptr;   ///< [rows][pairs]: pairs of dimensions
  uint32_t* k = nullptr;   ///< [pairs][64]: keys, transposed
  uint32_t* v = nullptr;   ///< [32][padded]: pairs of keys
  uint32_t* p = nullptr;   ///< [rows][32]: pairs of probabilities

  static constexpr int64_t Padded(int64_t d) { return (d + 15) / 16 * 16; }
  static constexpr int64_t Words(int64_t d) {
    return kBf16Rows * (Padded(d) + 16 + 2 + Padded(d) / 2 + kBf16Keys / 2) + kBf16Keys * Padded(d);
  }
  static constexpr size_t Bytes(int64_t d) { return static_cast<size_t>(Words(d)) * sizeof(uint32_t) + 64; }
  static Bf16Scratch At(void* data, int64_t d) {
    Bf16Scratch s;
    // A workspace promises no alignment of its own.
    s.acc = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(data) + 63) / 64 * 64);
    s.l = s.acc + kBf16Rows * Padded(d);
    s.m = s.l + kBf16Rows * 16;
    s.alpha = s.m + kBf16Rows;
    s.q = reinterpret_cast<uint32_t*>(s.alpha + kBf16Rows);
    s.k = s.q + kBf16Rows * Padded(d) / 2;
    s.v = s.k + kBf16Keys * Padded(d) / 2;
    s.p = s.v + kBf16Keys * Padded(d) / 2;
    return s;
  }
};

void AttendBlockBf16(const Block& block, const Bf16Scratch& scratch);

}  // namespace fluvial::ops::vision_attention
