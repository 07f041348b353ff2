// SPDX-License-Identifier: Apache-2.0
// Any bytes as a picture: RGB of the announced size and patches, or a Status. Good seeds are tests/golden/images/files
// (give that folder as a second corpus).
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "vision/image.h"
#include "vision/processor.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fluvial::vision::DecodeOptions options;
  options.max_image_pixels = 1 << 18;
  const auto image = fluvial::vision::DecodeImage({data, size}, options, "fuzz");
  if (!image.ok()) return 0;
  FLUVIAL_CHECK(image->width > 0 && image->height > 0);
  FLUVIAL_CHECK(image->rgb.size() == static_cast<size_t>(3 * image->width * image->height));
  fluvial::vision::ProcessorConfig config;
  config.image = {1024, 65536};
  const auto media = fluvial::vision::Processor(config).Process(*image);
  if (media.ok()) FLUVIAL_CHECK(media->input.pixels->size() == static_cast<size_t>(media->input.patches() * 1536));
  return 0;
}
