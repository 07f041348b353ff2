// SPDX-License-Identifier: Apache-2.0
// The checker itself: generated cases pass on the CPU, and a backend with a fault does not.
#include "ops/vision_attention/verify.h"

#include <gtest/gtest.h>

#include "ops/vision_attention/bench.h"
#include "ops/vision_attention/suites.h"

namespace fluvial::ops::vision_attention {
namespace {

std::vector<std::unique_ptr<Stream>> CpuStreams() {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(MakeCpuStream(2));
  return streams;
}

TEST(VisionAttentionVerify, GeneratedCasesRoundTripAndPass) {
  for (int64_t i = 0; i < 300; ++i) {
    const Case c = GenerateCase(1, i);
    const auto again = ParseCase(FormatCase(c));
    ASSERT_TRUE(again.ok()) << FormatCase(c) << ": " << again.status().message();
    EXPECT_EQ(FormatCase(*again), FormatCase(c));
    EXPECT_EQ(again->line.problem, c.line.problem) << FormatCase(c);
  }
  VerifyOptions options;
  options.cases = 25;
  options.cpu_targets = false;
  const auto report = Verify(CpuStreams(), options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->failed, 0) << report->failures.front();
  EXPECT_GE(report->runs, 50);
}

const VisionBackend& Cpu() {
  for (const VisionBackend& b : Backends()) {
    if (b.name == "cpu") return b;
  }
  return Backends().back();
}

enum Fault { kNone, kLastKey, kScale, kNeighbour, kSkip };

template <Fault kFault>
Status Faulty(Stream& stream, const Problem& p, const Args& a, Workspace w) {
  Problem changed = p;
  if (kFault == kScale) changed.scale *= 1.05f;
  Args args = a;
  auto plan = SequencePlan::Make(stream, {std::vector<int64_t>{a.plan->tokens()}, {}, {}});
  if (!plan.ok()) return plan.status();
  // All tokens as one sequence: windows see each other.
  if (kFault == kNeighbour && p.padded == 0) args.plan = &*plan;
  // The last sequence loses its last token.
  std::vector<int64_t> lengths;
  for (int32_t n = 0; n < a.plan->sequences(); ++n) lengths.push_back(a.plan->offsets()[n + 1] - a.plan->offsets()[n]);
  if (!lengths.empty() && lengths.back() > 0) --lengths.back();
  auto shorter = SequencePlan::Make(stream, {lengths, {}, {}});
  if (!shorter.ok()) return shorter.status();
  if (kFault == kLastKey) args.plan = &*shorter;
  if (kFault == kSkip) return Status::Ok();
  return Cpu().run(stream, changed, args, w);
}

template <Fault kFault>
int64_t Failures() {
  VisionBackend faulty = Cpu();
  faulty.name = "cpu_faulty";
  faulty.run = Faulty<kFault>;
  VerifyOptions options;
  options.cases = 15;
  options.cpu_targets = false;
  options.instead = std::span(&faulty, 1);
  const auto report = Verify(CpuStreams(), options);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report->failed : -1;
}

TEST(VisionAttentionVerify, FaultsAreFound) {
  EXPECT_EQ(Failures<kNone>(), 0);
  EXPECT_GE(Failures<kLastKey>(), 5);  // an empty last sequence has no token to lose
  EXPECT_GE(Failures<kScale>(), 5);
  EXPECT_GE(Failures<kNeighbour>(), 5);
  EXPECT_GE(Failures<kSkip>(), 12);
}

TEST(VisionAttentionVerify, NamesAreChecked) {
  VerifyOptions options;
  options.backend = "nonsense";
  EXPECT_EQ(Verify(CpuStreams(), options).status().code(), Code::kInvalidArgument);
  options.backend = "cudnn";
  options.cases = 2;
  EXPECT_EQ(Verify(CpuStreams(), options).status().code(), Code::kRefused);
  options.backend = "reference";
  options.line = "vision_attention heads=1 d=8 lens=2,0,3 layout=qkv";
  const auto report = Verify(CpuStreams(), options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->runs, 1);
  EXPECT_EQ(report->failed, 0);
}

TEST(VisionAttentionSuites, AllParse) {
  for (const std::string& name : SuiteNames()) {
    const auto suite = Suite(name);
    ASSERT_TRUE(suite.ok()) << name << ": " << suite.status().message();
    EXPECT_GE(suite->size(), 6u) << name;
    EXPECT_EQ(suite->front().anchors.size(), 2u);
  }
  EXPECT_EQ(Suite("none").status().code(), Code::kInvalidArgument);
  // The page's windows hold all its patches.
  const auto page = Suite("qwen2_5_vl");
  EXPECT_EQ((*page)[6].line.problem.tokens, 92 * 140);
  EXPECT_EQ((*page)[6].line.problem.sequences, 216);
}

TEST(VisionAttentionBench, EveryBackendThatAcceptsIsMeasured) {
  const auto stream = MakeCpuStream(1);
  for (const char* text :
       {"vision_attention heads=2 d=80 lens=70,3 lse=1", "vision_attention heads=2 lens=3x4 padded=5"}) {
    const auto line = ParseProblemLine(text);
    ASSERT_TRUE(line.ok());
    for (const VisionBackend& b : Backends()) {
      const auto m = Measure(*stream, b, *line, 2, 0);
      if (!b.check(line->problem, stream->device()).ok()) {
        EXPECT_EQ(m.status().code(), Code::kRefused) << b.name;
        continue;
      }
      ASSERT_TRUE(m.ok()) << b.name << ": " << m.status().message();
      EXPECT_EQ(m->us.size(), 2u);
    }
  }
  const auto line = ParseProblemLine("vision_attention heads=16 d=80 lens=4096");
  EXPECT_EQ(MinimumBytes(*line), 4.0 * 4096 * 16 * 80 * 2);
  EXPECT_EQ(2 * MultiplyAdds(*line), 4.0 * 4096 * 4096 * 16 * 80);
}

}  // namespace
}  // namespace fluvial::ops::vision_attention
