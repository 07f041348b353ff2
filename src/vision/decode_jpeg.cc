// SPDX-License-Identifier: Apache-2.0
// JPEG through libjpeg-turbo, with the decoder settings that Pillow leaves at their defaults: accurate integer inverse
// DCT, smooth chroma upsampling.
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it first
#include <cstring>

#include <jerror.h>
#include <jpeglib.h>

#include "vision/decoders.h"

namespace fluvial::vision {
namespace {

/// A progressive file repeats its picture in scans; no sane one has that many.
constexpr int kMaxScans = 1000;

/// libjpeg reports by longjmp. Nothing with a destructor lives between setjmp and longjmp.
struct Errors {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  bool truncated = false;
  char text[JMSG_LENGTH_MAX] = "";
};

void OnExit(j_common_ptr c) {
  auto* e = reinterpret_cast<Errors*>(c->err);
  c->err->format_message(c, e->text);
  std::longjmp(e->jump, 1);
}

void OnMessage(j_common_ptr c, int level) {
  if (level < 0 && c->err->msg_code == JWRN_JPEG_EOF) reinterpret_cast<Errors*>(c->err)->truncated = true;
}

void OnProgress(j_common_ptr c) {
  if (reinterpret_cast<j_decompress_ptr>(c)->input_scan_number <= kMaxScans) return;
  auto* e = reinterpret_cast<Errors*>(c->err);
  std::strncpy(e->text, "too many scans", sizeof(e->text) - 1);
  std::longjmp(e->jump, 1);
}

struct Reader {
  jpeg_decompress_struct c{};
  Errors errors{};
  jpeg_progress_mgr progress{};

  Reader() {
    c.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = OnExit;
    errors.base.emit_message = OnMessage;
    progress.progress_monitor = OnProgress;
  }
  ~Reader() { jpeg_destroy_decompress(&c); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
};

bool ReadHeader(Reader& r, Bytes file) {
  if (setjmp(r.errors.jump) != 0) return false;
  jpeg_create_decompress(&r.c);
  r.c.progress = &r.progress;
  jpeg_mem_src(&r.c, file.data(), file.size());
  jpeg_save_markers(&r.c, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(&r.c, TRUE);
  if (r.c.num_components == 1) r.c.out_color_space = JCS_GRAYSCALE;
  if (r.c.num_components == 3) r.c.out_color_space = JCS_RGB;
  if (r.c.num_components == 4) r.c.out_color_space = JCS_CMYK;
  return true;
}

/// Rows of 1, 3 or 4 bytes a pixel, `pitch` bytes apart.
bool ReadPixels(Reader& r, uint8_t* to, size_t pitch) {
  if (setjmp(r.errors.jump) != 0) return false;
  jpeg_start_decompress(&r.c);
  while (r.c.output_scanline < r.c.output_height) {
    JSAMPROW row = to + r.c.output_scanline * pitch;
    jpeg_read_scanlines(&r.c, &row, 1);
  }
  jpeg_finish_decompress(&r.c);
  return true;
}

int Orientation(const jpeg_decompress_struct& c) {
  constexpr char kExif[] = "Exif\0";  // and the terminator: six bytes
  for (const jpeg_marker_struct* m = c.marker_list; m != nullptr; m = m->next) {
    if (m->data_length < 6 || std::memcmp(m->data, kExif, 6) != 0) continue;
    return ExifOrientation({m->data + 6, m->data_length - 6});
  }
  return 1;
}

/// a * b / 255, rounded.
uint8_t Multiply(int a, int b) {
  const int t = a * b + 128;
  return static_cast<uint8_t>(((t >> 8) + t) >> 8);
}

/// To RGB, in place from the end so that wider pixels do not overwrite unread ones.
void Spread(std::vector<uint8_t>& rgb, size_t pixels) {
  for (size_t i = pixels; i-- > 0;) std::memset(rgb.data() + 3 * i, rgb[i], 3);
}

}  // namespace

Result<Decoded> DecodeJpeg(Bytes file, const DecodeOptions& options) {
  Reader r;
  const auto damaged = [&] { return Status::InvalidArgument("damaged JPEG: " + std::string(r.errors.text)); };
  if (!ReadHeader(r, file)) return damaged();
  FLUVIAL_RETURN_IF_ERROR(CheckPixels(r.c.image_width, r.c.image_height, options));
  const int channels = r.c.num_components;
  if (channels != 1 && channels != 3 && channels != 4) {
    return Status::InvalidArgument("a JPEG of " + std::to_string(channels) + " components: only 1, 3 and 4 are known");
  }
  Decoded out;
  out.image.width = r.c.image_width;
  out.image.height = r.c.image_height;
  out.orientation = Orientation(r.c);
  const size_t pixels = size_t{r.c.image_width} * r.c.image_height;
  out.image.rgb.resize(3 * pixels);
  std::vector<uint8_t> cmyk(channels == 4 ? 4 * pixels : 0);
  uint8_t* to = channels == 4 ? cmyk.data() : out.image.rgb.data();
  if (!ReadPixels(r, to, size_t{r.c.image_width} * static_cast<size_t>(channels))) return damaged();
  if (r.errors.truncated) return Status::InvalidArgument("damaged JPEG: the file is truncated");
  if (channels == 1) Spread(out.image.rgb, pixels);
  for (size_t i = 0; channels == 4 && i < pixels; ++i) {
    // Stored inverted: a byte is 255 minus the ink.
    const int k = cmyk[4 * i + 3];
    for (size_t j = 0; j < 3; ++j) {
      const int ink = 255 - cmyk[4 * i + j];
      out.image.rgb[3 * i + j] = static_cast<uint8_t>(k - Multiply(ink, k));
    }
  }
  return out;
}

}  // namespace fluvial::vision
