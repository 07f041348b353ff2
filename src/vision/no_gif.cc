// SPDX-License-Identifier: Apache-2.0
// GIF in a build without giflib.
#include "vision/decoders.h"

namespace fluvial::vision {

Result<Decoded> DecodeGif(Bytes, const DecodeOptions&) {
  return Status::InvalidArgument("this build cannot read GIF (built without giflib): convert the picture");
}

}  // namespace fluvial::vision
