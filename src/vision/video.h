// SPDX-License-Identifier: Apache-2.0
// Videos: frames of a folder, or of a file through an optional decoder module.
#pragma once

#include <string>

#include "fluvial/status.h"
#include "vision/image.h"
#include "vision/processor.h"

namespace fluvial::vision {

struct VideoOptions {
  DecodeOptions frame;
  double fps = 0;  ///< of the source, for folders; 0 = unknown
};

/// `path` is a folder of pictures - the frames, in order of their names - or a video file. Only the frames that
/// SampleFrames picks are decoded. kInvalidArgument when there is nothing to read, or for a video file in a build
/// without a video decoder: that a folder of frames works is said.
Result<Video> ReadVideo(const std::string& path, const ProcessorConfig& config, const VideoOptions& options);

}  // namespace fluvial::vision
