// SPDX-License-Identifier: Apache-2.0
// The contract of moe without numbers: problem lines, refusals, choice.
#include <gtest/gtest.h>

#include "ops/moe/test_kit.h"

namespace fluvial::ops::moe {
namespace {

using test::Case;
using test::Make;
using test::Storage;

Problem Small() { return Make(3, 4, 2, 8, 6, DType::kF32, DType::kF32); }

TEST(MoeContract, ProblemLinesRoundTrip) {
  for (const char* line :
       {"moe m=64 e=64 top=8 h=2048 i=1024 io=bf16 w=bf16", "moe m=0 e=1 top=1 h=1 i=1 io=fp32 w=fp16",
        "moe m=1 e=288 top=8 h=4096 i=1536 io=bf16 w=fp32 gate_up=input down=input limit=10"}) {
    auto parsed = ParseProblemLine(line);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->problem.ToString(), line);
    auto again = ParseProblemLine(parsed->problem.ToString() + " seed=9");
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->problem, parsed->problem);
    EXPECT_EQ(again->problem.Hash(), parsed->problem.Hash());
    EXPECT_EQ(again->seed, 9u);
  }
  Problem a = Small();
  for (int field = 0; field < 9; ++field) {
    Problem b = a;
    if (field == 0) b.tokens = 4;
    if (field == 1) b.experts = 5;
    if (field == 2) b.per_token = 1;
    if (field == 3) b.hidden = 9;
    if (field == 4) b.inter = 7;
    if (field == 5) b.io = DType::kBF16;
    if (field == 6) b.w = DType::kF16;
    if (field == 7) b.gate_up = Layout::kInputMajor;
    if (field == 8) b.limit = 2;
    EXPECT_NE(a, b) << field;
    EXPECT_NE(a.Hash(), b.Hash()) << field;
    EXPECT_NE(a.ToString(), b.ToString()) << field;
  }
}

TEST(MoeContract, BadLines) {
  for (const auto& [line, what] : {std::pair{"gemm m=1", "not a moe line"},
                                   {"moe m=1 e=0 top=1 h=8 i=8", "e=0"},
                                   {"moe m=1 e=4 top=5 h=8 i=8", "top=5"},
                                   {"moe m=1 e=99999999999 top=1 h=8 i=8", "e=99999999999"},
                                   {"moe m=-1 e=4 top=1 h=8 i=8", "m=-1"},
                                   {"moe e=4 top=1 h=8 i=8", "m=-1"},
                                   {"moe m=1 e=4 top=1 h=0 i=8", "h=0"},
                                   {"moe m=1 e=4 top=1 h=8 i=8 io=i8", "io is i8"},
                                   {"moe m=1 e=4 top=1 h=8 i=8 gate_up=diagonal", "use output or input"},
                                   {"moe m=1 e=4 top=1 h=8 i=8 limit=-1", "limit=-1"},
                                   {"moe m=1 e=4 top=1 h=8 i=8 color=red", "color"}}) {
    const auto parsed = ParseProblemLine(line);
    ASSERT_FALSE(parsed.ok()) << line;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(what), std::string::npos) << parsed.status().message();
  }
}

TEST(MoeContract, ArgsThatDoNotFit) {
  auto stream = MakeCpuStream(1);
  Case c(Small(), Storage::kSeparate);
  c.Fill(c.x, [] { return 1.0; });
  for (auto& t : c.tensors) c.Fill(t, [] { return 1.0; });
  c.Fill(c.weights, [] { return 1.0; });
  for (int64_t t = 0; t < 3; ++t) c.Id(t, 0) = 0, c.Id(t, 1) = 3;
  const auto refused = [&](const Args& a, const char* what) {
    for (const MoeBackend& b : Backends()) {
      const Status s = c.Run(b.name, *stream, a);
      EXPECT_EQ(s.code(), Code::kInvalidArgument) << b.name << " " << what;
      EXPECT_NE(s.message().find(what), std::string::npos) << s.message();
    }
  };
  for (const MoeBackend& b : Backends()) EXPECT_TRUE(c.Run(b.name, *stream).ok());
  Args a = c.args();
  a.x.dtype = DType::kBF16;
  refused(a, "x must be fp32[3,8]");
  a = c.args();
  a.y.dims[0] = 2;
  refused(a, "y must be fp32[3,8]");
  a = c.args();
  a.y.data = a.x.as<float>() + 1;
  refused(a, "overlaps");
  a = c.args();
  a.ids.dtype = DType::kI64;
  refused(a, "ids must be i32[3,2]");
  a = c.args();
  a.x.strides[0] = 4;
  refused(a, "row pitch");
  a = c.args();
  a.experts = a.experts.first(3);
  refused(a, "weights of 3 experts");
  for (int which = 0; which < 6; ++which) {
    std::vector<ExpertWeights> experts = c.experts;
    if (which == 0) experts[2].gate.dims[0] = 5;
    if (which == 1) experts[2].up.data = nullptr;
    if (which == 2) std::swap(experts[2].down.strides[0], experts[2].down.strides[1]);
    if (which == 3) experts[2].down.dtype = DType::kF16;
    if (which == 4) experts[2].gate.data = static_cast<char*>(experts[2].gate.data) + 1;
    if (which == 5) experts[2].up.strides[0] = 7;
    a = c.args();
    a.experts = experts;
    refused(a, "of expert 2");
  }
  // An id that no expert has: found while running.
  c.Id(1, 1) = 4;
  refused(c.args(), "ids[1,1]=4");
}

TEST(MoeContract, WorkspaceTooSmallIsAnErrorWithBothNumbers) {
  auto stream = MakeCpuStream(2);
  Case c(Small());
  auto choice = Choose(c.p, stream->device(), "cpu");
  ASSERT_TRUE(choice.ok());
  const size_t bytes = choice->backend->workspace_bytes(c.p, stream->device());
  std::vector<char> room(bytes);
  const Status s = choice->backend->run(*stream, c.p, c.args(), {room.data(), bytes - Arena::kAlignment});
  EXPECT_EQ(s.code(), Code::kResource);
  EXPECT_NE(s.message().find(std::to_string(bytes)), std::string::npos) << s.message();
}

TEST(MoeContract, WorkspaceCoversSmallerProblems) {
  const DeviceInfo device = CpuDeviceInfo(4);
  const MoeBackend& cpu = Backends()[0];
  Problem p = Make(1500, 16, 4, 64, 32, DType::kBF16, DType::kBF16);
  const size_t whole = cpu.workspace_bytes(p, device);
  for (const int64_t tokens : {0, 1, 7, 100, 1024}) {
    p.tokens = tokens;
    EXPECT_LE(cpu.workspace_bytes(p, device), whole);
  }
  // Bounded: a hundred times the tokens need no more.
  p.tokens = 150000;
  EXPECT_EQ(cpu.workspace_bytes(p, device), whole);
}

TEST(MoeContract, Selection) {
  const DeviceInfo cpu = CpuDeviceInfo(2);
  auto automatic = Choose(Small(), cpu, "auto");
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic->backend->name, "cpu");
  EXPECT_EQ(Backends().back().name, "reference");
  auto hopper = AssumedDevice("sm_90");
  ASSERT_TRUE(hopper.ok());
  const auto refused = Choose(Small(), *hopper, "cpu");
  EXPECT_EQ(refused.status().code(), Code::kRefused);
  EXPECT_NE(refused.status().message().find("the device is sm_90"), std::string::npos) << refused.status().message();
  EXPECT_EQ(Choose(Small(), cpu, "turbo").status().code(), Code::kInvalidArgument);
}

TEST(MoeContract, CostFollowsTheActiveExperts) {
  const DeviceInfo device = CpuDeviceInfo(1);
  const MoeBackend& cpu = Backends()[0];
  const auto cost = [&](int64_t tokens, int32_t experts) {
    return cpu.cost_us(Make(tokens, experts, 8, 2048, 512, DType::kBF16, DType::kBF16), device);
  };
  // One token names 8 experts, whatever there are.
  EXPECT_NEAR(cost(1, 512) / cost(1, 64), 1, 0.01);
  EXPECT_GT(cost(64, 64), 6 * cost(1, 64));
}

TEST(MoeContract, StackedExpertsPointIntoTheirTensors) {
  std::vector<float> gate_up(2 * 8 * 3), down(2 * 3 * 4);
  const auto out = StackedExperts(TensorView(gate_up.data(), DType::kF32, {2, 8, 3}), Layout::kOutputMajor,
                                  TensorView(down.data(), DType::kF32, {2, 3, 4}), Layout::kOutputMajor);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[1].gate.data, gate_up.data() + 24);
  EXPECT_EQ(out[1].up.data, gate_up.data() + 36);
  EXPECT_EQ(out[1].down.data, down.data() + 12);
  EXPECT_EQ(out[1].down.ToString(), "fp32[3,4]");
  const auto in = StackedExperts(TensorView(gate_up.data(), DType::kF32, {2, 3, 8}), Layout::kInputMajor,
                                 TensorView(down.data(), DType::kF32, {2, 4, 3}), Layout::kInputMajor);
  EXPECT_EQ(in[1].gate.data, gate_up.data() + 24);
  EXPECT_EQ(in[1].up.data, gate_up.data() + 28);
  EXPECT_EQ(in[1].up.ToString(), "fp32[4,3] strides [1,8]");
  EXPECT_EQ(in[1].down.ToString(), "fp32[3,4] strides [1,3]");
}

}  // namespace
}  // namespace fluvial::ops::moe
