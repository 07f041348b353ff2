// SPDX-License-Identifier: Apache-2.0
// The checks, selection, memory and text forms of vision attention.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/vision_attention/cudnn.h"
#include "ops/vision_attention/sm90_vision_params.h"
#include "ops/vision_attention/test_kit.h"

namespace fluvial::ops::vision_attention {
namespace {

Problem Good() {
  Problem p;
  p.heads = 2;
  p.d = 16;
  p.scale = 0.25f;
  SetLengths(p, std::vector<int64_t>{3, 0, 2});
  return p;
}

TEST(VisionAttentionContract, BadProblemsNameTheField) {
  ASSERT_TRUE(Validate(Good()).ok()) << Validate(Good()).message();
  auto expect = [](auto change, std::string_view text) {
    Problem p = Good();
    change(p);
    const Status s = Validate(p);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Problem& p) { p.heads = 0; }, "heads is 0, it must be 1..65536");
  expect([](Problem& p) { p.d = 257; }, "d is 257, it must be 1..256");
  expect([](Problem& p) { p.io = DType::kF8E4M3; }, "io is fp8_e4m3");
  expect([](Problem& p) { p.scale = 0; }, "scale is 0, it must be finite and positive");
  expect([](Problem& p) { p.scale = NAN; }, "scale is nan");
  expect([](Problem& p) { p.tokens = -1; }, "negative");
  expect([](Problem& p) { p.padded = 2; }, "the longest sequence has 3 tokens, but padded is 2");
  expect([](Problem& p) { p.alignment = 3; }, "alignment is 3");
  expect([](Problem& p) { p.io = DType::kF32, p.alignment = 2; }, "smaller than one element of io=fp32");
}

TEST(VisionAttentionContract, BadArgsNameTheTensor) {
  auto stream = MakeCpuStream(1);
  auto c = ParseCase("vision_attention heads=2 d=16 lens=3,0,2 io=bf16 lse=1 layout=qkv");
  ASSERT_TRUE(c.ok());
  const PreparedCase prepared = PreparedCase::Make(*c, stream->pool());
  PreparedCase::Tensors t = prepared.inputs();
  const Args good = [&] {
    Args a = prepared.Views(t.q.view(), {}, {}, t.out.view(), t.lse.view());
    return a;
  }();
  auto plan = SequencePlan::Make(*stream, {c->line.lengths, {}, {}});
  auto larger = SequencePlan::Make(*stream, {{4, 2}, {}, {}});
  ASSERT_TRUE(plan.ok() && larger.ok());
  Args with_plan = good;
  with_plan.plan = &*plan;
  ASSERT_TRUE(Validate(prepared.problem(), with_plan).ok()) << Validate(prepared.problem(), with_plan).message();
  auto expect = [&](auto change, std::string_view text) {
    Args a = with_plan;
    change(a);
    const Status s = Validate(prepared.problem(), a);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Args& a) { a.plan = nullptr; }, "no plan");
  expect([&](Args& a) { a.plan = &*larger; },
         "the plan has 6 tokens in 2 sequences, longest 4, the problem says at most 5 in 3, longest 3");
  expect([](Args& a) { a.q.dims[1] = 3; }, "q must be bf16[5,2,16], got bf16[5,3,16]");
  expect([](Args& a) { a.k.dtype = DType::kF32; }, "k must be bf16[5,2,16], got fp32[5,2,16]");
  expect([](Args& a) { a.v.rank = 2; }, "v must be bf16[5,2,16]");
  expect([](Args& a) { a.v.strides[2] = 2; }, "v must have unit inner stride");
  expect([](Args& a) { a.q.strides[0] = 97; }, "stride 0 of 194 bytes is not a multiple of alignment=16");
  expect([](Args& a) { a.q.data = static_cast<char*>(a.q.data) + 2; }, "its address is not a multiple");
  expect([](Args& a) { a.q.strides[1] = -16; }, "q has a negative stride");
  expect([](Args& a) { a.out.strides[0] = 16; }, "out is written and its elements overlap");
  expect([](Args& a) { a.out.data = a.v.data; }, "out overlaps q");
  expect([](Args& a) { a.lse = {}; }, "lse must be fp32[5,2]");
  expect([](Args& a) { a.lse.data = a.out.data; }, "out overlaps lse");
}

TEST(VisionAttentionContract, TooSmallAWorkspaceIsRefusedBeforeAnythingIsWritten) {
  auto stream = MakeCpuStream(2);
  auto c = ParseCase("vision_attention heads=2 d=64 lens=100,7");
  const PreparedCase prepared = PreparedCase::Make(*c, stream->pool());
  auto plan = SequencePlan::Make(*stream, {c->line.lengths, {}, {}});
  for (const VisionBackend& b : Backends()) {
    if (!b.check(prepared.problem(), stream->device()).ok() || b.name == "reference") continue;
    PreparedCase::Tensors t = prepared.inputs();
    Args a = prepared.Views(t.q.view(), t.k.view(), t.v.view(), t.out.view(), t.lse.view());
    a.plan = &*plan;
    const size_t bytes = b.workspace_bytes(prepared.problem(), stream->device());
    ASSERT_GT(bytes, 0u);
    std::vector<char> memory(bytes);
    const Status s = b.run(*stream, prepared.problem(), a, {memory.data(), bytes - 1});
    EXPECT_EQ(s.code(), Code::kResource) << b.name;
    EXPECT_NE(s.message().find("bytes needed"), std::string::npos);
    EXPECT_EQ(t.out.CountNan(0, 107), 107 * 2 * 64);
  }
}

// No mask of tokens x tokens: a page of 65,536 tokens, or a million, needs what a small image needs.
TEST(VisionAttentionContract, MemoryIsLinearInTokensAtMost) {
  for (const VisionBackend& b : Backends()) {
    auto bytes = [&](const std::vector<int64_t>& lengths) {
      Problem p = Good();
      p.heads = 16;
      p.d = 128;
      SetLengths(p, lengths);
      return b.workspace_bytes(p, CpuDeviceInfo(64));
    };
    if (!b.check(Good(), CpuDeviceInfo(2)).ok()) continue;
    EXPECT_LT(bytes({65536}), size_t{64} << 20) << b.name;
    EXPECT_EQ(bytes({65536}), bytes({1 << 20})) << b.name;
    EXPECT_LT(bytes(std::vector<int64_t>(100000, 64)), size_t{64} << 20) << b.name;
  }
}

TEST(VisionAttentionContract, EmptyCallsAreLegal) {
  auto stream = MakeCpuStream(2);
  for (const char* line :
       {"vision_attention heads=2 d=64 lens=0", "vision_attention heads=2 d=64 lens=3x0 lse=1",
        "vision_attention heads=2 d=64 lens=0,0 padded=5 layout=qkv", "vision_attention heads=2 d=64 lens=0 extra=3"}) {
    auto c = ParseCase(line);
    ASSERT_TRUE(c.ok()) << c.status().message();
    const PreparedCase prepared = PreparedCase::Make(*c, stream->pool());
    for (const VisionBackend& b : Backends()) {
      if (!b.check(prepared.problem(), stream->device()).ok()) continue;
      const auto verdict = prepared.Check(*stream, b, PrecisionOf(b, prepared.problem().io));
      ASSERT_TRUE(verdict.ok()) << verdict.status().message();
      EXPECT_TRUE(verdict->passed) << line << ": " << verdict->why;
    }
  }
}

TEST(VisionAttentionSelection, NamesAreObeyed) {
  const Problem p = Good();
  const DeviceInfo cpu = CpuDeviceInfo(2);
  EXPECT_NE(Choose(p, cpu, "auto")->backend->name, "reference");
  EXPECT_EQ(Choose(p, cpu, "cpu")->backend->name, "cpu");
  EXPECT_EQ(Choose(p, cpu, "reference")->backend->name, "reference");
  EXPECT_EQ(Choose(p, cpu, "nonsense").status().code(), Code::kInvalidArgument);
  const Status refused = Choose(p, *AssumedDevice("sm_90"), "cpu").status();
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(refused.message().find("runs on the CPU only, the device is sm_90"), std::string::npos);
}

TEST(VisionAttentionSelection, CudaContractsAreTheSameInEveryBuild) {
  const DeviceInfo hopper = *AssumedDevice("sm_90"), blackwell = *AssumedDevice("sm_100"),
                   ada = *AssumedDevice("sm_120");
  auto refusal = [](const char* line, const DeviceInfo& device, std::string_view name) {
    const auto parsed = ParseProblemLine(line);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    for (const VisionBackend& b : Backends()) {
      if (b.name == name) return b.check(parsed->problem, device).reason();
    }
    return std::string("no such backend");
  };
  const char* good = "vision_attention heads=16 d=72 lens=1024,64";
  EXPECT_EQ(refusal(good, hopper, "cuda"), "");
  EXPECT_EQ(refusal(good, hopper, "cudnn"), "");
  EXPECT_EQ(refusal(good, blackwell, "cuda"), "needs sm_90, the device is sm_100");
  EXPECT_EQ(refusal(good, ada, "cudnn"), "");
  EXPECT_EQ(refusal("vision_attention heads=16 d=96 lens=64", hopper, "cuda"), "needs d = 64, 72, 80 or 128, got 96");
  EXPECT_EQ(refusal("vision_attention heads=16 d=96 lens=64", hopper, "cudnn"), "");
  EXPECT_EQ(refusal("vision_attention heads=16 io=fp16 lens=64", hopper, "cuda"), "needs io=bf16, got fp16");
  EXPECT_EQ(refusal("vision_attention heads=16 io=fp32 lens=64", hopper, "cudnn"), "needs io=bf16 or fp16, got fp32");
  EXPECT_EQ(refusal("vision_attention heads=16 d=76 lens=64", hopper, "cudnn"),
            "needs d a multiple of 8, at most 256 on sm_90, got 76");
  EXPECT_EQ(refusal("vision_attention heads=16 d=136 lens=64", blackwell, "cudnn"),
            "needs d a multiple of 8, at most 128 on sm_100, got 136");
  EXPECT_EQ(refusal("vision_attention heads=16 alignment=2 lens=64", hopper, "cuda"), "needs alignment=16, got 2");
  EXPECT_EQ(refusal("vision_attention heads=16 alignment=8 lens=64", hopper, "cudnn"), "needs alignment=16, got 8");
  EXPECT_NE(refusal("vision_attention heads=16 lens=70000x1", hopper, "cudnn").find("got 70000"), std::string::npos);
  EXPECT_NE(refusal("vision_attention heads=1 lens=2x2000000000", hopper, "cuda").find("rows, got 4000000000"),
            std::string::npos);
}

TEST(VisionAttentionSelection, CudnnWorkspaceHasABoundAndAnOverride) {
  auto bytes = [](const char* line) { return CudnnWorkspaceLimit(ParseProblemLine(line)->problem); };
  EXPECT_EQ(bytes("vision_attention heads=2 lens=8x64"), size_t{64} << 10);
  EXPECT_EQ(bytes("vision_attention heads=2 lens=1001x64"), WorkspaceBound(1008));
  EXPECT_EQ(bytes("vision_attention heads=2 lens=8x64 workspace_mb=128"), size_t{128} << 20);
  EXPECT_EQ(CudnnVersionText(91900), "9.19.0");
}

TEST(VisionAttentionSelection, QueriesPerBlockFollowTheWaves) {
  // 16 heads on 132 SMs: 22 x 16 tiles of 192 rows are 2.7 waves, 32 x 16 of 128 are 3.9.
  EXPECT_EQ(ChooseQueries(80, 4096, 1, 16, 4096, 132), 128);
  EXPECT_EQ(ChooseQueries(80, 16384, 1, 16, 16384, 132), 192);
  EXPECT_EQ(ChooseQueries(128, 16384, 1, 16, 16384, 132), 128);
}

TEST(VisionAttentionText, LinesRoundTrip) {
  const std::string text =
      "vision_attention heads=16 d=72 io=fp16 scale=0.125 lse=1 padded=4096 alignment=8 lens=3x1024,17 seed=9 "
      "fill=large layout=qkv pad=8 nan=1";
  auto c = ParseCase(text);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(FormatCase(*c), text);
  EXPECT_EQ(c->line.problem.tokens, 3 * 1024 + 17);
  EXPECT_EQ(c->line.problem.max_length, 1024);
  EXPECT_EQ(c->line.problem.pairs, 3 * 1024 * 1024 + 17 * 17);
  EXPECT_EQ(ParseProblemLine(FormatProblemLine(c->line))->problem, c->line.problem);
  EXPECT_EQ(ParseProblemLine("vision_attention heads=1 lens=1")->problem.scale, DefaultScale(80));
  Problem other = c->line.problem;
  other.scale = 0.25f;
  EXPECT_NE(other.Hash(), c->line.problem.Hash());
  EXPECT_FALSE(other == c->line.problem);
  for (const char* bad : {"", "attention heads=2 lens=1", "vision_attention lens=1", "vision_attention heads=2",
                          "vision_attention heads=2 lens=1 foo=1", "vision_attention heads=2 lens=1 scale=-1",
                          "vision_attention heads=2 lens=1 scale=x", "vision_attention heads=2 lens=1 lse=2",
                          "vision_attention heads=2 lens=-1", "vision_attention heads=2 d=300 lens=1",
                          "vision_attention heads=2 lens=5 padded=4", "vision_attention heads=99999999999 lens=1",
                          "vision_attention heads=2 lens=1 fill=x", "vision_attention heads=2 lens=1 nan=1",
                          "vision_attention heads=2 lens=1 padded=4 batch=1"}) {
    EXPECT_EQ(ParseCase(bad).status().code(), Code::kInvalidArgument) << bad;
  }
  // Lengths whose squares leave int64 stay an answer, not undefined behaviour.
  EXPECT_EQ(ParseProblemLine("vision_attention heads=1 lens=2x1000000000000")->problem.pairs, INT64_MAX);
}

}  // namespace
}  // namespace fluvial::ops::vision_attention
