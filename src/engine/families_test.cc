// SPDX-License-Identifier: Apache-2.0
// Every family of models through the engine: any schedule gives transformers' greedy answers, with a prefix cache or
// without. A family adds its golden directory.
#include <gtest/gtest.h>

#include "engine/engine_testkit.h"

namespace fluvial {
namespace {

using engine::testing::Greedy;
using engine::testing::Ids;
using engine::testing::Loaded;
using engine::testing::Options;
using models::testing::Golden;
using models::testing::GoldenDirectory;

class Families : public ::testing::TestWithParam<const char*> {};

TEST_P(Families, GreedyAnswersEqualTransformers) {
  const Golden golden(GoldenDirectory(GetParam()) + "/golden.safetensors");
  for (const bool caching : {false, true}) {
    EngineOptions o = Options();
    o.model = GoldenDirectory(GetParam());
    o.max_num_seqs = 3;
    o.max_num_batched_tokens = 100;
    o.max_model_len = 2176;
    o.enable_prefix_caching = caching;
    const auto engine = Loaded(o);
    ASSERT_NE(engine, nullptr);
    std::vector<Request> requests;
    std::vector<std::vector<int32_t>> want;
    for (const int n : {1, 63, 65, 300, 2100}) {
      const std::string key = "p" + std::to_string(n);
      requests.push_back(Greedy(golden.Ints(key + ".ids")));
      want.push_back(golden.Ints(key + ".greedy"));
    }
    for (int round = 0; round < 2; ++round) {  // the second round reuses slots and pages, or hits the cache
      const auto answers = engine->Generate(requests);
      ASSERT_TRUE(answers.ok()) << answers.status().message();
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(Ids((*answers)[i]), want[i]) << "prompt " << requests[i].prompt.size() << ", round " << round;
      }
    }
    EXPECT_EQ(engine->stats().nan_aborts, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Families, ::testing::Values("kimi_linear/text", "glm5_next/text"));

}  // namespace
}  // namespace fluvial
