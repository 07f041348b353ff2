// SPDX-License-Identifier: Apache-2.0
// Video files; internal to this room.
#pragma once

#include <string>

#include "vision/decoders.h"
#include "vision/video.h"

namespace fluvial::vision {

/// The sampled frames of a file. Messages do not name it. kInvalidArgument when the programs are missing, say.
Result<Video> ReadVideoFile(const std::string& path, const ProcessorConfig& config, const VideoOptions& options);

}  // namespace fluvial::vision
