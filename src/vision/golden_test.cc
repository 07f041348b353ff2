// SPDX-License-Identifier: Apache-2.0
// Against Pillow and transformers, bit for bit: tests/golden/images, made by tools/golden/make_images.py. Each line of
// expected.txt is one fact.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "vision/image.h"
#include "vision/processor.h"
#include "vision/resize.h"
#include "vision/testkit.h"

namespace fluvial::vision {
namespace {

std::string Folder() { return std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/images/"; }

std::string Hash(const std::vector<uint8_t>& bytes) {
  uint64_t h = 0xcbf29ce484222325;
  for (const uint8_t b : bytes) h = (h ^ b) * 0x100000001b3;
  char text[32];
  std::snprintf(text, sizeof(text), "%016lx", static_cast<unsigned long>(h));
  return text;
}

/// Calls `check` with the rest of every line that begins with `kind`; there must be some.
void ForEach(const std::string& kind, const std::function<void(std::istringstream&)>& check) {
  std::ifstream in(Folder() + "expected.txt");
  ASSERT_TRUE(in.good());
  int seen = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string first;
    fields >> first;
    if (first != kind) continue;
    SCOPED_TRACE(line.substr(0, 120));
    check(fields);
    ++seen;
  }
  EXPECT_GE(seen, 4) << kind;
}

void CheckDecode(const std::string& kind, bool ignore_exif) {
  ForEach(kind, [&](std::istringstream& line) {
    std::string file, hash;
    int64_t width = 0, height = 0;
    line >> file >> width >> height >> hash;
    DecodeOptions options;
    options.ignore_exif = ignore_exif;
    const Result<Image> image = ReadImage(Folder() + "files/" + file, options);
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_EQ(image->width, width);
    EXPECT_EQ(image->height, height);
    EXPECT_EQ(Hash(image->rgb), hash);
  });
}

TEST(VisionGolden, DecodedBytesArePillows) { CheckDecode("decode", /*ignore_exif=*/true); }
TEST(VisionGolden, UprightBytesArePillows) { CheckDecode("upright", /*ignore_exif=*/false); }

void CheckResize(const std::string& kind, Kernel kernel) {
  ForEach(kind, [&](std::istringstream& line) {
    int64_t w = 0, h = 0, seed = 0, w2 = 0, h2 = 0;
    std::string hash;
    line >> w >> h >> seed >> w2 >> h2 >> hash;
    EXPECT_EQ(Hash(ResizeBicubic(testing::Picture(w, h, seed), {h2, w2}, kernel).rgb), hash);
  });
}

TEST(VisionGolden, ResizedBytesArePillows) { CheckResize("resize", Kernel::kPillow); }
TEST(VisionGolden, ResizedBytesAreTorchs) { CheckResize("resize_torch", Kernel::kTorch); }

void ExpectSize(const Result<Size>& got, int64_t height, int64_t width) {
  if (height == 0) {
    EXPECT_FALSE(got.ok());
    return;
  }
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->height, height);
  EXPECT_EQ(got->width, width);
}

TEST(VisionGolden, SizesOfImagesAreTransformers) {
  ForEach("image_size", [](std::istringstream& line) {
    int64_t h = 0, w = 0, factor = 0, h2 = 0, w2 = 0;
    PixelBounds bounds;
    line >> h >> w >> factor >> bounds.min >> bounds.max >> h2 >> w2;
    ExpectSize(ImageSize(h, w, factor, bounds), h2, w2);
  });
}

TEST(VisionGolden, SizesOfVideosAreTransformers) {
  ForEach("video_size", [](std::istringstream& line) {
    int64_t n = 0, h = 0, w = 0, factor = 0, h2 = 0, w2 = 0;
    PixelBounds bounds;
    line >> n >> h >> w >> factor >> bounds.min >> bounds.max >> h2 >> w2;
    ExpectSize(VideoSize(n, h, w, 2, factor, bounds), h2, w2);
  });
}

TEST(VisionGolden, SampledFramesAreTransformers) {
  for (const auto& [kind, family] :
       {std::pair("sample3", Family::kQwen3Vl), std::pair("sample2", Family::kQwen2_5Vl)}) {
    ForEach(kind, [&](std::istringstream& line) {
      ProcessorConfig config;
      config.family = family;
      int64_t total = 0;
      double fps = 0;
      line >> total >> fps;
      std::vector<int64_t> want;
      for (int64_t i = 0; line >> i;) want.push_back(i);
      EXPECT_EQ(SampleFrames(config, total, fps), want);
    });
  }
}

TEST(VisionGolden, TextOfVideosIsTransformers) {
  ForEach("expand3", [](std::istringstream& line) {
    Video video;
    int64_t rows = 0, columns = 0;
    line >> video.fps >> rows >> columns;
    for (std::string word; line >> word && word != "|";) video.indices.push_back(std::stoll(word));
    std::string want;
    std::getline(line, want);
    want.erase(0, 1);
    for (size_t at = 0; (at = want.find("<v>", at)) != std::string::npos;) want.replace(at, 3, kVideoPad);

    ProcessorConfig config;
    config.video = {1, 1 << 30};
    for (size_t i = 0; i < video.indices.size(); ++i) {
      video.frames.push_back(testing::Picture(columns * config.patch, rows * config.patch, static_cast<int64_t>(i)));
    }
    const Processor processor(config);
    const Result<Media> media = processor.Process(video);
    ASSERT_TRUE(media.ok()) << media.status().message();
    std::vector<size_t> order;
    const auto text = processor.ExpandPrompt("a<|video_pad|>b", {&*media, 1}, order);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, "a" + want + "b");
  });
}

}  // namespace
}  // namespace fluvial::vision
