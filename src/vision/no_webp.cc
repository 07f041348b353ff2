// SPDX-License-Identifier: Apache-2.0
// WebP in a build without libwebp.
#include "vision/decoders.h"

namespace fluvial::vision {

Result<Decoded> DecodeWebp(Bytes, const DecodeOptions&) {
  return Status::InvalidArgument("this build cannot read WebP (built without libwebp): convert the picture");
}

}  // namespace fluvial::vision
