// SPDX-License-Identifier: Apache-2.0
#include "vision/image.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "vision/decoders.h"

namespace fluvial::vision {
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{1} << 30;

bool StartsWith(Bytes file, std::string_view magic, size_t at = 0) {
  return file.size() >= at + magic.size() && std::memcmp(file.data() + at, magic.data(), magic.size()) == 0;
}

}  // namespace

std::string_view FormatOf(Bytes file) {
  if (StartsWith(file, "\x89PNG\r\n\x1a\n")) return "png";
  if (StartsWith(file, "\xff\xd8\xff")) return "jpeg";
  if (StartsWith(file, "RIFF") && StartsWith(file, "WEBP", 8)) return "webp";
  if (StartsWith(file, "GIF87a") || StartsWith(file, "GIF89a")) return "gif";
  if (StartsWith(file, "BM")) return "bmp";
  return "";
}

Status CheckPixels(int64_t width, int64_t height, const DecodeOptions& options) {
  const std::string size = std::to_string(width) + " x " + std::to_string(height);
  if (width < 1 || height < 1) return Status::InvalidArgument("the picture has no pixels (" + size + ")");
  // Sides of these formats have at most 32 bits.
  if (height > options.max_image_pixels / width) {
    return Status::InvalidArgument("the picture is " + size + ", more than " +
                                   std::to_string(options.max_image_pixels) +
                                   " pixels (max_image_pixels): send a smaller one or raise --max-image-pixels");
  }
  return Status::Ok();
}

Result<Image> DecodeImage(Bytes file, const DecodeOptions& options, std::string_view name) {
  const std::string prefix = std::string(name) + ": ";
  const std::string_view format = FormatOf(file);
  Result<Decoded> decoded = Status::InvalidArgument("not a PNG, JPEG, WebP, BMP or GIF picture: convert it to one");
  if (format == "png") decoded = DecodePng(file, options);
  if (format == "jpeg") decoded = DecodeJpeg(file, options);
  if (format == "webp") decoded = DecodeWebp(file, options);
  if (format == "gif") decoded = DecodeGif(file, options);
  if (format == "bmp") decoded = DecodeBmp(file, options);
  if (!decoded.ok()) return Status(decoded.status().code(), prefix + decoded.status().message());
  if (options.ignore_exif) return std::move(decoded->image);
  return Upright(std::move(decoded->image), decoded->orientation);
}

Result<Image> ReadImage(const std::string& path, const DecodeOptions& options) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) return Status::InvalidArgument(path + ": the file cannot be read");
  if (size > kMaxFileBytes) return Status::InvalidArgument(path + ": the file is larger than 1 GiB");
  std::vector<uint8_t> bytes(size);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return DecodeImage(bytes, options, path);
}

}  // namespace fluvial::vision
