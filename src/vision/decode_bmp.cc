// SPDX-License-Identifier: Apache-2.0
// BMP: uncompressed pictures of 1, 4, 8, 16, 24 and 32 bits. Layout: BITMAPFILEHEADER and BITMAPINFOHEADER of the
// Windows GDI documentation.
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "vision/decoders.h"

namespace fluvial::vision {
namespace {

constexpr uint32_t kRgb = 0, kBitFields = 3, kAlphaBitFields = 6;

struct Header {
  size_t pixels_at = 0;
  int64_t width = 0;
  int64_t height = 0;
  bool top_down = false;
  int bits = 0;
  size_t palette_at = 0;
  size_t palette_entry = 4;
  size_t colours = 0;
  std::array<uint32_t, 3> masks{};  ///< 16 and 32 bits
};

uint32_t Read(Bytes f, size_t at, int bytes) {
  uint32_t v = 0;
  for (int i = 0; i < bytes; ++i) v |= uint32_t{f[at + static_cast<size_t>(i)]} << (8 * i);
  return v;
}

Status Damaged(const char* what) { return Status::InvalidArgument(std::string("damaged BMP: ") + what); }

Result<Header> ReadHeader(Bytes f) {
  if (f.size() < 26) return Damaged("the file is truncated");
  Header h;
  h.pixels_at = Read(f, 10, 4);
  const size_t size = Read(f, 14, 4);
  const bool core = size == 12;
  if ((!core && size < 40) || size > 4096 || 14 + size > f.size()) return Damaged("unknown header");
  uint32_t compression = kRgb;
  if (core) {
    h.width = Read(f, 18, 2);
    h.height = Read(f, 20, 2);
    h.bits = static_cast<int>(Read(f, 24, 2));
    h.palette_entry = 3;
  } else {
    h.width = static_cast<int32_t>(Read(f, 18, 4));
    h.height = static_cast<int32_t>(Read(f, 22, 4));
    h.top_down = h.height < 0;
    h.height = std::abs(h.height);
    h.bits = static_cast<int>(Read(f, 28, 2));
    compression = Read(f, 30, 4);
    h.colours = Read(f, 46, 4);
  }
  if (compression != kRgb && compression != kBitFields && compression != kAlphaBitFields) {
    return Status::InvalidArgument("a compressed BMP (method " + std::to_string(compression) +
                                   ") cannot be read: convert it to PNG");
  }
  h.palette_at = 14 + size;
  if (h.bits == 16 || h.bits == 32) {
    h.masks =
        h.bits == 16 ? std::array<uint32_t, 3>{0x7c00, 0x3e0, 0x1f} : std::array<uint32_t, 3>{0xff0000, 0xff00, 0xff};
    if (compression != kRgb) {
      if (54 + 12 > f.size()) return Damaged("the file is truncated");
      for (size_t i = 0; i < 3; ++i) h.masks[i] = Read(f, 54 + 4 * i, 4);
    }
    for (const uint32_t m : h.masks) {
      const int shift = m == 0 ? 0 : std::countr_zero(m);
      const int width = std::popcount(m);
      if (width < 1 || width > 8 || m >> shift != (uint32_t{1} << width) - 1) return Damaged("unknown colour masks");
    }
  } else if (h.bits == 1 || h.bits == 4 || h.bits == 8) {
    const size_t most = size_t{1} << h.bits;
    if (h.colours == 0 || h.colours > most) h.colours = most;
    if (h.palette_at + h.colours * h.palette_entry > f.size()) return Damaged("the file is truncated");
  } else if (h.bits != 24) {
    return Damaged("unknown number of bits per pixel");
  }
  return h;
}

void PaletteColour(Bytes f, const Header& h, size_t index, uint8_t* to) {
  if (index >= h.colours) return;
  const uint8_t* entry = f.data() + h.palette_at + index * h.palette_entry;
  to[0] = entry[2];
  to[1] = entry[1];
  to[2] = entry[0];
}

}  // namespace

Result<Decoded> DecodeBmp(Bytes f, const DecodeOptions& options) {
  FLUVIAL_ASSIGN_OR_RETURN(const Header h, ReadHeader(f));
  FLUVIAL_RETURN_IF_ERROR(CheckPixels(h.width, h.height, options));
  const size_t width = static_cast<size_t>(h.width), height = static_cast<size_t>(h.height);
  const size_t pitch = (width * static_cast<size_t>(h.bits) + 31) / 32 * 4;
  if (h.pixels_at > f.size() || (f.size() - h.pixels_at) / pitch < height) return Damaged("the file is truncated");

  Decoded out;
  out.image.width = h.width;
  out.image.height = h.height;
  out.image.rgb.resize(3 * width * height);
  for (size_t y = 0; y < height; ++y) {
    const size_t row = h.pixels_at + (h.top_down ? y : height - 1 - y) * pitch;
    uint8_t* to = out.image.rgb.data() + 3 * width * y;
    for (size_t x = 0; x < width; ++x, to += 3) {
      if (h.bits == 24) {
        const uint8_t* p = f.data() + row + 3 * x;
        to[0] = p[2];
        to[1] = p[1];
        to[2] = p[0];
      } else if (h.bits <= 8) {
        const size_t per_byte = 8 / static_cast<size_t>(h.bits);
        const size_t shift = static_cast<size_t>(h.bits) * (per_byte - 1 - x % per_byte);
        PaletteColour(f, h, (f[row + x / per_byte] >> shift) & ((size_t{1} << h.bits) - 1), to);
      } else {
        const uint32_t v = Read(f, row + x * static_cast<size_t>(h.bits / 8), h.bits / 8);
        for (size_t c = 0; c < 3; ++c) {
          const uint32_t top = h.masks[c] >> std::countr_zero(h.masks[c]);
          to[c] = static_cast<uint8_t>((v & h.masks[c]) / (h.masks[c] / top) * 255 / top);
        }
      }
    }
  }
  return out;
}

}  // namespace fluvial::vision
