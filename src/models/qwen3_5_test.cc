// SPDX-License-Identifier: Apache-2.0
// Qwen3.5 against transformers: files made by tools/golden/make_qwen3_5.py.
#include <gtest/gtest.h>

#include "models/model_testkit.h"

namespace fluvial::models {
namespace {

using testing::Argmax;
using testing::Bench;
using testing::Golden;
using testing::GoldenDirectory;
using testing::MaxDifference;
using testing::Row;
using testing::ZeroedCheckpoint;

// fp32 gate: another summation order moves logits by up to 6e-5 at this size, a wrong formula by more than 0.05
// (WeightsOfEveryGroupMatter measures the latter).
constexpr double kLogitGate = 2e-4;
// Hidden and recurrent states, relative to their largest value. transformers differs from itself by up to 1.2e-5 when
// the same prompt comes token by token; the gate is that of the logits, whose largest values are 5 and 16.
constexpr double kStateGate = 4e-5;
constexpr int kPrompts[] = {1, 2, 63, 64, 65, 300};
constexpr int kLayers = 4;
constexpr int kFullLayer = 2;

std::string Key(int prompt, const char* what) { return "p" + std::to_string(prompt) + "." + what; }
std::string Key(int prompt, const char* what, int layer) { return Key(prompt, what) + "." + std::to_string(layer); }

double Scale(const std::vector<float>& v) {
  double s = 0;
  for (const float x : v) s = std::max(s, std::fabs(static_cast<double>(x)));
  return s;
}

class Qwen3_5Parity : public ::testing::TestWithParam<const char*> {
 protected:
  Qwen3_5Parity()
      : directory_(GoldenDirectory(std::string("qwen3_5/") + GetParam())),
        golden_(directory_ + "/golden.safetensors") {}

  /// Largest difference of the stored rows from `logits` of all rows.
  double Difference(int prompt, const std::vector<float>& logits, int64_t vocab) const {
    const auto positions = golden_.Ints(Key(prompt, "positions"));
    const auto want = golden_.Floats(Key(prompt, "logits"));
    double worst = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      if (static_cast<int64_t>(logits.size()) < (positions[i] + 1) * vocab)
        return std::numeric_limits<double>::infinity();
      worst =
          std::max(worst, MaxDifference(Row(logits, positions[i], vocab), Row(want, static_cast<int64_t>(i), vocab)));
    }
    return worst;
  }

  std::string directory_;
  Golden golden_;
};

TEST_P(Qwen3_5Parity, LogitsAndStatesOfOneShotPrompts) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  int sequence = 0;
  for (const int prompt : kPrompts) {
    SCOPED_TRACE(prompt);
    const auto logits = bench.Prompt(sequence, golden_.Ints(Key(prompt, "ids")));
    const double worst = Difference(prompt, logits, bench.vocab());
    EXPECT_LE(worst, kLogitGate);
    RecordProperty(Key(prompt, "difference"), std::to_string(worst));
    for (int layer = 0; layer < kLayers; ++layer) {
      if (layer == kFullLayer) continue;
      const auto recurrent = golden_.Floats(Key(prompt, "recurrent", layer));
      EXPECT_LE(MaxDifference(bench.State(layer, sequence, false), recurrent), kStateGate * Scale(recurrent)) << layer;
      // Stored [C, 3]; kept here as [3, C].
      const auto conv = golden_.Floats(Key(prompt, "conv", layer));
      const auto mine = bench.State(layer, sequence, true);
      ASSERT_EQ(mine.size(), conv.size());
      std::vector<float> turned(conv.size());
      const size_t channels = conv.size() / 3;
      for (size_t c = 0; c < channels; ++c) {
        for (size_t i = 0; i < 3; ++i) turned[i * channels + c] = conv[c * 3 + i];
      }
      EXPECT_LE(MaxDifference(mine, turned), kStateGate * Scale(conv)) << layer;
    }
    ++sequence;
  }
}

TEST_P(Qwen3_5Parity, HiddenStatesOfEveryLayer) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  int seen = 0;
  const HiddenObserver observer = [&](int layer, const TensorView& hidden) {
    const auto want = golden_.Floats(Key(65, "hidden", layer));
    const float* data = hidden.as<float>();
    EXPECT_LE(MaxDifference({data, data + hidden.elements()}, want), kStateGate * Scale(want)) << layer;
    ++seen;
  };
  bench.Run({{0, golden_.Ints(Key(65, "ids"))}}, true, &observer);
  EXPECT_EQ(seen, kLayers + 1);
}

TEST_P(Qwen3_5Parity, GreedyTokens) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  int sequence = 0;
  for (const int prompt : kPrompts) {
    const auto want = golden_.Ints(Key(prompt, "greedy"));
    const auto logits = bench.Prompt(sequence, golden_.Ints(Key(prompt, "ids")));
    std::vector<int32_t> got = {Argmax(Row(logits, prompt - 1, bench.vocab()))};
    while (got.size() < want.size()) got.push_back(Argmax(bench.Run({{sequence, {got.back()}}})[0]));
    EXPECT_EQ(got, want) << prompt;
    ++sequence;
  }
}

TEST_P(Qwen3_5Parity, GreedyTokensOfAllPromptsInOneBatch) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  std::vector<Bench::Chunk> chunks;
  std::vector<std::vector<int32_t>> want, got;
  for (const int prompt : kPrompts) {
    chunks.push_back({static_cast<int>(chunks.size()), golden_.Ints(Key(prompt, "ids"))});
    want.push_back(golden_.Ints(Key(prompt, "greedy")));
    got.emplace_back();
  }
  for (int i = 0; i < 64; ++i) {
    const auto logits = bench.Run(chunks);
    ASSERT_EQ(logits.size(), chunks.size());
    for (size_t s = 0; s < chunks.size(); ++s) {
      const int64_t rows = static_cast<int64_t>(chunks[s].ids.size());
      got[s].push_back(Argmax(Row(logits[s], rows - 1, bench.vocab())));
      chunks[s].ids = {got[s].back()};
    }
  }
  EXPECT_EQ(got, want);
}

TEST_P(Qwen3_5Parity, PromptsSplitAnywhere) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  const auto ids = golden_.Ints(Key(300, "ids"));
  const std::vector<std::vector<int64_t>> splits = {{1},      {2},   {63},  {64},
                                                    {65, 66}, {150}, {299}, {1, 2, 3, 64, 128, 200}};
  for (const auto& cuts : splits) {
    for (const bool decode : {true, false}) {
      SCOPED_TRACE(::testing::PrintToString(cuts));
      bench.Reset(1);
      EXPECT_LE(Difference(300, bench.Prompt(1, ids, cuts, decode), bench.vocab()), kLogitGate);
    }
  }
  for (const int prompt : {2, 63, 65}) {
    std::vector<int64_t> every;
    for (int i = 1; i < prompt; ++i) every.push_back(i);
    bench.Reset(2);
    EXPECT_LE(Difference(prompt, bench.Prompt(2, golden_.Ints(Key(prompt, "ids")), every), bench.vocab()), kLogitGate)
        << "token by token, " << prompt;
  }
}

TEST_P(Qwen3_5Parity, BatchEqualsAloneBitForBit) {
  Bench bench(directory_, {}, /*threads=*/3), alone(directory_);
  ASSERT_TRUE(bench.ok() && alone.ok());
  std::vector<Bench::Chunk> chunks;
  for (const int prompt : kPrompts)
    chunks.push_back({static_cast<int>(chunks.size()), golden_.Ints(Key(prompt, "ids"))});
  for (int round = 0; round < 3; ++round) {
    const auto together = bench.Run(chunks);
    ASSERT_EQ(together.size(), chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_EQ(together[i], alone.Run({chunks[i]})[0]) << "prompt " << kPrompts[i] << ", round " << round;
    }
    // Then decode rows, one prompt chunk among them.
    for (size_t i = 0; i < chunks.size(); ++i) chunks[i].ids.assign(i == 2 ? 5 : 1, static_cast<int32_t>(7 * i + 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Fp32, Qwen3_5Parity, ::testing::Values("text", "vl"));

TEST(Qwen3_5, WeightsOfEveryGroupMatter) {
  const std::string directory = GoldenDirectory("qwen3_5/text");
  const Golden golden(directory + "/golden.safetensors");
  const auto ids = golden.Ints("p65.ids");
  Bench whole(directory);
  ASSERT_TRUE(whole.ok());
  const auto want = whole.Prompt(0, ids);
  for (const char* group : {"embed_tokens",
                            "in_proj_qkv",
                            "in_proj_z",
                            "in_proj_b",
                            "in_proj_a",
                            "conv1d",
                            "dt_bias",
                            "A_log",
                            "linear_attn.norm",
                            "linear_attn.out_proj",
                            "self_attn.q_proj",
                            "self_attn.k_proj",
                            "self_attn.v_proj",
                            "self_attn.o_proj",
                            "q_norm",
                            "k_norm",
                            "gate_proj",
                            "up_proj",
                            "down_proj",
                            "input_layernorm",
                            "post_attention_layernorm",
                            "model.norm",
                            "lm_head"}) {
    const ZeroedCheckpoint zeroed(directory, group);
    EXPECT_GT(zeroed.changed(), 0) << group;
    Bench bench(zeroed.path());
    ASSERT_TRUE(bench.ok());
    EXPECT_GE(MaxDifference(bench.Prompt(0, ids), want), 0.05) << group;
  }
}

}  // namespace
}  // namespace fluvial::models
