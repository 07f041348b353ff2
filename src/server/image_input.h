// SPDX-License-Identifier: Apache-2.0
// ImageInput over the model's own processor (vision/processor.h).
#pragma once

#include <memory>
#include <string>

#include "server/media.h"
#include "vision/image.h"

namespace fluvial::server {

/// For the checkpoint in `directory`. kUnusableModel when it has no processor files.
Result<std::shared_ptr<const ImageInput>> MakeImageInput(const std::string& directory,
                                                         const vision::DecodeOptions& options);

}  // namespace fluvial::server
