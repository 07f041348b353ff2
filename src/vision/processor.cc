// SPDX-License-Identifier: Apache-2.0
#include "vision/processor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/hash.h"

namespace fluvial::vision {
namespace {

constexpr double kUnknownFps = 24;

/// Values of the 256 levels: level/255 and the normalisation are each rounded to fp32, as numpy does it.
std::array<std::array<float, 256>, 3> Levels(const std::array<double, 3>& mean, const std::array<double, 3>& std) {
  std::array<std::array<float, 256>, 3> out;
  for (size_t c = 0; c < 3; ++c) {
    for (size_t v = 0; v < 256; ++v) {
      const float unit = static_cast<float>(static_cast<double>(v) * (1 / 255.0));
      out[c][v] = (unit - static_cast<float>(mean[c])) / static_cast<float>(std[c]);
    }
  }
  return out;
}

void Append(std::string& out, std::string_view piece, int64_t times) {
  for (int64_t i = 0; i < times; ++i) out += piece;
}

}  // namespace

std::array<uint64_t, 2> ContentHash(const VisionInput& input) {
  Hasher a, b;
  b.Add(uint64_t{1});
  for (const int64_t g : input.grid) {
    a.Add(static_cast<uint64_t>(g));
    b.Add(static_cast<uint64_t>(g));
  }
  a.Add(static_cast<uint64_t>(input.kind));
  b.Add(std::bit_cast<uint64_t>(input.seconds_per_group));
  if (input.pixels != nullptr) {
    const std::vector<float>& p = *input.pixels;
    // Both lanes see every value; the second in another arrangement.
    for (size_t i = 0; i + 1 < p.size(); i += 2) {
      const uint64_t x = std::bit_cast<uint32_t>(p[i]), y = std::bit_cast<uint32_t>(p[i + 1]);
      a.Add(x | y << 32);
      b.Add(y | x << 32);
    }
    if (p.size() % 2 != 0) {
      a.Add(p.back());
      b.Add(p.back());
    }
  }
  return {a.Get(), b.Get()};
}

std::vector<int64_t> SampleFrames(const ProcessorConfig& config, int64_t total, double fps) {
  if (total < 1) return {};
  std::vector<int64_t> out;
  const double rate = fps > 0 ? fps : kUnknownFps;
  if (config.family == Family::kQwen3Vl) {
    int64_t n = static_cast<int64_t>(static_cast<double>(total) / rate * config.fps);
    n = std::min({std::max(n, config.min_frames), config.max_frames, total});
    // numpy.linspace(0, total - 1, n), rounded half to even.
    const double last = static_cast<double>(total - 1);
    const double step = n > 1 ? last / static_cast<double>(n - 1) : 0;
    for (int64_t i = 0; i < n; ++i) {
      const double at = i == n - 1 && n > 1 ? last : static_cast<double>(i) * step;
      out.push_back(static_cast<int64_t>(std::nearbyint(at)));
    }
    return out;
  }
  const double t = static_cast<double>(config.temporal_patch);
  const double most = std::floor(static_cast<double>(std::min(config.max_frames, total)) / t) * t;
  double n = static_cast<double>(total) / rate * config.fps;
  n = std::min({std::max(n, static_cast<double>(config.min_frames)), most, static_cast<double>(total)});
  n = std::floor(n / t) * t;
  if (n < 1) return {0};
  // torch.arange(0, total, total / n).int()
  const double step = static_cast<double>(total) / n;
  for (int64_t i = 0; static_cast<double>(i) * step < static_cast<double>(total); ++i) {
    out.push_back(static_cast<int64_t>(static_cast<float>(static_cast<double>(i) * step)));
  }
  return out;
}

Result<Processor> Processor::Load(const std::string& directory) {
  FLUVIAL_ASSIGN_OR_RETURN(const ProcessorConfig config, ReadProcessorConfig(directory));
  return Processor(config);
}

std::vector<float> Processor::Patches(std::span<const Image> frames, bool video) const {
  const int64_t p = config_.patch, m = config_.merge, t = config_.temporal_patch;
  const int64_t rows = frames[0].height / p, columns = frames[0].width / p;
  const int64_t count = static_cast<int64_t>(frames.size());
  const int64_t groups = (count + t - 1) / t;
  const auto levels = video ? Levels(config_.video_mean, config_.video_std) : Levels(config_.mean, config_.std);
  std::vector<float> out(static_cast<size_t>(groups * rows * columns * 3 * t * p * p));
  float* to = out.data();
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t block = 0; block < rows * columns; ++block) {
      const int64_t inside = block % (m * m), outside = block / (m * m);
      const int64_t row = outside / (columns / m) * m + inside / m, column = outside % (columns / m) * m + inside % m;
      for (size_t c = 0; c < 3; ++c) {
        for (int64_t f = 0; f < t; ++f) {
          // The last frame is repeated where a group is not full; a picture is such a group.
          const Image& image = frames[static_cast<size_t>(std::min(g * t + f, count - 1))];
          for (int64_t y = 0; y < p; ++y) {
            const uint8_t* from = image.rgb.data() + 3 * ((row * p + y) * image.width + column * p) + c;
            for (int64_t x = 0; x < p; ++x) *to++ = levels[c][from[3 * x]];
          }
        }
      }
    }
  }
  return out;
}

Result<Media> Processor::Process(const Image& image) const {
  FLUVIAL_ASSIGN_OR_RETURN(const Size size, ImageSize(image.height, image.width, config_.factor(), config_.image));
  const Image resized = ResizeBicubic(image, size);
  Media out;
  out.input.kind = VisionInput::Kind::kImage;
  out.input.grid = {1, size.height / config_.patch, size.width / config_.patch};
  out.input.pixels = std::make_shared<const std::vector<float>>(Patches({&resized, 1}, /*video=*/false));
  out.input.hash = ContentHash(out.input);
  return out;
}

Result<Media> Processor::Process(const Video& video) const {
  const int64_t count = static_cast<int64_t>(video.frames.size()), t = config_.temporal_patch;
  if (count == 0) return Status::InvalidArgument("the video has no frames");
  if (!video.indices.empty() && video.indices.size() != video.frames.size()) {
    return Status::InvalidArgument("the video has " + std::to_string(count) + " frames and " +
                                   std::to_string(video.indices.size()) + " frame numbers");
  }
  const int64_t height = video.frames[0].height, width = video.frames[0].width;
  for (const Image& f : video.frames) {
    if (f.height != height || f.width != width) {
      return Status::InvalidArgument("the frames of a video must have one size: found " + std::to_string(width) +
                                     " x " + std::to_string(height) + " and " + std::to_string(f.width) + " x " +
                                     std::to_string(f.height));
    }
  }
  const bool by_frame = config_.family == Family::kQwen2_5Vl;
  FLUVIAL_ASSIGN_OR_RETURN(const Size size, by_frame
                                                ? ImageSize(height, width, config_.factor(), config_.video)
                                                : VideoSize(count, height, width, t, config_.factor(), config_.video));
  std::vector<Image> frames;
  for (const Image& f : video.frames) frames.push_back(ResizeBicubic(f, size, Kernel::kTorch));
  const int64_t groups = (count + t - 1) / t;
  Media out;
  out.input.kind = VisionInput::Kind::kVideo;
  out.input.grid = {groups, size.height / config_.patch, size.width / config_.patch};
  out.input.pixels = std::make_shared<const std::vector<float>>(Patches(frames, /*video=*/true));
  const double fps = video.fps > 0 ? video.fps : kUnknownFps;
  const auto seconds = [&](int64_t i) {
    i = std::min(i, count - 1);
    return static_cast<double>(video.indices.empty() ? i : video.indices[static_cast<size_t>(i)]) / fps;
  };
  for (int64_t g = 0; g < groups; ++g) out.seconds.push_back((seconds(g * t) + seconds(g * t + t - 1)) / 2);
  // transformers: temporal_patch / sampled_fps, with sampled_fps = frames given / frames of the source * fps.
  const double total = static_cast<double>(video.total > 0 ? video.total : count);
  out.input.seconds_per_group = static_cast<double>(t) / (static_cast<double>(count) / total * fps);
  out.input.hash = ContentHash(out.input);
  return out;
}

Result<std::string> Processor::ExpandPrompt(std::string_view text, std::span<const Media> items,
                                            std::vector<size_t>& order) const {
  std::array<std::vector<size_t>, 2> by_kind;  // images, videos
  for (size_t i = 0; i < items.size(); ++i) {
    by_kind[items[i].input.kind == VisionInput::Kind::kVideo ? 1 : 0].push_back(i);
  }
  std::array<size_t, 2> used{};
  order.clear();
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t image = text.find(kImagePad, at), video = text.find(kVideoPad, at);
    const size_t next = std::min(image, video);
    out += text.substr(at, next == std::string_view::npos ? next : next - at);
    if (next == std::string_view::npos) break;
    const size_t kind = video < image ? 1 : 0;
    const std::string_view pad = kind == 1 ? kVideoPad : kImagePad;
    at = next + pad.size();
    const size_t k = used[kind]++;
    if (k >= by_kind[kind].size()) continue;  // counted and reported below
    const Media& item = items[by_kind[kind][k]];
    order.push_back(by_kind[kind][k]);
    if (kind == 0 || config_.family == Family::kQwen2_5Vl) {
      Append(out, pad, Tokens(item.input));
      continue;
    }
    for (const double seconds : item.seconds) {
      char time[64];
      std::snprintf(time, sizeof(time), "<%.1f seconds>", seconds);
      out += time;
      out += kVisionStart;
      Append(out, pad, Tokens(item.input) / item.input.grid[0]);
      out += kVisionEnd;
    }
  }
  for (size_t kind = 0; kind < 2; ++kind) {
    if (used[kind] == by_kind[kind].size()) continue;
    return Status::InvalidArgument("the prompt has " + std::to_string(used[kind]) + " places for " +
                                   (kind == 1 ? "videos" : "images") + " (" +
                                   std::string(kind == 1 ? kVideoPad : kImagePad) + "), but " +
                                   std::to_string(by_kind[kind].size()) + " were given");
  }
  return out;
}

}  // namespace fluvial::vision
