// SPDX-License-Identifier: Apache-2.0
// The first frame of a GIF through giflib.
#include <gif_lib.h>
#include <algorithm>
#include <cstring>
#include <memory>

#include "vision/decoders.h"

namespace fluvial::vision {
namespace {

struct Source {
  Bytes file;
  size_t at = 0;
};

int OnRead(GifFileType* gif, GifByteType* to, int n) {
  auto* source = static_cast<Source*>(gif->UserData);
  const size_t take = std::min(static_cast<size_t>(n), source->file.size() - source->at);
  std::memcpy(to, source->file.data() + source->at, take);
  source->at += take;
  return static_cast<int>(take);
}

Status Damaged(int error) {
  const char* text = GifErrorString(error);
  return Status::InvalidArgument("damaged GIF: " + std::string(text == nullptr ? "it cannot be decoded" : text));
}

/// Reads up to the first image's descriptor. `background` = its transparent index, which fills what the frame leaves
/// uncovered; 0 without one (as Pillow).
Status ToFirstImage(GifFileType* gif, int& background) {
  for (;;) {
    GifRecordType type = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(gif, &type) == GIF_ERROR) return Damaged(gif->Error);
    if (type == TERMINATE_RECORD_TYPE) return Status::InvalidArgument("damaged GIF: it holds no picture");
    if (type == IMAGE_DESC_RECORD_TYPE) {
      return DGifGetImageHeader(gif) == GIF_ERROR ? Damaged(gif->Error) : Status::Ok();
    }
    if (type != EXTENSION_RECORD_TYPE) continue;
    int code = 0;
    GifByteType* block = nullptr;
    if (DGifGetExtension(gif, &code, &block) == GIF_ERROR) return Damaged(gif->Error);
    while (block != nullptr) {
      if (code == GRAPHICS_EXT_FUNC_CODE && block[0] >= 4 && (block[1] & 1) != 0) background = block[4];
      if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) return Damaged(gif->Error);
    }
  }
}

}  // namespace

Result<Decoded> DecodeGif(Bytes file, const DecodeOptions& options) {
  Source source{file};
  int error = 0;
  const auto close = [](GifFileType* g) {
    int ignored = 0;
    DGifCloseFile(g, &ignored);
  };
  const std::unique_ptr<GifFileType, decltype(close)> gif(DGifOpen(&source, OnRead, &error), close);
  if (gif == nullptr) return Damaged(error);
  int background = 0;
  FLUVIAL_RETURN_IF_ERROR(ToFirstImage(gif.get(), background));
  const GifImageDesc& frame = gif->Image;
  if (frame.Left < 0 || frame.Top < 0) return Status::InvalidArgument("damaged GIF: a frame outside the picture");
  // A frame larger than the screen enlarges the picture (as Pillow).
  const int64_t width = std::max<int64_t>(gif->SWidth, int64_t{frame.Left} + frame.Width);
  const int64_t height = std::max<int64_t>(gif->SHeight, int64_t{frame.Top} + frame.Height);
  FLUVIAL_RETURN_IF_ERROR(CheckPixels(width, height, options));

  std::vector<uint8_t> index(static_cast<size_t>(width * height), static_cast<uint8_t>(background));
  // Interlaced rows come in four passes.
  constexpr int kStart[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};
  for (int pass = 0; pass < (frame.Interlace ? 4 : 1); ++pass) {
    for (int y = frame.Interlace ? kStart[pass] : 0; y < frame.Height; y += frame.Interlace ? kStep[pass] : 1) {
      uint8_t* row = index.data() + (frame.Top + y) * width + frame.Left;
      if (frame.Width > 0 && DGifGetLine(gif.get(), row, frame.Width) == GIF_ERROR) return Damaged(gif->Error);
    }
  }
  const ColorMapObject* map = frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap;
  Decoded out;
  out.image.width = width;
  out.image.height = height;
  out.image.rgb.resize(3 * index.size());
  for (size_t i = 0; i < index.size(); ++i) {
    uint8_t* to = out.image.rgb.data() + 3 * i;
    const int v = index[i];
    if (map == nullptr) {
      std::memset(to, v, 3);
    } else if (v < map->ColorCount) {
      const GifColorType& c = map->Colors[v];
      to[0] = c.Red;
      to[1] = c.Green;
      to[2] = c.Blue;
    }
  }
  return out;
}

}  // namespace fluvial::vision
