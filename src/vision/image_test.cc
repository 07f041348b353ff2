// SPDX-License-Identifier: Apache-2.0
// What a hostile or broken file gets: one sentence, no allocation for its claims, no crash.
#include "vision/image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "vision/decoders.h"
#include "vision/testkit.h"

namespace fluvial::vision {
namespace {

namespace fs = std::filesystem;

std::string Folder() { return std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/images/files"; }

std::vector<uint8_t> Bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Image, UnknownFormatsAreRefusedWithTheList) {
  for (const std::string text : {"", "x", "<svg/>", "%PDF-1.4 ..."}) {
    const std::vector<uint8_t> file(text.begin(), text.end());
    const auto image = DecodeImage(file, {}, "thing");
    ASSERT_FALSE(image.ok());
    EXPECT_EQ(image.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(image.status().message(), "thing: not a PNG, JPEG, WebP, BMP or GIF picture: convert it to one");
  }
  EXPECT_TRUE(Contains(ReadImage("/nowhere/x.png", {}).status().message(), "/nowhere/x.png"));
  EXPECT_FALSE(ReadImage(Folder(), {}).ok());  // a folder
}

/// Every prefix of every file is refused or decoded to the right size; none crashes.
TEST(Image, TruncatedFilesAreRefused) {
  for (const auto& entry : fs::directory_iterator(Folder())) {
    const std::vector<uint8_t> file = Bytes(entry.path());
    const auto whole = DecodeImage(file, {}, "x");
    ASSERT_TRUE(whole.ok()) << entry.path();
    for (size_t n = 0; n < file.size(); n += 1 + n / 12) {
      const auto image = DecodeImage({file.data(), n}, {}, "x");
      if (image.ok()) {
        EXPECT_EQ(image->rgb.size(), whole->rgb.size()) << entry.path() << " " << n;
      }
    }
    // Without its second half no picture is whole. Trailers may be missing; the first frame of an animation is enough.
    if (entry.path().stem() != "animated") {
      EXPECT_FALSE(DecodeImage({file.data(), file.size() / 2}, {}, "x").ok()) << entry.path();
    }
  }
}

TEST(Image, DamagedFilesNeverCrash) {
  std::mt19937 random(7);
  for (const auto& entry : fs::directory_iterator(Folder())) {
    const std::vector<uint8_t> file = Bytes(entry.path());
    for (int i = 0; i < 60; ++i) {
      std::vector<uint8_t> damaged = file;
      for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
      DecodeOptions options;
      options.max_image_pixels = 100'000;
      const auto image = DecodeImage(damaged, options, "x");
      if (!image.ok()) {
        EXPECT_EQ(image.status().code(), Code::kInvalidArgument);
        continue;
      }
      EXPECT_EQ(static_cast<int64_t>(image->rgb.size()), 3 * image->width * image->height);
    }
  }
}

TEST(Image, MorePixelsThanAllowedAreRefusedWithBothNumbers) {
  for (const auto& entry : fs::directory_iterator(Folder())) {
    DecodeOptions options;
    options.max_image_pixels = 29 * 23 - 1;
    const auto image = DecodeImage(Bytes(entry.path()), options, "x");
    ASSERT_FALSE(image.ok()) << entry.path();
    EXPECT_EQ(image.status().message(),
              "x: the picture is 29 x 23, more than 666 pixels (max_image_pixels): send a smaller one or raise "
              "--max-image-pixels");
    ++options.max_image_pixels;
    EXPECT_TRUE(DecodeImage(Bytes(entry.path()), options, "x").ok());
  }
}

/// Claims of a size that no memory holds: refused from the header alone, before anything is allocated.
TEST(Image, BombsAreRefused) {
  std::vector<uint8_t> png = Bytes(Folder() + "/rgb.png");
  const uint8_t huge[] = {0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff};
  std::memcpy(png.data() + 16, huge, 8);
  // The header's checksum is wrong now, which is refused as well; a right one needs the pixels' bound.
  EXPECT_FALSE(DecodeImage(png, {}, "x").ok());
  std::vector<uint8_t> gif = Bytes(Folder() + "/rgb.gif");
  gif[6] = gif[7] = gif[8] = gif[9] = 0xff;
  const auto refused = DecodeImage(gif, {}, "x");
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(Contains(refused.status().message(), "65535 x 65535")) << refused.status().message();
  std::vector<uint8_t> bmp = Bytes(Folder() + "/rgb.bmp");
  bmp[18] = bmp[19] = bmp[20] = bmp[22] = bmp[23] = bmp[24] = 0xff;
  EXPECT_TRUE(Contains(DecodeImage(bmp, {}, "x").status().message(), "max_image_pixels"));
}

TEST(Image, OrientationOfDamagedExifIsUpright) {
  std::vector<uint8_t> exif = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0};
  EXPECT_EQ(ExifOrientation(exif), 6);
  exif[19] = 9;
  EXPECT_EQ(ExifOrientation(exif), 1);
  exif[19] = 6;
  exif[9] = 0xff;  // more entries than there are bytes
  EXPECT_EQ(ExifOrientation(exif), 6);
  exif[4] = 0xff;  // a directory outside
  EXPECT_EQ(ExifOrientation(exif), 1);
  for (size_t n = 0; n < exif.size(); ++n) EXPECT_EQ(ExifOrientation({exif.data(), n}), 1) << n;
}

TEST(Image, UprightTurnsBackWhatTheCameraTurned) {
  const Image image = testing::Picture(5, 3, 1);
  // Applied twice, a mirror or half turn gives the picture back; a quarter turn is undone by the other one.
  for (const int o : {2, 3, 4, 5, 7}) EXPECT_EQ(Upright(Upright(image, o), o).rgb, image.rgb) << o;
  EXPECT_EQ(Upright(Upright(image, 6), 8).rgb, image.rgb);
  EXPECT_EQ(Upright(image, 6).width, 3);
}

}  // namespace
}  // namespace fluvial::vision
