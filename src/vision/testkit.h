// SPDX-License-Identifier: Apache-2.0
// Test pictures that need no file: the formula of tools/golden/vision_images.py.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "vision/image.h"

namespace fluvial::vision::testing {

inline Image Picture(int64_t width, int64_t height, int64_t seed) {
  Image out{width, height, {}};
  out.rgb.reserve(static_cast<size_t>(3 * width * height));
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t slow = std::abs((x * (3 + c) + y * (5 - c) + seed * 37) % 510 - 255);
        const int64_t noise = ((x * 73 + y * 151 + c * 29 + seed * 11) * 2654435761 >> 7) & 63;
        out.rgb.push_back(static_cast<uint8_t>((slow * 3 + noise * 4) / 4 % 256));
      }
    }
  }
  return out;
}

}  // namespace fluvial::vision::testing
