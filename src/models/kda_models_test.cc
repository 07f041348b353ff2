// SPDX-License-Identifier: Apache-2.0
// What the parity suite does not ask of Kimi-Linear and GLM-5.3: backends by name, selection as released, misfits.
#include <gtest/gtest.h>

#include "models/model_testkit.h"

namespace fluvial::models {
namespace {

using testing::AlteredCheckpoint;
using testing::Argmax;
using testing::Bench;
using testing::Golden;
using testing::GoldenDirectory;
using testing::MaxDifference;
using testing::Row;

/// Largest difference of the stored rows `name`.logits from `logits` of all rows.
double Difference(const Golden& golden, const std::string& name, const std::vector<float>& logits, int64_t vocab) {
  const auto positions = golden.Ints(name + ".positions");
  const auto want = golden.Floats(name + ".logits");
  double worst = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (static_cast<int64_t>(logits.size()) < (positions[i] + 1) * vocab)
      return std::numeric_limits<double>::infinity();
    worst = std::max(worst, MaxDifference(Row(logits, positions[i], vocab), Row(want, static_cast<int64_t>(i), vocab)));
  }
  return worst;
}

TEST(KimiLinear, EitherFormOfLatentAttention) {
  const std::string directory = GoldenDirectory("kimi_linear/text");
  const Golden golden(directory + "/golden.safetensors");
  for (const char* backend : {"cpu_absorbed", "cpu_expanded", "reference"}) {
    LoadOptions options;
    options.backends["mla_attention"] = backend;
    Bench bench(directory, options);
    ASSERT_TRUE(bench.ok());
    EXPECT_LE(Difference(golden, "p300", bench.Prompt(0, golden.Ints("p300.ids")), bench.vocab()), 3e-4) << backend;
  }
}

TEST(Glm5Next, ReferenceBackendsOfSparseAttention) {
  const std::string directory = GoldenDirectory("glm5_next/text");
  const Golden golden(directory + "/golden.safetensors");
  LoadOptions options;
  options.backends = {{"mla_attention", "reference"}, {"pool_index", "reference"}};
  Bench bench(directory, options);
  ASSERT_TRUE(bench.ok());
  EXPECT_LE(Difference(golden, "p300", bench.Prompt(0, golden.Ints("p300.ids")), bench.vocab()), 5e-4);
  // Keys of every head cannot be made for lists of keys.
  options.backends = {{"mla_attention", "cpu_expanded"}};
  const auto stream = MakeCpuStream(1);
  auto expanded = LoadModel(directory, options, *stream);
  ASSERT_TRUE(expanded.ok());
}

// index_topk as released: selection begins with token 2052.
TEST(Glm5Next, SelectionAsReleased) {
  const std::string directory = GoldenDirectory("glm5_next/text");
  const Golden golden(directory + "/golden.safetensors");
  namespace fs = std::filesystem;
  const fs::path copy = fs::temp_directory_path() / ("fluvial_glm_wide_" + std::to_string(::getpid()));
  fs::remove_all(copy);
  fs::copy(directory, copy);
  std::ifstream in(copy / "config.json");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string from = "\"index_topk\": 32";
  ASSERT_NE(text.find(from), std::string::npos);
  std::ofstream(copy / "config.json") << text.replace(text.find(from), from.size(), "\"index_topk\": 2048");
  Bench bench(copy.string());
  ASSERT_TRUE(bench.ok());
  const auto ids = golden.Ints("p2100.ids");
  EXPECT_LE(Difference(golden, "wide", bench.Prompt(0, ids), bench.vocab()), 5e-4);
  // Dense pieces first, then pieces with selection, then one token at a time.
  EXPECT_LE(Difference(golden, "wide", bench.Prompt(1, ids, {1000, 2040, 2060, 2097, 2098, 2099}), bench.vocab()),
            5e-4);
  fs::remove_all(copy);
}

class Published : public ::testing::TestWithParam<const char*> {};

// The bf16 weights of the released layout in fp32 choose what transformers chooses with them in fp32.
TEST_P(Published, EqualsTransformersInFp32) {
  const std::string directory = GoldenDirectory(GetParam());
  const Golden golden(directory + "/golden.safetensors");
  LoadOptions fp32;
  fp32.dtype = DType::kF32;
  Bench bench(directory, fp32);
  ASSERT_TRUE(bench.ok());
  int sequence = 0, different = 0, positions = 0;
  for (const int prompt : {1, 2, 63, 64, 65, 300, 2100}) {
    const std::string key = "p" + std::to_string(prompt);
    const auto logits = bench.Prompt(sequence++, golden.Ints(key + ".ids"));
    const auto exact = golden.Ints(key + ".argmax_exact");
    for (int i = 0; i < prompt; ++i, ++positions) {
      different += Argmax(Row(logits, i, bench.vocab())) != exact[static_cast<size_t>(i)];
    }
  }
  // Two logits closer than the gate may change places: one position in thousands at this size.
  EXPECT_LE(different, 3) << "of " << positions;
}

// What auto takes may multiply with the state in bf16 (kda_prefill cpu_bf16), which transformers does not: at most half
// as far again from fp32 as transformers' bf16 is, by the sum over the stored rows of all prompts.
TEST_P(Published, Bf16OfAutoIsNearFp32) {
  const std::string directory = GoldenDirectory(GetParam());
  const Golden golden(directory + "/golden.safetensors");
  LoadOptions fp32;
  fp32.dtype = DType::kF32;
  Bench bench(directory), exact(directory, fp32);
  ASSERT_TRUE(bench.ok() && exact.ok());
  double mine = 0, theirs = 0;
  int sequence = 0, settled = 0, same = 0;
  const size_t vocab = static_cast<size_t>(bench.vocab());
  for (const int prompt : {1, 2, 63, 64, 65, 300}) {
    const std::string key = "p" + std::to_string(prompt);
    const auto ids = golden.Ints(key + ".ids");
    const auto logits = bench.Prompt(sequence, ids), best = exact.Prompt(sequence, ids);
    ++sequence;
    const auto rows = golden.Floats(key + ".logits");
    const auto positions = golden.Ints(key + ".positions");
    for (size_t i = 0; i < positions.size() * vocab; ++i) {
      const size_t at = static_cast<size_t>(positions[i / vocab]) * vocab + i % vocab;
      mine += std::pow(static_cast<double>(logits[at]) - best[at], 2);
      theirs += std::pow(static_cast<double>(rows[i]) - best[at], 2);
    }
    const auto their_choice = golden.Ints(key + ".argmax"), choice = golden.Ints(key + ".argmax_exact");
    for (int i = 0; i < prompt; ++i) {
      if (their_choice[static_cast<size_t>(i)] != choice[static_cast<size_t>(i)]) continue;
      ++settled;
      same += Argmax(Row(logits, i, bench.vocab())) == choice[static_cast<size_t>(i)];
    }
  }
  RecordProperty("rms_ratio", std::to_string(std::sqrt(mine / theirs)));
  RecordProperty("settled", settled);
  RecordProperty("same", same);
  EXPECT_LE(mine, 1.5 * 1.5 * theirs);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Published, ::testing::Values("kimi_linear/published", "glm5_next/published"));

TEST(KimiLinear, RefusesWeightsThatDoNotFit) {
  namespace fs = std::filesystem;
  const fs::path copy = fs::temp_directory_path() / ("fluvial_kimi_misfit_" + std::to_string(::getpid()));
  const auto stream = MakeCpuStream(1);
  const auto load = [&](const std::string& from, const std::string& to) {
    fs::remove_all(copy);
    fs::copy(GoldenDirectory("kimi_linear/published"), copy);
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
  EXPECT_NE(wide.message().find("kv_b_proj.weight"), std::string::npos) << wide.message();
  EXPECT_NE(wide.message().find("kv_a_layernorm.weight"), std::string::npos) << wide.message();
  EXPECT_NE(load("\"num_experts\": 8", "\"num_experts\": 10").message().find("missing"), std::string::npos);
  EXPECT_NE(load("\"num_experts\": 8", "\"num_experts\": 6").message().find("not known"), std::string::npos);
  EXPECT_EQ(load("\"sigmoid\"", "\"softmax\"").code(), Code::kUnusableModel);
}

}  // namespace
}  // namespace fluvial::models
