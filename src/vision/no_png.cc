// SPDX-License-Identifier: Apache-2.0
// PNG in a build without libpng.
#include "vision/decoders.h"

namespace fluvial::vision {

Result<Decoded> DecodePng(Bytes, const DecodeOptions&) {
  return Status::InvalidArgument("this build cannot read PNG (built without libpng): convert the picture");
}

}  // namespace fluvial::vision
