// SPDX-License-Identifier: Apache-2.0
// Which size a tower wants a picture in, and a resize whose bytes are Pillow's.
#pragma once

#include <cstdint>

#include "fluvial/status.h"
#include "vision/image.h"

namespace fluvial::vision {

/// Bounds of a resized picture, or of all frames of a video together, in pixels.
struct PixelBounds {
  int64_t min = 0;
  int64_t max = 0;
};

struct Size {
  int64_t height = 0;
  int64_t width = 0;

  friend bool operator==(const Size&, const Size&) = default;
};

/// transformers' smart_resize of the Qwen2-VL image processor: both sides multiples of `factor`, pixels within bounds
/// where the sides allow, ratio kept as well as that goes; Python's rounding (half to even) on doubles.
/// kInvalidArgument, with width, height and the rule, when one side is more than 200 times the other.
Result<Size> ImageSize(int64_t height, int64_t width, int64_t factor, const PixelBounds& bounds);

/// The same for `frames` frames of the Qwen3-VL video processor: small frames are enlarged to `factor` first, and the
/// bounds count all frames, rounded to `temporal`. At least `temporal` frames.
Result<Size> VideoSize(int64_t frames, int64_t height, int64_t width, int64_t temporal, int64_t factor,
                       const PixelBounds& bounds);

/// Whose bytes a resize gives.
enum class Kernel : uint8_t {
  kPillow,  ///< Image.resize: 22-bit weights
  kTorch,   ///< interpolate(mode="bicubic", antialias=True) of uint8 on a CPU: 16-bit weights, columns always first
};

/// Bicubic resize (a = -0.5, support widened when shrinking), bytes equal to those of `kernel`: per axis weights in
/// double, then fixed point; 8 bits between the passes; an axis that keeps its length is copied. With Pillow columns
/// come first, except (since Pillow 13) where the picture loses more than twice as many rows as columns: Pillow 12
/// differs there by one level in places. Sources: python-pillow/Pillow src/libImaging/Resample.c; pytorch/pytorch
/// aten/src/ATen/native/cpu/UpSampleKernel.cpp (compute_index_ranges_int16_weights). Sides are at least 1.
Image ResizeBicubic(const Image& image, Size size, Kernel kernel = Kernel::kPillow);

}  // namespace fluvial::vision
