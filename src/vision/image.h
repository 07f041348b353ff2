// SPDX-License-Identifier: Apache-2.0
// Image files to RGB bytes: PNG, JPEG, WebP, BMP and the first frame of a GIF.
//
// The bytes are those of Pillow's Image.open(f).convert("RGB"), because that is what transformers' processors see:
//   alpha        dropped, nothing is composited (RGBA, LA, palettes with transparency)
//   palette, 1, 2, 4 bits   expanded; grey is repeated in all three channels
//   16-bit grey  values above 255 become 255; 16-bit colour and grey with alpha keep the upper byte
//   CMYK, YCCK   Adobe's inverted convention, R = (255-C)(255-K)/255
//   colour profiles and gamma   ignored
// Orientation of EXIF is applied, as a person expects; transformers does not (DecodeOptions::ignore_exif).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::vision {

/// Interleaved RGB, row after row without padding.
struct Image {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> rgb;  ///< [height, width, 3]
};

struct DecodeOptions {
  /// A file that claims more pixels is refused before anything is allocated for them. Pillow's warning threshold.
  int64_t max_image_pixels = 89'478'485;
  /// Leave the picture as stored, as transformers does.
  bool ignore_exif = false;
};

/// `name` stands for the file in messages. kInvalidArgument: not one of the formats, damaged, truncated, too large
/// (with width, height and the bound), or a format whose library this build lacks.
Result<Image> DecodeImage(std::span<const uint8_t> file, const DecodeOptions& options, std::string_view name);

/// Reads and decodes a file of at most 1 GiB.
Result<Image> ReadImage(const std::string& path, const DecodeOptions& options);

/// "png", "jpeg", "webp", "bmp", "gif", or "" - from the first bytes.
std::string_view FormatOf(std::span<const uint8_t> file);

}  // namespace fluvial::vision
