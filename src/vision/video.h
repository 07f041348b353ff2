// SPDX-License-Identifier: Apache-2.0
// Videos: frames of a folder, or of a file through programs that may be there.
#pragma once

#include <string>

#include "fluvial/status.h"
#include "vision/image.h"
#include "vision/processor.h"

namespace fluvial::vision {

struct VideoOptions {
  DecodeOptions frame;
  double fps = 0;  ///< of the source; 0 = what a file says, unknown for folders
};

/// `path` is a folder of pictures - the frames, in order of their names - or a video file, which the programs ffprobe
/// and ffmpeg read where they are installed. Only the frames that SampleFrames picks are kept. kInvalidArgument when
/// there is nothing to read, or for a video file without those programs: that a folder of frames works is said.
Result<Video> ReadVideo(const std::string& path, const ProcessorConfig& config, const VideoOptions& options);

}  // namespace fluvial::vision
