// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/verify.h"

#include <gtest/gtest.h>

#include <set>

namespace fluvial::ops::delta_rule {
namespace {

std::vector<std::unique_ptr<Stream>> CpuStreams() {
  std::vector<std::unique_ptr<Stream>> out;
  out.push_back(MakeCpuStream(2));
  return out;
}

TEST(DeltaRuleVerify, GeneratedCasesAreValidDistinctAndReproducible) {
  std::set<std::string> seen;
  for (const Op op : {Op::kGdnPrefill, Op::kGdnDecode, Op::kKdaPrefill, Op::kKdaDecode}) {
    for (int64_t i = 0; i < kFullCases; ++i) {
      const std::string line = FormatCase(GenerateCase(op, 1, i));
      const auto parsed = ParseCase(line);
      ASSERT_TRUE(parsed.ok()) << line << ": " << parsed.status().message();
      EXPECT_EQ(FormatCase(*parsed), line);
      EXPECT_EQ(FormatCase(GenerateCase(op, 1, i)), line);
      seen.insert(line);
    }
  }
  EXPECT_GE(seen.size(), 5000u);
}

TEST(DeltaRuleVerify, QuickCasesPassOnEveryInstructionSet) {
  const auto streams = CpuStreams();
  VerifyOptions options;
  const auto report = Verify(streams, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  for (const std::string& f : report->failures) ADD_FAILURE() << f;
  EXPECT_EQ(report->cases, 4 * kQuickCases);
  for (const BackendTally& t : report->tallies) {
    std::printf("%-14s %-6s passed %5ld failed %3ld refused %4ld worst %.3f %s\n", t.backend.c_str(), t.device.c_str(),
                t.passed, t.failed, t.refused, t.worst_ratio, t.worst_line.c_str());
  }
}

TEST(DeltaRuleVerify, NamesAndRefusals) {
  const auto streams = CpuStreams();
  VerifyOptions options;
  options.cases = 1;
  options.backend = "cuda_tokens";
  EXPECT_EQ(Verify(streams, options).status().code(), Code::kRefused);
  options.backend = "triton";
  EXPECT_EQ(Verify(streams, options).status().code(), Code::kInvalidArgument);
  options.backend = "";
  options.line = "kda_prefill lens=5 hk=1 fill=";
  EXPECT_EQ(Verify(streams, options).status().code(), Code::kInvalidArgument);
  options.line = "kda_prefill lens=5 hk=1 fill=random";
  options.backend = "reference";
  const auto report = Verify(streams, options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->runs, 1);
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
