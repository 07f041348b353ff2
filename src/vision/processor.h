// SPDX-License-Identifier: Apache-2.0
// Processor: pictures and videos to the patches a model's vision tower reads, and chat text with one placeholder per
// item to text with one placeholder per token - as transformers' processors do.
//
// Source of every rule: huggingface/transformers 5.24, models/qwen2_vl (images), qwen2_5_vl and qwen3_vl (videos,
// placeholders). Videos are resized as torch does it, as there. Where a checkpoint names the "Fast" image processor,
// transformers resizes pictures with torch when torchvision is installed and with Pillow otherwise; this is the Pillow
// path (they differ by one level of 255 in places).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fluvial/status.h"
#include "fluvial/vision.h"
#include "vision/image.h"
#include "vision/resize.h"

namespace fluvial::vision {

/// How videos are resized, placed and written into the prompt.
enum class Family : uint8_t {
  kQwen2_5Vl,  ///< one run of placeholders per video
  kQwen3Vl,    ///< Qwen3-VL and Qwen3.5: a time and a run of placeholders per frame group
};

/// What preprocessor_config.json and video_preprocessor_config.json (or processor_config.json) say.
struct ProcessorConfig {
  Family family = Family::kQwen3Vl;
  int64_t patch = 16;
  int64_t temporal_patch = 2;
  int64_t merge = 2;
  PixelBounds image;
  PixelBounds video;
  std::array<double, 3> mean{0.5, 0.5, 0.5};  ///< of values 0..1
  std::array<double, 3> std{0.5, 0.5, 0.5};
  std::array<double, 3> video_mean{0.5, 0.5, 0.5};
  std::array<double, 3> video_std{0.5, 0.5, 0.5};
  double fps = 2;
  int64_t min_frames = 4;
  int64_t max_frames = 768;

  int64_t factor() const { return patch * merge; }
};

/// Reads the files of a checkpoint's folder. kUnusableModel when there is none, or one asks for something unknown.
Result<ProcessorConfig> ReadProcessorConfig(const std::string& directory);

/// Decoded frames and where they come from.
struct Video {
  std::vector<Image> frames;
  /// Of the source, per frame of `frames`; empty: 0, 1, 2, ...
  std::vector<int64_t> indices;
  double fps = 0;     ///< of the source; 0 = unknown, then 24 as in transformers
  int64_t total = 0;  ///< frames of the source; 0 = those given
};

/// One item, ready for the engine, and what its placeholders need.
struct Media {
  VisionInput input;
  std::vector<double> seconds;  ///< kQwen3Vl videos: time of each frame group
};

/// Hash of grid and pixels: two independent lanes of 64 bits. Not for hostile input.
std::array<uint64_t, 2> ContentHash(const VisionInput& input);

/// Indices of the frames that transformers' sample_frames picks of `total` frames at `fps` (0 = unknown).
std::vector<int64_t> SampleFrames(const ProcessorConfig& config, int64_t total, double fps);

class Processor {
 public:
  explicit Processor(const ProcessorConfig& config) : config_(config) {}
  static Result<Processor> Load(const std::string& directory);

  const ProcessorConfig& config() const { return config_; }

  /// kInvalidArgument with width, height and the rule for a picture of unusable shape.
  Result<Media> Process(const Image& image) const;
  /// The frames are taken as they are (sample them first); all of one size.
  Result<Media> Process(const Video& video) const;

  /// Placeholders of an item in the prompt.
  int64_t Tokens(const VisionInput& input) const { return input.patches() / (config_.merge * config_.merge); }

  /// Writes the k-th picture's tokens over the k-th `<|image_pad|>` and likewise for videos and `<|video_pad|>`.
  /// `order` receives, for each placeholder from left to right, its index in `items`: the order the engine wants them
  /// in. kInvalidArgument with both counts when they do not match the text.
  Result<std::string> ExpandPrompt(std::string_view text, std::span<const Media> items,
                                   std::vector<size_t>& order) const;

 private:
  std::vector<float> Patches(std::span<const Image> frames, bool video) const;

  ProcessorConfig config_;
};

/// Written by chat templates of all Qwen models, once per item.
inline constexpr std::string_view kImagePad = "<|image_pad|>";
inline constexpr std::string_view kVideoPad = "<|video_pad|>";
inline constexpr std::string_view kVisionStart = "<|vision_start|>";
inline constexpr std::string_view kVisionEnd = "<|vision_end|>";

}  // namespace fluvial::vision
