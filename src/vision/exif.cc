// SPDX-License-Identifier: Apache-2.0
// Orientation: where EXIF keeps it (TIFF 6.0, tag 0x0112 of the first directory) and what it means.
#include <cstring>
#include <utility>

#include "vision/decoders.h"

namespace fluvial::vision {

int ExifOrientation(Bytes tiff) {
  constexpr uint8_t kLittle[] = {'I', 'I', 42, 0}, kBig[] = {'M', 'M', 0, 42};
  if (tiff.size() < 14) return 1;
  const bool little = std::memcmp(tiff.data(), kLittle, 4) == 0;
  if (!little && std::memcmp(tiff.data(), kBig, 4) != 0) return 1;
  const auto read = [&](size_t at, int bytes) {
    uint32_t v = 0;
    for (int i = 0; i < bytes; ++i) {
      v |= uint32_t{tiff[at + static_cast<size_t>(i)]} << (8 * (little ? i : bytes - 1 - i));
    }
    return v;
  };
  const size_t directory = read(4, 4);
  if (directory > tiff.size() - 2) return 1;
  const size_t entries = read(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + 12 * i;
    if (at + 12 > tiff.size()) return 1;
    if (read(at, 2) != 0x0112) continue;
    const uint32_t value = read(at + 2, 2) == 4 ? read(at + 8, 4) : read(at + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Image Upright(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const bool swap = orientation >= 5;
  Image out;
  out.width = swap ? image.height : image.width;
  out.height = swap ? image.width : image.height;
  out.rgb.resize(image.rgb.size());
  const int64_t w = image.width, h = image.height;
  uint8_t* to = out.rgb.data();
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x, to += 3) {
      int64_t sx = swap ? y : x, sy = swap ? x : y;
      // 2, 3, 7, 8 mirror columns of the stored picture; 3, 4, 6, 7 mirror its rows.
      if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) sx = w - 1 - sx;
      if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) sy = h - 1 - sy;
      std::memcpy(to, image.rgb.data() + 3 * (sy * w + sx), 3);
    }
  }
  return out;
}

}  // namespace fluvial::vision
