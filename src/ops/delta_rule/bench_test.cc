// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/bench.h"

#include <gtest/gtest.h>

#include "ops/delta_rule/suites.h"

namespace fluvial::ops::delta_rule {
namespace {

TEST(DeltaRuleSuites, AllParse) {
  size_t problems = 0;
  for (const std::string& name : SuiteNames()) {
    const auto suite = Suite(name);
    ASSERT_TRUE(suite.ok()) << name << ": " << suite.status().message();
    EXPECT_FALSE(suite->empty()) << name;
    problems += suite->size();
  }
  EXPECT_GE(problems, 50u);
  EXPECT_EQ(Suite("none").status().code(), Code::kInvalidArgument);
  const auto first = Suite("flashkda");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->front().line.problem.hk, 96);
  ASSERT_EQ(first->front().anchors.size(), 2u);
  EXPECT_EQ(first->front().anchors[0], (std::pair<std::string, double>("FlashKDA", 1406)));
}

TEST(DeltaRuleSuites, BadTextIsAnError) {
  EXPECT_FALSE(ParseSuite("kda_prefill lens=1\n").ok());
  EXPECT_FALSE(ParseSuite("kda_prefill lens=1 hk=1 | x\n").ok());
  EXPECT_FALSE(ParseSuite("kda_prefill lens=1 hk=1 | x=fast\n").ok());
}

TEST(DeltaRuleBench, MinimumBytesIsTheKnownFigure) {
  // 1282 bytes per token and head in bf16 (q, k, v, g, out and beta), and two fp32 states of 64 KiB per head.
  const auto line = ParseProblemLine("kda_prefill lens=8192 hk=96");
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(MinimumBytes(*line), 8192.0 * 96 * 1282 + 2 * 96 * 65536.0);
  EXPECT_EQ(MultiplyAdds(*line), 3.0 * 8192 * 96 * 128 * 128);
}

TEST(DeltaRuleBench, EveryBackendThatAcceptsIsMeasured) {
  const auto stream = MakeCpuStream(1);
  for (const char* text :
       {"kda_prefill lens=70,3 hk=1 hv=2 checkpoint_every=64", "gdn_decode lens=2x3 hk=1 token_states=1"}) {
    const auto line = ParseProblemLine(text);
    ASSERT_TRUE(line.ok());
    for (const DeltaBackend& b : Backends(line->problem.op)) {
      const auto m = Measure(*stream, b, *line, 2, 0);
      if (!b.check(line->problem, stream->device()).ok()) {
        EXPECT_EQ(m.status().code(), Code::kRefused) << b.name;
        continue;
      }
      ASSERT_TRUE(m.ok()) << b.name << ": " << m.status().message();
      EXPECT_EQ(m->us.size(), 2u);
      EXPECT_GT(m->best_us, 0);
    }
  }
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
