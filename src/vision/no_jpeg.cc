// SPDX-License-Identifier: Apache-2.0
// JPEG in a build without libjpeg-turbo.
#include "vision/decoders.h"

namespace fluvial::vision {

Result<Decoded> DecodeJpeg(Bytes, const DecodeOptions&) {
  return Status::InvalidArgument("this build cannot read JPEG (built without libjpeg-turbo): convert the picture");
}

}  // namespace fluvial::vision
