// SPDX-License-Identifier: Apache-2.0
// GLM-5.3 (text part) against transformers: files made by tools/golden/make_glm5_next.py.
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
constexpr double kLogitGate = 3e-4;
// States, relative to their largest value.
constexpr double kStateGate = 4e-5;
constexpr int kPrompts[] = {1, 63, 64, 65, 300, 2100};
constexpr int kKdaLayers[] = {0, 1, 3};

std::string Key(int prompt, const char* what) { return "p" + std::to_string(prompt) + "." + what; }
std::string Key(int prompt, const char* what, int layer) { return Key(prompt, what) + "." + std::to_string(layer); }

double Scale(const std::vector<float>& v) {
  double s = 0;
  for (const float x : v) s = std::max(s, std::fabs(static_cast<double>(x)));
  return s;
}

/// Largest difference of the stored rows from `logits` of all rows.
double Difference(const Golden& golden, int prompt, const std::vector<float>& logits, int64_t vocab) {
  const auto positions = golden.Ints(Key(prompt, "positions"));
  const auto want = golden.Floats(Key(prompt, "logits"));
  double worst = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (static_cast<int64_t>(logits.size()) < (positions[i] + 1) * vocab)
      return std::numeric_limits<double>::infinity();
    worst = std::max(worst, MaxDifference(Row(logits, positions[i], vocab), Row(want, static_cast<int64_t>(i), vocab)));
  }
  return worst;
}

class Glm5Next : public ::testing::Test {
 protected:
  std::string directory_ = GoldenDirectory("glm5_next/text");
  Golden golden_{directory_ + "/golden.safetensors"};
};

TEST_F(Glm5Next, LogitsAndStatesOfOneShotPrompts) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  int sequence = 0;
  for (const int prompt : kPrompts) {
    const double worst =
        Difference(golden_, prompt, bench.Prompt(sequence, golden_.Ints(Key(prompt, "ids"))), bench.vocab());
    EXPECT_LE(worst, kLogitGate) << prompt;
    RecordProperty(Key(prompt, "difference"), std::to_string(worst));
    if (prompt == 300) {
      for (const int layer : kKdaLayers) {
        const auto recurrent = golden_.Floats(Key(prompt, "recurrent", layer));
        EXPECT_LE(MaxDifference(bench.State(layer, sequence, false), recurrent), kStateGate * Scale(recurrent))
            << layer;
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
    }
    ++sequence;
  }
}

TEST_F(Glm5Next, EitherFormOfLatentAttention) {
  for (const char* backend : {"cpu_absorbed", "cpu_expanded", "reference"}) {
    LoadOptions options;
    options.backends["mla_attention"] = backend;
    Bench bench(directory_, options);
    ASSERT_TRUE(bench.ok());
    EXPECT_LE(Difference(golden_, 300, bench.Prompt(0, golden_.Ints("p300.ids")), bench.vocab()), kLogitGate)
        << backend;
  }
}

TEST_F(Glm5Next, GreedyTokensAloneAndInOneBatch) {
  Bench bench(directory_), alone(directory_);
  ASSERT_TRUE(bench.ok() && alone.ok());
  std::vector<Bench::Chunk> chunks;
  std::vector<std::vector<int32_t>> want, got;
  for (const int prompt : kPrompts) {
    chunks.push_back({static_cast<int>(chunks.size()), golden_.Ints(Key(prompt, "ids"))});
    want.push_back(golden_.Ints(Key(prompt, "greedy")));
    got.emplace_back();
    const int sequence = chunks.back().sequence;
    const auto logits = alone.Prompt(sequence, chunks.back().ids);
    std::vector<int32_t> single = {Argmax(Row(logits, prompt - 1, alone.vocab()))};
    while (single.size() < want.back().size()) single.push_back(Argmax(alone.Run({{sequence, {single.back()}}})[0]));
    EXPECT_EQ(single, want.back()) << prompt;
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

TEST_F(Glm5Next, PromptsSplitAnywhere) {
  Bench bench(directory_);
  ASSERT_TRUE(bench.ok());
  const auto ids = golden_.Ints("p300.ids");
  const std::vector<std::vector<int64_t>> splits = {{1},  {2},      {63},  {64},
                                                    {65}, {65, 66}, {299}, {1, 2, 3, 64, 128, 200}};
  for (const auto& cuts : splits) {
    for (const bool decode : {true, false}) {
      bench.Reset(1);
      EXPECT_LE(Difference(golden_, 300, bench.Prompt(1, ids, cuts, decode), bench.vocab()), kLogitGate)
          << ::testing::PrintToString(cuts);
    }
  }
  bench.Reset(1);
  EXPECT_LE(
      Difference(golden_, 2100, bench.Prompt(1, golden_.Ints("p2100.ids"), {512, 1024, 1536, 2048}), bench.vocab()),
      kLogitGate);
  for (const int prompt : {63, 65, 300}) {
    std::vector<int64_t> every;
    for (int i = 1; i < prompt; ++i) every.push_back(i);
    bench.Reset(2);
    EXPECT_LE(Difference(golden_, prompt, bench.Prompt(2, golden_.Ints(Key(prompt, "ids")), every), bench.vocab()),
              kLogitGate)
        << "token by token, " << prompt;
  }
}

TEST_F(Glm5Next, BatchEqualsAloneBitForBit) {
  Bench bench(directory_, {}, /*threads=*/3), alone(directory_);
  ASSERT_TRUE(bench.ok() && alone.ok());
  std::vector<Bench::Chunk> chunks;
  for (const int prompt : {1, 63, 64, 65, 300}) {
    chunks.push_back({static_cast<int>(chunks.size()), golden_.Ints(Key(prompt, "ids"))});
  }
  for (int round = 0; round < 3; ++round) {
    const auto together = bench.Run(chunks);
    ASSERT_EQ(together.size(), chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_EQ(together[i], alone.Run({chunks[i]})[0]) << "chunk " << i << ", round " << round;
    }
    // Then decode rows, one prompt chunk among them.
    for (size_t i = 0; i < chunks.size(); ++i) chunks[i].ids.assign(i == 2 ? 5 : 1, static_cast<int32_t>(7 * i + 1));
  }
}

TEST_F(Glm5Next, NamesOfTheModulesLoadTheSameModel) {
  Bench saved(directory_), fused(GoldenDirectory("glm5_next/fused"));
  ASSERT_TRUE(saved.ok() && fused.ok());
  EXPECT_EQ(saved.model().parameters(), fused.model().parameters());
  const auto ids = golden_.Ints("p65.ids");
  EXPECT_EQ(saved.Prompt(0, ids), fused.Prompt(0, ids));
}

TEST_F(Glm5Next, WeightsOfEveryGroupMatter) {
  const auto ids = golden_.Ints("p65.ids");
  Bench whole(directory_);
  ASSERT_TRUE(whole.ok());
  const auto want = whole.Prompt(0, ids);
  for (const char* group : {"embed_tokens",
                            "q_proj",
                            "k_proj",
                            "v_proj",
                            "q_conv1d",
                            "k_conv1d",
                            "v_conv1d",
                            "f_a_proj",
                            "f_b_proj",
                            "b_proj",
                            "g_a_proj",
                            "g_b_proj",
                            "A_log",
                            "dt_bias",
                            "o_norm",
                            "layers.0.self_attn.o_proj",
                            "layers.2.self_attn.q_proj",
                            "layers.2.self_attn.o_proj",
                            "kv_a_proj_with_mqa",
                            "kv_a_layernorm",
                            "kv_b_proj",
                            "layers.0.block_sparse_moe.gate_proj",
                            "layers.0.block_sparse_moe.up_proj",
                            "layers.0.block_sparse_moe.down_proj",
                            "block_sparse_moe.gate.weight",
                            "e_score_correction_bias",
                            ".w1.",
                            ".w2.",
                            ".w3.",
                            "shared_experts.gate_proj",
                            "shared_experts.up_proj",
                            "shared_experts.down_proj",
                            "input_layernorm",
                            "post_attention_layernorm",
                            "model.norm",
                            "lm_head"}) {
    const ZeroedCheckpoint zeroed(directory_, group);
    EXPECT_GT(zeroed.changed(), 0) << group;
    Bench bench(zeroed.path());
    ASSERT_TRUE(bench.ok());
    EXPECT_GE(MaxDifference(bench.Prompt(0, ids), want), 0.05) << group;
  }
}

// bf16 in the layout of the release.
struct Bf16Run {
  int compared = 0, same = 0;   ///< positions where transformers' bf16 and fp32 agree, and we with them
  double mine = 0, theirs = 0;  ///< sums of squared differences from fp32 over the stored rows
};

Bf16Run RunBf16(const LoadOptions& options) {
  const std::string directory = GoldenDirectory("glm5_next/published");
  const Golden golden(directory + "/golden.safetensors");
  LoadOptions fp32;
  fp32.dtype = DType::kF32;
  Bench bench(directory, options), exact_bench(directory, fp32);
  EXPECT_TRUE(bench.ok() && exact_bench.ok());
  EXPECT_EQ(bench.model().dtype(), DType::kBF16);
  Bf16Run run;
  int sequence = 0;
  const size_t vocab = static_cast<size_t>(bench.vocab());
  for (const int prompt : kPrompts) {
    const auto ids = golden.Ints(Key(prompt, "ids"));
    const auto logits = bench.Prompt(sequence, ids), best = exact_bench.Prompt(sequence, ids);
    ++sequence;
    const auto theirs = golden.Ints(Key(prompt, "argmax")), exact = golden.Ints(Key(prompt, "argmax_fp32"));
    for (int i = 0; i < prompt; ++i) {
      if (theirs[static_cast<size_t>(i)] != exact[static_cast<size_t>(i)]) continue;
      ++run.compared;
      run.same += Argmax(Row(logits, i, bench.vocab())) == exact[static_cast<size_t>(i)];
    }
    const auto rows = golden.Floats(Key(prompt, "logits"));
    const auto positions = golden.Ints(Key(prompt, "positions"));
    for (size_t i = 0; i < positions.size() * vocab; ++i) {
      const size_t at = static_cast<size_t>(positions[i / vocab]) * vocab + i % vocab;
      run.mine += std::pow(static_cast<double>(logits[at]) - best[at], 2);
      run.theirs += std::pow(static_cast<double>(rows[i]) - best[at], 2);
    }
  }
  return run;
}

// Where transformers' bf16 run agrees with its own fp32 run about the most likely token, ours must, on 99 % of the
// positions: with fp32 arithmetic inside the delta rule, as transformers has it.
TEST(Glm5NextPublished, Bf16AgreesWhereTransformersDoes) {
  LoadOptions options;
  options.backends["kda_prefill"] = "cpu";
  const Bf16Run run = RunBf16(options);
  RecordProperty("compared", run.compared);
  RecordProperty("same", run.same);
  EXPECT_GE(run.same, 0.99 * run.compared) << run.same << " of " << run.compared;
  EXPECT_LE(run.mine, 1.2 * 1.2 * run.theirs);
}

// What auto takes may multiply with the state in bf16 (kda_prefill cpu_bf16), which transformers does not: at most half
// as far again from fp32 as transformers is.
TEST(Glm5NextPublished, Bf16IsAsCloseToFp32AsTransformers) {
  const Bf16Run run = RunBf16({});
  RecordProperty("compared", run.compared);
  RecordProperty("same", run.same);
  RecordProperty("rms_ratio", std::to_string(std::sqrt(run.mine / run.theirs)));
  EXPECT_LE(run.mine, 1.5 * 1.5 * run.theirs);
}

// One token of this model lets no difference of summation order through the bf16 roundings: every rounding point is
// where transformers has it.
TEST(Glm5NextPublished, Bf16FirstTokenEqualsTransformersBitForBit) {
  const std::string directory = GoldenDirectory("glm5_next/published");
  const Golden golden(directory + "/golden.safetensors");
  LoadOptions reference;
  for (const char* op : {"gemm", "kda_prefill", "kda_decode", "causal_conv1d", "mla_attention", "moe"}) {
    reference.backends[op] = "reference";
  }
  Bench bench(directory, reference);
  ASSERT_TRUE(bench.ok());
  EXPECT_EQ(bench.Prompt(0, golden.Ints("p1.ids")), golden.Floats("p1.logits"));
}

TEST(Glm5NextPublished, EqualsTransformersInFp32) {
  const std::string directory = GoldenDirectory("glm5_next/published");
  const Golden golden(directory + "/golden.safetensors");
  LoadOptions fp32;
  fp32.dtype = DType::kF32;
  Bench bench(directory, fp32);
  ASSERT_TRUE(bench.ok());
  int sequence = 0, different = 0;
  for (const int prompt : kPrompts) {
    const auto logits = bench.Prompt(sequence++, golden.Ints(Key(prompt, "ids")));
    const auto exact = golden.Ints(Key(prompt, "argmax_fp32"));
    for (int i = 0; i < prompt; ++i) {
      different += Argmax(Row(logits, i, bench.vocab())) != exact[static_cast<size_t>(i)];
    }
  }
  // Two logits closer than the gate may change places; at this size that is one position in thousands.
  EXPECT_LE(different, 3);
}

TEST(Glm5NextPublished, RefusesWeightsThatDoNotFit) {
  namespace fs = std::filesystem;
  const fs::path copy = fs::temp_directory_path() / ("fluvial_glm_misfit_" + std::to_string(::getpid()));
  const auto stream = MakeCpuStream(1);
  const auto load = [&](const std::string& from, const std::string& to) {
    fs::remove_all(copy);
    fs::copy(GoldenDirectory("glm5_next/published"), copy);
    std::ifstream in(copy / "config.json");
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::ofstream(copy / "config.json") << text.replace(at, from.size(), to);
    const auto model = LoadModel(copy.string(), {}, *stream);
    fs::remove_all(copy);
    EXPECT_FALSE(model.ok()) << to;
    return model.ok() ? Status::Ok() : model.status();
  };
  const Status wide = load("\"kv_lora_rank\": 32", "\"kv_lora_rank\": 33");
  EXPECT_EQ(wide.code(), Code::kUnusableModel);
  EXPECT_NE(wide.message().find("6 of another shape"), std::string::npos) << wide.message();
  const Status more = load("\"num_experts\": 8", "\"num_experts\": 10");
  EXPECT_NE(more.message().find("24 missing"), std::string::npos) << more.message();
  EXPECT_NE(more.message().find("experts.8.w1"), std::string::npos) << more.message();
  const Status fewer = load("\"num_experts\": 8", "\"num_experts\": 6");
  EXPECT_NE(fewer.message().find("24 not known"), std::string::npos) << fewer.message();
  EXPECT_EQ(load("\"sigmoid\"", "\"softmax\"").code(), Code::kUnusableModel);
}

}  // namespace
}  // namespace fluvial::models
