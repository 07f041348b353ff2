// SPDX-License-Identifier: Apache-2.0
// WebP through libwebp; of an animation the first frame.
#include <webp/decode.h>
#include <webp/demux.h>
#include <cstring>
#include <memory>

#include "vision/decoders.h"

namespace fluvial::vision {

Result<Decoded> DecodeWebp(Bytes file, const DecodeOptions& options) {
  const Status damaged = Status::InvalidArgument("damaged WebP: it cannot be decoded");
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(file.data(), file.size(), &features) != VP8_STATUS_OK) return damaged;
  FLUVIAL_RETURN_IF_ERROR(CheckPixels(features.width, features.height, options));

  const WebPData data{file.data(), file.size()};
  WebPAnimDecoderOptions how;
  if (WebPAnimDecoderOptionsInit(&how) == 0) return Status::Failed("the WebP library has another version");
  how.color_mode = MODE_RGBA;
  how.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, void (*)(WebPAnimDecoder*)> decoder(WebPAnimDecoderNew(&data, &how),
                                                                             WebPAnimDecoderDelete);
  uint8_t* rgba = nullptr;
  int timestamp = 0;
  WebPAnimInfo info;
  if (decoder == nullptr || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0) return damaged;
  FLUVIAL_RETURN_IF_ERROR(CheckPixels(info.canvas_width, info.canvas_height, options));
  if (WebPAnimDecoderGetNext(decoder.get(), &rgba, &timestamp) == 0) return damaged;

  Decoded out;
  out.image.width = info.canvas_width;
  out.image.height = info.canvas_height;
  const size_t pixels = size_t{info.canvas_width} * info.canvas_height;
  out.image.rgb.resize(3 * pixels);
  for (size_t i = 0; i < pixels; ++i) std::memcpy(out.image.rgb.data() + 3 * i, rgba + 4 * i, 3);

  WebPChunkIterator chunk;
  if (WebPDemuxGetChunk(WebPAnimDecoderGetDemuxer(decoder.get()), "EXIF", 1, &chunk) != 0) {
    Bytes exif(chunk.chunk.bytes, chunk.chunk.size);
    if (exif.size() > 6 && std::memcmp(exif.data(), "Exif\0", 6) == 0) exif = exif.subspan(6);
    out.orientation = ExifOrientation(exif);
    WebPDemuxReleaseChunkIterator(&chunk);
  }
  return out;
}

}  // namespace fluvial::vision
