// SPDX-License-Identifier: Apache-2.0
#include "vision/video.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <utility>
#include <vector>

#include "vision/video_file.h"

namespace fluvial::vision {
namespace {

namespace fs = std::filesystem;

bool IsPicture(const fs::path& path) {
  constexpr std::array<std::string_view, 6> kExtensions = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"};
  std::string e = path.extension().string();
  for (char& c : e) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(kExtensions.begin(), kExtensions.end(), e) != kExtensions.end();
}

}  // namespace

Result<Video> ReadVideo(const std::string& path, const ProcessorConfig& config, const VideoOptions& options) {
  std::error_code error;
  const fs::file_status kind = fs::status(path, error);
  if (!fs::exists(kind)) return Status::InvalidArgument(path + ": there is no such file or folder");
  if (!fs::is_directory(kind)) {
    Result<Video> video = ReadVideoFile(path, config, options);
    if (video.ok()) return video;
    return Status(video.status().code(), path + ": " + video.status().message());
  }
  std::vector<fs::path> files;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file(error) && IsPicture(it->path())) files.push_back(it->path());
  }
  if (error) return Status::InvalidArgument(path + ": the folder cannot be read");
  if (files.empty())
    return Status::InvalidArgument(path + ": the folder holds no pictures (PNG, JPEG, WebP, BMP, GIF)");
  std::sort(files.begin(), files.end());
  Video out;
  out.fps = options.fps;
  out.total = static_cast<int64_t>(files.size());
  out.indices = SampleFrames(config, out.total, options.fps);
  for (const int64_t i : out.indices) {
    FLUVIAL_ASSIGN_OR_RETURN(Image frame, ReadImage(files[static_cast<size_t>(i)].string(), options.frame));
    out.frames.push_back(std::move(frame));
  }
  return out;
}

}  // namespace fluvial::vision
