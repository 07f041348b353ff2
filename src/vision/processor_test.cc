// SPDX-License-Identifier: Apache-2.0
#include "vision/processor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "vision/chat_media.h"
#include "vision/testkit.h"
#include "vision/video.h"

namespace fluvial::vision {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string Golden(const std::string& name) { return std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/" + name; }

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("fluvial_processor_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(ProcessorConfig, FilesOfAllSpellings) {
  const Folder f;
  f.Write("config.json", R"({"model_type": "qwen2_5_vl"})");
  EXPECT_EQ(ReadProcessorConfig(f.path()).status().code(), Code::kUnusableModel);
  f.Write("preprocessor_config.json", R"({"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14})");
  auto c = ReadProcessorConfig(f.path());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->family, Family::kQwen2_5Vl);
  EXPECT_EQ(c->image.min, 3136);
  EXPECT_EQ(c->image.max, 12845056);
  EXPECT_EQ(c->mean[0], 0.48145466);  // the class default
  EXPECT_EQ(c->video.max, 28 * 28 * 768);

  f.Write("config.json", R"({"model_type": "qwen3_5"})");
  fs::remove(f.path() + "/preprocessor_config.json");
  f.Write("processor_config.json",
          R"({"image_processor": {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16,
              "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
              "video_processor": {"size": {"shortest_edge": 4096, "longest_edge": 25165824}, "patch_size": 16, "fps": 3}})");
  c = ReadProcessorConfig(f.path());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->family, Family::kQwen3Vl);
  EXPECT_EQ(c->image.max, 16777216);
  EXPECT_EQ(c->video.max, 25165824);
  EXPECT_EQ(c->fps, 3);
}

TEST(ProcessorConfig, WrongFilesAreNamed) {
  const Folder f;
  f.Write("config.json", R"({"model_type": "qwen3_vl"})");
  for (const char* text : {"[]", "{", R"({"patch_size": "16"})", R"({"patch_size": 0})", R"({"image_mean": [0.5]})",
                           R"({"image_std": [0.5, 0, 0.5]})", R"({"do_resize": false})",
                           R"({"size": {"shortest_edge": -1}})", R"({"min_pixels": 5000, "max_pixels": 4000})"}) {
    f.Write("preprocessor_config.json", text);
    const auto c = ReadProcessorConfig(f.path());
    ASSERT_FALSE(c.ok()) << text;
    EXPECT_EQ(c.status().code(), Code::kUnusableModel) << text;
    EXPECT_TRUE(Contains(c.status().message(), "preprocessor_config.json")) << c.status().message();
  }
}

/// Every number of every patch says where it came from: patch order painted into the picture.
TEST(Processor, PatchOrder) {
  ProcessorConfig config;
  config.patch = 2;
  config.image = {1, 1 << 20};
  config.mean = {0, 0, 0};
  config.std = {1 / 255.0, 1 / 255.0, 1 / 255.0};
  Image image{12, 8, {}};
  for (int64_t i = 0; i < 12 * 8 * 3; ++i) image.rgb.push_back(static_cast<uint8_t>(i % 251));
  const auto media = Processor(config).Process(image);
  ASSERT_TRUE(media.ok());
  EXPECT_EQ(media->input.grid, (std::array<int64_t, 3>{1, 4, 6}));
  const std::vector<float>& pixels = *media->input.pixels;
  ASSERT_EQ(pixels.size(), 24u * 3 * 2 * 2 * 2);
  size_t at = 0;
  for (int64_t block_row = 0; block_row < 2; ++block_row) {
    for (int64_t block_column = 0; block_column < 3; ++block_column) {
      for (int64_t row = 2 * block_row; row < 2 * block_row + 2; ++row) {
        for (int64_t column = 2 * block_column; column < 2 * block_column + 2; ++column) {
          for (int64_t c = 0; c < 3; ++c) {
            for (int64_t frame = 0; frame < 2; ++frame) {
              for (int64_t y = 2 * row; y < 2 * row + 2; ++y) {
                for (int64_t x = 2 * column; x < 2 * column + 2; ++x) {
                  EXPECT_NEAR(pixels[at++], static_cast<float>((3 * (12 * y + x) + c) % 251), 1e-4);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(Processor, HashesTellPicturesAndOptionsApart) {
  ProcessorConfig a, b;
  a.image = b.image = {1, 1 << 20};
  b.mean[2] = 0.4;
  const Image image = testing::Picture(64, 64, 1);
  const auto first = Processor(a).Process(image)->input.hash;
  EXPECT_EQ(first, Processor(a).Process(image)->input.hash);
  EXPECT_NE(first, Processor(b).Process(image)->input.hash);
  Image other = image;
  other.rgb[777] ^= 1;
  const auto second = Processor(a).Process(other)->input.hash;
  EXPECT_NE(first[0], second[0]);
  EXPECT_NE(first[1], second[1]);
}

TEST(Processor, UnusableShapesAreRefusedWithTheRule) {
  const Processor p(ProcessorConfig{});
  const auto thin = p.Process(testing::Picture(201, 1, 1));
  ASSERT_FALSE(thin.ok());
  EXPECT_EQ(thin.status().message(),
            "the picture is 201 x 1: one side may be at most 200 times the other, crop or pad it");
  EXPECT_FALSE(p.Process(Video{}).ok());
  Video one;
  one.frames.push_back(testing::Picture(64, 64, 1));
  EXPECT_TRUE(Contains(p.Process(one).status().message(), "at least 2"));
  Video uneven = one;
  uneven.frames.push_back(testing::Picture(64, 65, 1));
  EXPECT_TRUE(Contains(p.Process(uneven).status().message(), "one size"));
}

TEST(Processor, PlaceholdersAndItemsMustMatch) {
  ProcessorConfig config;
  config.image = {1, 1 << 20};
  const Processor p(config);
  const std::vector<Media> two = {*p.Process(testing::Picture(64, 32, 1)), *p.Process(testing::Picture(32, 32, 2))};
  std::vector<size_t> order;
  const std::string pad(kImagePad);
  EXPECT_EQ(*p.ExpandPrompt("a" + pad + "b" + pad + "c", two, order), "a" + pad + pad + "b" + pad + "c");
  EXPECT_EQ(order, (std::vector<size_t>{0, 1}));
  for (const std::string& text : {std::string("none"), pad, pad + pad + pad, pad + std::string(kVideoPad) + pad}) {
    const auto expanded = p.ExpandPrompt(text, two, order);
    ASSERT_FALSE(expanded.ok()) << text;
    EXPECT_EQ(expanded.status().code(), Code::kInvalidArgument);
  }
}

TEST(ChatMedia, PartsInTheirOrder) {
  const Json messages = Json::parse(R"([
    {"role": "user", "content": "text <|image_pad|>"},
    {"role": "user", "content": [
      {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u1"}},
      {"type": "image", "image": "u2"}, {"type": "video", "video": "v1"}, {"type": "image_url", "image_url": "u3"},
      {"image": "u4"}, {"type": "image", "path": "u5"}]}])");
  const auto media = MediaOf(messages);
  ASSERT_TRUE(media.ok()) << media.status().message();
  std::string sources;
  for (const MediaReference& m : *media) sources += m.source + " ";
  EXPECT_EQ(sources, "u1 u2 v1 u3 u4 u5 ");
  EXPECT_EQ((*media)[2].kind, VisionInput::Kind::kVideo);
}

TEST(ChatMedia, PartsWithoutASourceAreNamed) {
  for (const char* part : {R"({"type": "image"})", R"({"type": "image_url", "image_url": {}})",
                           R"({"type": "video", "video": 5})", R"({"type": "input_audio", "input_audio": {}})"}) {
    const auto media = MediaOf(Json::parse(std::string(R"([{"role": "user", "content": [)") + part + "]}]"));
    ASSERT_FALSE(media.ok()) << part;
    EXPECT_TRUE(Contains(media.status().message(), "part 1 of message 1")) << media.status().message();
  }
}

TEST(ChatMedia, DataUrls) {
  const auto bytes = DecodeDataUrl("data:image/png;base64,aGVsbG8gd29ybGQ=");
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(std::string(bytes->begin(), bytes->end()), "hello world");
  for (const char* url : {"data:image/png,abc", "data:;base64,a", "data:;base64,ab!d", "http://x", ""}) {
    EXPECT_FALSE(DecodeDataUrl(url).ok()) << url;
  }
}

TEST(ChatMedia, SourcesThatAreNotReadSayWhy) {
  const Processor p(ProcessorConfig{});
  const auto message = [&](const std::string& source, bool local = true, bool video = false) {
    MediaPolicy policy;
    policy.local_files = local;
    const auto m = LoadMedia(p, {video ? VisionInput::Kind::kVideo : VisionInput::Kind::kImage, source}, policy);
    EXPECT_FALSE(m.ok());
    return m.ok() ? std::string() : m.status().message();
  };
  EXPECT_TRUE(Contains(message("https://example.com/a.png"), "nothing is fetched"));
  EXPECT_TRUE(Contains(message("/etc/passwd", false), "files of the server are not read"));
  EXPECT_TRUE(Contains(message("file:///etc/passwd", false), "files of the server are not read"));
  EXPECT_TRUE(Contains(message("/etc/passwd"), "not a PNG"));
  EXPECT_TRUE(Contains(message("data:image/png;base64,AAAA"), "not a PNG"));
  EXPECT_TRUE(Contains(message("/nowhere", true, true), "no such file or folder"));
  EXPECT_LT(message("data:image/png;base64," + std::string(100000, 'A')).size(), 300u);  // not the whole URL
}

/// Stands in for ffprobe and ffmpeg: programs of that name that come first in PATH.
class FakePrograms {
 public:
  FakePrograms(const Folder& folder, const std::string& probe, const std::string& frames) {
    Write(folder, "ffprobe", probe);
    Write(folder, "ffmpeg", frames);
    ::setenv("PATH", (folder.path() + ":" + before_).c_str(), 1);
  }
  ~FakePrograms() { ::setenv("PATH", before_.c_str(), 1); }

 private:
  static void Write(const Folder& folder, const std::string& name, const std::string& script) {
    folder.Write(name, "#!/bin/sh\n" + script);
    fs::permissions(folder.path() + "/" + name, fs::perms::owner_all);
  }
  std::string before_ = std::getenv("PATH");
};

constexpr const char* kTenFrames = "printf 'avg_frame_rate=4/1\\nnb_read_packets=10\\n'\n";
/// Frames of 2 x 1 whose first byte is their number.
constexpr const char* kFrames = "for i in 0 1 2 3 4 5 6 7 8 9; do printf 'P6\\n2 1\\n255\\n%sbbbbb' $i; done\n";

TEST(Video, FramesOfAFileAreSampled) {
  const Folder f;
  f.Write("film.mp4", "anything");
  const FakePrograms programs(f, kTenFrames, kFrames);
  const auto video = ReadVideo(f.path() + "/film.mp4", ProcessorConfig{}, {});
  ASSERT_TRUE(video.ok()) << video.status().message();
  EXPECT_EQ(video->total, 10);
  EXPECT_EQ(video->fps, 4);
  EXPECT_EQ(video->indices, (std::vector<int64_t>{0, 2, 4, 7, 9}));
  ASSERT_EQ(video->frames.size(), 5u);
  EXPECT_EQ(video->frames[3].width, 2);
  EXPECT_EQ(video->frames[3].rgb[0], '7');
}

TEST(Video, FilesThatCannotBeReadSayWhy) {
  const Folder f;
  f.Write("film.mp4", "anything");
  const auto message = [&](const std::string& probe, const std::string& frames, VideoOptions options = {}) {
    const FakePrograms programs(f, probe, frames);
    const auto video = ReadVideo(f.path() + "/film.mp4", ProcessorConfig{}, options);
    EXPECT_FALSE(video.ok());
    EXPECT_EQ(video.status().code(), Code::kInvalidArgument);
    return video.ok() ? std::string() : video.status().message();
  };
  EXPECT_TRUE(Contains(message("exit 1\n", kFrames), "film.mp4: ffprobe finds no video"));
  EXPECT_TRUE(Contains(message("echo nonsense\n", kFrames), "ffprobe finds no video"));
  EXPECT_TRUE(Contains(message(kTenFrames, "exit 1\n"), "ffmpeg decodes no frame"));
  EXPECT_TRUE(Contains(message(kTenFrames, "printf 'P6\\n2 1\\n65535\\nabcdef'\n"), "something else than frames"));
  EXPECT_TRUE(Contains(message(kTenFrames, "printf 'P6\\n99999 99999\\n255\\n'\n"), "max_image_pixels"));
  VideoOptions small;
  small.frame.max_image_pixels = 1;
  EXPECT_TRUE(Contains(message(kTenFrames, kFrames, small), "2 x 1"));
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", f.path().c_str(), 1);
  fs::remove(f.path() + "/ffprobe");
  const auto missing = ReadVideo(f.path() + "/film.mp4", ProcessorConfig{}, {});
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(missing.ok());
  EXPECT_TRUE(Contains(missing.status().message(), "give a folder of frames")) << missing.status().message();
}

TEST(Video, FramesOfAFolderAreSampled) {
  const Folder f;
  for (int i = 0; i < 10; ++i) {
    fs::copy(Golden("images/files/rgb.png"), f.path() + "/frame" + std::to_string(i) + ".png");
  }
  f.Write("notes.txt", "not a frame");
  VideoOptions options;
  options.fps = 4;
  const auto video = ReadVideo(f.path(), ProcessorConfig{}, options);
  ASSERT_TRUE(video.ok()) << video.status().message();
  EXPECT_EQ(video->total, 10);
  EXPECT_EQ(video->indices, (std::vector<int64_t>{0, 2, 4, 7, 9}));
  EXPECT_EQ(video->frames.size(), 5u);
}

}  // namespace
}  // namespace fluvial::vision
