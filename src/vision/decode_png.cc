// SPDX-License-Identifier: Apache-2.0
// PNG through libpng.
#include <png.h>
#include <csetjmp>
#include <cstring>
#include <utility>

#include "vision/decoders.h"

namespace fluvial::vision {
namespace {

struct Source {
  Bytes file;
  size_t at = 0;
};

/// libpng reports by longjmp; its message is kept here. Nothing with a destructor lives between setjmp and longjmp.
struct Failure {
  char text[160] = "";
};

void OnError(png_structp png, png_const_charp message) {
  auto* failure = static_cast<Failure*>(png_get_error_ptr(png));
  std::strncpy(failure->text, message, sizeof(failure->text) - 1);
  png_longjmp(png, 1);
}

void OnWarning(png_structp, png_const_charp) {}

void OnRead(png_structp png, png_bytep to, size_t n) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (n > source->file.size() - source->at) png_error(png, "the file is truncated");
  std::memcpy(to, source->file.data() + source->at, n);
  source->at += n;
}

struct Reader {
  Source source;
  Failure failure;
  png_structp png = nullptr;
  png_infop info = nullptr;
  uint32_t width = 0;
  uint32_t height = 0;
  size_t row_bytes = 0;
  bool grey16 = false;

  explicit Reader(Bytes file) : source{file} {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &failure, OnError, OnWarning);
    if (png != nullptr) info = png_create_info_struct(png);
  }
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

bool ReadHeader(Reader& r) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  png_set_read_fn(r.png, &r.source, OnRead);
  png_set_user_limits(r.png, 0x7fffffff, 0x7fffffff);  // the caller has its own bound
  png_set_chunk_malloc_max(r.png, 8 << 20);            // text and profiles are not needed
  png_read_info(r.png, r.info);
  r.width = png_get_image_width(r.png, r.info);
  r.height = png_get_image_height(r.png, r.info);
  const int type = png_get_color_type(r.png, r.info), depth = png_get_bit_depth(r.png, r.info);
  r.grey16 = type == PNG_COLOR_TYPE_GRAY && depth == 16;
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(r.png);
  if (type == PNG_COLOR_TYPE_GRAY && depth < 8) png_set_expand_gray_1_2_4_to_8(r.png);
  if (depth == 16 && !r.grey16) png_set_strip_16(r.png);
  // Transparent palette entries become alpha on expansion.
  if ((type & PNG_COLOR_MASK_ALPHA) != 0 || type == PNG_COLOR_TYPE_PALETTE) png_set_strip_alpha(r.png);
  if ((type & PNG_COLOR_MASK_COLOR) == 0 && !r.grey16) png_set_gray_to_rgb(r.png);
  png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  r.row_bytes = png_get_rowbytes(r.png, r.info);
  return true;
}

bool ReadPixels(Reader& r, png_bytepp rows) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  png_read_image(r.png, rows);
  png_read_end(r.png, r.info);
  return true;
}

}  // namespace

Result<Decoded> DecodePng(Bytes file, const DecodeOptions& options) {
  Reader r(file);
  if (r.info == nullptr) return Status::Resource("no memory for a PNG reader");
  const auto damaged = [&] { return Status::InvalidArgument("damaged PNG: " + std::string(r.failure.text)); };
  if (!ReadHeader(r)) return damaged();
  FLUVIAL_RETURN_IF_ERROR(CheckPixels(r.width, r.height, options));
  const size_t pixels = size_t{r.width} * r.height;
  if (r.row_bytes != size_t{r.width} * (r.grey16 ? 2 : 3)) return Status::InvalidArgument("unknown kind of PNG");

  Decoded out;
  out.image.width = r.width;
  out.image.height = r.height;
  out.image.rgb.resize(3 * pixels);
  std::vector<uint8_t> grey(r.grey16 ? 2 * pixels : 0);
  uint8_t* base = r.grey16 ? grey.data() : out.image.rgb.data();
  std::vector<png_bytep> rows(r.height);
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = base + y * r.row_bytes;
  if (!ReadPixels(r, rows.data())) return damaged();
  for (size_t i = 0; r.grey16 && i < pixels; ++i) {
    const uint8_t v = grey[2 * i] != 0 ? 255 : grey[2 * i + 1];  // big endian; Pillow clips
    std::memset(out.image.rgb.data() + 3 * i, v, 3);
  }
  png_uint_32 exif_bytes = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(r.png, r.info, &exif_bytes, &exif) != 0) out.orientation = ExifOrientation({exif, exif_bytes});
  return out;
}

}  // namespace fluvial::vision
