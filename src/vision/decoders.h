// SPDX-License-Identifier: Apache-2.0
// One decoder per format, each in its own file with the library behind it; internal to this room. A decoder that is not
// built has a body in no_<format>.cc that says so.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fluvial/status.h"
#include "vision/image.h"

namespace fluvial::vision {

using Bytes = std::span<const uint8_t>;

struct Decoded {
  Image image;
  int orientation = 1;  ///< EXIF, 1..8
};

/// kInvalidArgument with both numbers when a picture has no pixels or more than allowed. Called before allocation.
Status CheckPixels(int64_t width, int64_t height, const DecodeOptions& options);

/// Orientation tag of a TIFF structure ("II*\0..." or "MM\0*..."); 1 when there is none or it is damaged.
int ExifOrientation(Bytes tiff);

/// Turns a picture upright; orientation 1..8.
Image Upright(Image image, int orientation);

// Messages do not name the file; DecodeImage adds it.
Result<Decoded> DecodePng(Bytes file, const DecodeOptions& options);
Result<Decoded> DecodeJpeg(Bytes file, const DecodeOptions& options);
Result<Decoded> DecodeWebp(Bytes file, const DecodeOptions& options);
Result<Decoded> DecodeGif(Bytes file, const DecodeOptions& options);
Result<Decoded> DecodeBmp(Bytes file, const DecodeOptions& options);

}  // namespace fluvial::vision
