// SPDX-License-Identifier: Apache-2.0
// Rotary position embeddings: tables of cos and sin from positions, once per step; then rotation of q and k.
//
// Pair i (i < d/2) of a head couples elements i and i + d/2 of its first d elements ("half split"); the rest of the
// head passes through (partial rotation). With angle a(t, i):
//     y[i]       = x[i] * cos a - x[i + d/2] * sin a
//     y[i + d/2] = x[i + d/2] * cos a + x[i] * sin a
// Sources: Su et al. 2021 (RoPE); Qwen2-VL (arXiv 2409.12191) for the three-row form; huggingface/transformers for
// the arrangement of sections and every rounding point.
#pragma once

#include <array>
#include <cstdint>

#include "base/tensor_view.h"
#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops::rope {

enum class Kind : uint8_t {
  kPlain,             ///< one row of positions; f_i = theta^(-2i/d)
  kMropeChunked,      ///< three rows T, H, W; pairs 0..s0-1 take T, the next s1 take H, the last s2 take W (Qwen2.5-VL)
  kMropeInterleaved,  ///< three rows; pair i takes row i mod 3 while i < 3*s[i mod 3], else T (Qwen3-VL, Qwen3.5)
  kAxial,             ///< two rows (image row, column); d/4 frequencies f_i = theta^(-4i/d) each: rows then columns
};

/// What a model's config says. Value type.
struct Spec {
  Kind kind = Kind::kPlain;
  int32_t dim = 0;                    ///< d: rotated elements of a head; even (kAxial: a multiple of 4)
  double theta = 10000.0;             ///< > 0
  std::array<int32_t, 3> sections{};  ///< mrope only: s0 + s1 + s2 = d/2

  /// Rows of positions: 1, 3 or 2.
  int position_rows() const;
};

Status Validate(const Spec& spec);

/// Fills cos and sin, fp32 [T, d/2] with unit inner stride (host memory). `positions`: i64 or i32 [rows, T], unit inner
/// stride, row order of Kind; the mrope kinds also take one row [1, T] (text only: all three equal). Frequencies are
/// rounded to fp32 where transformers rounds them, the angle is the fp32 product with the position, its cos and sin
/// are correctly rounded from double. Same T and device (CPU) for all tensors.
Status Tables(Stream& stream, const Spec& spec, const TensorView& positions, const TensorView& cos,
              const TensorView& sin);

/// Where transformers rounds.
enum class Rounding : uint8_t {
  kModel,  ///< language models: cos, sin, both products and the sum are each rounded to the type of x
  kFp32,   ///< vision towers: all in fp32 (products rounded, then the sum), one rounding to the type of x
};

/// Rotates x [T, H, D] (or [T, D]) into y (same shape; may be x itself). D >= d; elements d..D-1 are copied. cos and
/// sin are fp32 [T, d/2] from Tables. Unit inner stride, any other strides. kInvalidArgument on misfit.
Status Apply(Stream& stream, const TensorView& x, const TensorView& cos, const TensorView& sin, Rounding rounding,
             const TensorView& y);

}  // namespace fluvial::ops::rope
