// SPDX-License-Identifier: Apache-2.0
#include "weights/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "weights/weight_reader.h"

namespace fluvial::weights {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("fluvial_checkpoint_" + std::to_string(::getpid()) + "_" +
                                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }

  /// A file with fp32 tensors of two elements each: value, value + 1. `pad` blanks shift the data's alignment.
  void WriteTensors(const std::string& name, const std::vector<std::pair<std::string, float>>& tensors, int pad = 0) {
    std::string header = "{", data;
    for (const auto& [tensor, value] : tensors) {
      header += (header.size() > 1 ? "," : "") + ("\"" + tensor) +
                R"(":{"dtype":"F32","shape":[1,2],"data_offsets":[)" + std::to_string(data.size()) + "," +
                std::to_string(data.size() + 8) + "]}";
      const float pair[2] = {value, value + 1};
      data.append(reinterpret_cast<const char*>(pair), 8);
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8 + static_cast<size_t>(pad), ' ');
    const uint64_t n = header.size();
    std::string file(reinterpret_cast<const char*>(&n), 8);
    Write(name, file + header + data);
  }

  std::string Error() {
    const auto c = Checkpoint::Open(dir_.string());
    return c.ok() ? "(opened)" : c.status().message();
  }

  fs::path dir_;
};

TEST_F(CheckpointTest, SingleFile) {
  WriteTensors("model.safetensors", {{"a", 1}, {"b", 5}});
  const auto c = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(c.ok()) << c.status().message();
  WeightReader reader(*c);
  const TensorView a = reader.Take("a", {1, 2});
  ASSERT_TRUE(a.defined());
  EXPECT_EQ(a.as<float>()[1], 2.0f);
  EXPECT_TRUE(reader.TakeAny({"x", "b"}, {-1, 2}).defined());
  EXPECT_TRUE(reader.Finish().ok());
}

TEST_F(CheckpointTest, ShardsAndAlignment) {
  WriteTensors("s1.safetensors", {{"a", 1}});
  WriteTensors("s2.safetensors", {{"b", 5}}, /*pad=*/1);
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  const auto c = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->shards(), 2u);
  WeightReader reader(*c);
  const TensorView b = reader.Take("b", {1, 2});
  ASSERT_TRUE(b.defined());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data) % 4, 0u);
  EXPECT_EQ(b.as<float>()[0], 5.0f);
  EXPECT_EQ(reader.TakeAlignedCopies().size(), 1u);
}

TEST_F(CheckpointTest, OneErrorListsEverything) {
  WriteTensors("model.safetensors", {{"a", 1}, {"b", 2}, {"extra", 3}, {"mtp.x", 3}, {"l.rotary_emb.inv_freq", 3}});
  const auto c = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(c.ok()) << c.status().message();
  WeightReader reader(*c);
  EXPECT_FALSE(reader.Take("a", {2, 1}).defined());
  EXPECT_TRUE(reader.Take("b", {1, 2}).defined());
  EXPECT_FALSE(reader.Take("absent", {4}).defined());
  reader.IgnorePrefix("mtp.");
  reader.IgnoreSuffix(".rotary_emb.inv_freq");
  const Status s = reader.Finish();
  ASSERT_EQ(s.code(), Code::kUnusableModel);
  EXPECT_NE(s.message().find("1 missing: absent [4]"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("a is fp32[1,2] instead of floating [2,1]"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("1 not known to this architecture: extra"), std::string::npos) << s.message();
  EXPECT_EQ(s.message().find("mtp.x"), std::string::npos);
}

TEST_F(CheckpointTest, NamesAlikeAreOneEntryThatStillNamesThemAll) {
  WriteTensors("model.safetensors", {{"b", 2}, {"odd.{}.1.{}", 1}, {"odd.{}.2.{}", 1}, {"odd.{}.3.{}", 1}});
  const auto c = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(c.ok()) << c.status().message();
  WeightReader reader(*c);
  EXPECT_TRUE(reader.Take("b", {1, 2}).defined());
  for (const char* layer : {"0", "1", "2", "3", "4", "7"}) {
    reader.Take("layers." + std::string(layer) + ".x", {2});
    for (const char* expert : {"5", "6"}) reader.Take("layers." + std::string(layer) + ".e." + expert + ".w", {3});
  }
  // Another shape is another entry; a set with holes and too few to gain are listed one by one.
  reader.Take("layers.5.x", {9});
  for (const char* hole : {"m.0.0", "m.0.1", "m.1.1"}) reader.Take(hole, {1});
  const std::string message = reader.Finish().message();
  for (const char* part : {"22 missing: layers.{0-4,7}.x [2] (6), layers.{0-4,7}.e.{5-6}.w [3] (12), layers.5.x [9], "
                           "m.0.0 [1], m.0.1 [1], m.1.1 [1]",
                           "3 not known to this architecture: odd"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_F(CheckpointTest, RefusesIncompleteDirectories) {
  EXPECT_NE(Error().find("neither model.safetensors nor"), std::string::npos) << Error();
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1.safetensors"}})");
  EXPECT_NE(Error().find("shards that are not there: s1.safetensors"), std::string::npos) << Error();
  WriteTensors("s1.safetensors", {{"b", 5}});
  EXPECT_NE(Error().find("not in their shard: a (s1.safetensors)"), std::string::npos) << Error();
  EXPECT_FALSE(Checkpoint::Open((dir_ / "absent").string()).ok());
}

TEST_F(CheckpointTest, RefusesBadIndexes) {
  WriteTensors("s1.safetensors", {{"a", 5}});
  WriteTensors("s2.safetensors", {{"a", 5}, {"b", 1}});
  for (const char* text :
       {"", "{", "[]", "{}", R"({"weight_map":3})", R"({"weight_map":{"a":3}})", R"({"weight_map":{}})",
        R"({"weight_map":{"a":"../s1.safetensors"}})", R"({"weight_map":{"a":""}})",
        R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})"}) {
    Write("model.safetensors.index.json", text);
    EXPECT_NE(Error(), "(opened)") << text;
  }
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  EXPECT_NE(Error().find("tensor 'a' is in"), std::string::npos) << Error();
}

TEST_F(CheckpointTest, DroppedPagesAreReadAgain) {
  std::string data(size_t{1} << 20, 'x');
  const std::string header = R"({"a":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}})";
  const uint64_t n = header.size();
  Write("model.safetensors", std::string(reinterpret_cast<const char*>(&n), 8) + header + data);
  const auto c = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(c.ok()) << c.status().message();
  const uint8_t* p = c->Data(c->tensors()[0]);
  EXPECT_EQ(p[500000], 'x');
  MappedFile::DropPages(p, data.size());
  EXPECT_EQ(p[500000], 'x');
}

}  // namespace
}  // namespace fluvial::weights
