// SPDX-License-Identifier: Apache-2.0
// Vision-language models against transformers, from pictures to logits: files made by tools/golden/make_vision.py.
#include <gtest/gtest.h>

#include "models/model_testkit.h"
#include "vision/processor.h"
#include "vision/testkit.h"

namespace fluvial::models {
namespace {

using testing::AlteredCheckpoint;
using testing::Bench;
using testing::Golden;
using testing::GoldenDirectory;
using testing::MaxDifference;
using testing::Row;

constexpr double kLogitGate = 3e-4;
constexpr double kFeatureGate = 1e-4;
constexpr const char* kCases[] = {"one", "three", "sizes", "grid", "video"};
constexpr size_t kItemNumbers = 6;

/// The pictures of a case, through this project's own processor.
std::vector<VisionInput> Items(const Golden& golden, const std::string& name, const vision::Processor& processor) {
  const auto numbers = golden.Ints(name + ".items");
  std::vector<VisionInput> out;
  for (size_t i = 0; i + kItemNumbers <= numbers.size(); i += kItemNumbers) {
    const int32_t* n = numbers.data() + i;
    if (n[0] == 0) {
      auto media = processor.Process(vision::testing::Picture(n[1], n[2], n[3]));
      EXPECT_TRUE(media.ok()) << media.status().message();
      out.push_back(media->input);
      continue;
    }
    vision::Video video;
    for (int32_t f = 0; f < n[4]; ++f) video.frames.push_back(vision::testing::Picture(n[1], n[2], n[3] + f));
    video.fps = n[5] / 100.0;
    auto media = processor.Process(video);
    EXPECT_TRUE(media.ok()) << media.status().message();
    out.push_back(media->input);
  }
  return out;
}

class VisionParity : public ::testing::TestWithParam<const char*> {
 protected:
  VisionParity()
      : directory_(GoldenDirectory(std::string("vision/") + GetParam())), golden_(directory_ + "/golden.safetensors") {
    auto processor = vision::Processor::Load(directory_);
    EXPECT_TRUE(processor.ok()) << processor.status().message();
    if (processor.ok()) processor_.emplace(*processor);
  }

  /// Largest difference of the stored rows from `logits` of all rows.
  double Difference(const std::string& name, const std::vector<float>& logits, int64_t vocab) const {
    const auto rows = golden_.Ints(name + ".rows");
    const auto want = golden_.Floats(name + ".logits");
    double worst = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (static_cast<int64_t>(logits.size()) < (rows[i] + 1) * vocab) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, MaxDifference(Row(logits, rows[i], vocab), Row(want, static_cast<int64_t>(i), vocab)));
    }
    return worst;
  }

  std::string directory_;
  Golden golden_;
  std::optional<vision::Processor> processor_;
};

TEST_P(VisionParity, PixelsAndGrids) {
  for (const std::string name : kCases) {
    SCOPED_TRACE(name);
    const auto items = Items(golden_, name, *processor_);
    const auto grids = golden_.Ints(name + ".grids");
    const auto sums = golden_.Floats(name + ".sums");
    ASSERT_EQ(grids.size(), 3 * items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      for (size_t k = 0; k < 3; ++k) EXPECT_EQ(items[i].grid[k], grids[3 * i + k]) << i;
      double sum = 0;
      for (const float v : *items[i].pixels) sum += std::fabs(static_cast<double>(v));
      // One level of one pixel moves the sum by more than 2/255; the stored sum has 24 bits.
      EXPECT_NEAR(sum, sums[i], std::max(1e-3, 1e-6 * sum)) << i;
    }
  }
}

TEST_P(VisionParity, FeaturesOfEveryLevel) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  for (const std::string name : kCases) {
    SCOPED_TRACE(name);
    const Status status = bench.SetVision(0, golden_.Ints(name + ".ids"), Items(golden_, name, *processor_));
    ASSERT_TRUE(status.ok()) << status.message();
    const double worst = MaxDifference(bench.Features(0), golden_.Floats(name + ".features"));
    EXPECT_LE(worst, kFeatureGate);
    RecordProperty(name, std::to_string(worst));
    bench.Reset(0);
  }
}

TEST_P(VisionParity, Positions) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  for (const std::string name : kCases) {
    const auto plan =
        PlanVision(*bench.model().vision(), golden_.Ints(name + ".ids"), Items(golden_, name, *processor_));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const auto want = golden_.Ints(name + ".positions");
    EXPECT_EQ(std::vector<int32_t>(plan->positions.begin(), plan->positions.end()), want) << name;
    EXPECT_EQ(plan->delta, golden_.Ints(name + ".delta")[0]) << name;
  }
}

TEST_P(VisionParity, LogitsOfOneShotPrompts) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  for (const std::string name : kCases) {
    SCOPED_TRACE(name);
    const auto ids = golden_.Ints(name + ".ids");
    ASSERT_TRUE(bench.SetVision(0, ids, Items(golden_, name, *processor_)).ok());
    const double worst = Difference(name, bench.Prompt(0, ids), bench.vocab());
    EXPECT_LE(worst, kLogitGate);
    RecordProperty(name, std::to_string(worst));
    bench.Reset(0);
  }
}

TEST_P(VisionParity, PromptsSplitInsideAndAroundPictures) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  for (const std::string name : kCases) {
    SCOPED_TRACE(name);
    const auto ids = golden_.Ints(name + ".ids");
    const auto items = Items(golden_, name, *processor_);
    const int64_t n = static_cast<int64_t>(ids.size());
    // Inside the first picture, at its borders, and one token at a time to the end.
    const VisionPlan plan = *PlanVision(*bench.model().vision(), ids, items);
    const auto& first = plan.runs.front();
    const int64_t inside = first.begin + first.count / 2;
    std::vector<int64_t> end;
    for (int64_t i = n - 6; i < n; ++i) end.push_back(i);
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{std::max<int64_t>(inside, 1)},
                                             {first.begin, first.begin + first.count},
                                             {n / 2, n / 2 + 1},
                                             end}) {
      ASSERT_TRUE(bench.SetVision(0, ids, items).ok());
      EXPECT_LE(Difference(name, bench.Prompt(0, ids, cuts), bench.vocab()), kLogitGate) << cuts[0];
      bench.Reset(0);
    }
  }
}

TEST_P(VisionParity, PromptsWithAndWithoutPicturesInOneBatch) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  std::vector<Bench::Chunk> chunks;
  for (const std::string name : {"one", "three", "video"}) {
    const int sequence = static_cast<int>(chunks.size());
    chunks.push_back({sequence, golden_.Ints(name + ".ids")});
    ASSERT_TRUE(bench.SetVision(sequence, chunks.back().ids, Items(golden_, name, *processor_)).ok());
  }
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 20; ++i) text.push_back(5 * i + 3);
  chunks.push_back({3, text});
  const auto together = bench.Run(chunks);
  ASSERT_EQ(together.size(), chunks.size());
  EXPECT_LE(Difference("one", together[0], bench.vocab()), kLogitGate);
  EXPECT_LE(Difference("three", together[1], bench.vocab()), kLogitGate);
  EXPECT_LE(Difference("video", together[2], bench.vocab()), kLogitGate);
  bench.Reset(3);
  EXPECT_LE(MaxDifference(bench.Run({{3, text}})[0], together[3]), kLogitGate);
}

/// Every group of the tower's weights reaches the logits by far more than the gate: a gate that passes shows something.
TEST_P(VisionParity, WeightsOfEveryGroupMatter) {
  for (const char* part : {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.1.attn.proj.weight",
                           "blocks.1.norm2.weight", "blocks.0.mlp", "merger."}) {
    int changed = 0;
    const AlteredCheckpoint zeroed(directory_, testing::Zeroed(std::string("visual.") + part, &changed));
    ASSERT_GT(changed, 0) << part;
    Bench bench(zeroed.path());
    ASSERT_TRUE(bench.ok());
    const auto ids = golden_.Ints("one.ids");
    ASSERT_TRUE(bench.SetVision(0, ids, Items(golden_, "one", *processor_)).ok());
    EXPECT_GT(Difference("one", bench.Prompt(0, ids), bench.vocab()), 0.01) << part;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, VisionParity,
                         ::testing::Values("qwen3_5", "qwen3_vl", "qwen2_5_vl", "qwen3_vl_moe", "qwen3_5_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fluvial::models
