// SPDX-License-Identifier: Apache-2.0
// The plan, the checks, selection and text forms of paged attention.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/paged_attention/test_kit.h"

namespace fluvial::ops::paged_attention {
namespace {

using test::Call;
using test::CallSetup;

Problem Good() {
  Problem p;
  p.hq = 4;
  p.hkv = 2;
  p.d_qk = 16;
  p.d_v = 24;
  return p;
}

TEST(KvPlanTest, HoldsWhatItWasGiven) {
  auto stream = MakeCpuStream(1);
  auto plan = KvPlan::Make(*stream, 16, {{3, 0, 20}, {14, 5, 0}, {{7, 3, 99}, {}, {4, 5}}});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->tokens(), 23);
  EXPECT_EQ(plan->sequences(), 3);
  EXPECT_EQ(plan->max_length(), 20);
  EXPECT_EQ(plan->max_kv_length(), 20);
  EXPECT_EQ(plan->max_page(), 7);  // 99 is beyond the sequence's end and left out
  EXPECT_EQ(plan->generation(), 1u);
  EXPECT_EQ(std::vector<int32_t>(plan->pages(0).begin(), plan->pages(0).end()), (std::vector<int32_t>{7, 3}));
  EXPECT_TRUE(plan->pages(1).empty());
  EXPECT_EQ(plan->device_header()->tokens, 23);
  EXPECT_EQ(plan->device_header()->table_pitch, 2);
  EXPECT_EQ(plan->device_offsets()[3], 23);
  EXPECT_EQ(plan->device_contexts()[0], 14);
  EXPECT_EQ(plan->device_page_table()[0], 7);
  EXPECT_EQ(plan->device_page_table()[2], -1);
  EXPECT_EQ(plan->device_page_table()[5], 5);
}

TEST(KvPlanTest, RefillKeepsAddressesAndCounts) {
  auto stream = MakeCpuStream(1);
  KvBounds bounds;
  bounds.page_size = 4;
  bounds.max_tokens = 8;
  bounds.max_sequences = 2;
  bounds.max_kv_length = 10;
  auto plan = KvPlan::Create(*stream, bounds);
  ASSERT_TRUE(plan.ok());
  const int32_t* table = plan->device_page_table();
  ASSERT_TRUE(plan->Refill(*stream, {{1, 2}, {0, 8}, {{0}, {1, 2, 3}}}).ok());
  ASSERT_TRUE(plan->Refill(*stream, {{1}, {9}, {{3, 2, 1}}}).ok());
  EXPECT_EQ(plan->generation(), 2u);
  EXPECT_EQ(plan->device_page_table(), table);
  EXPECT_EQ(table[0], 3);
  EXPECT_EQ(plan->sequences(), 1);
  // A refusal leaves the plan as it was.
  EXPECT_FALSE(plan->Refill(*stream, {{1}, {10}, {{3, 2, 1}}}).ok());
  EXPECT_EQ(plan->generation(), 2u);
  EXPECT_EQ(table[0], 3);
}

TEST(KvPlanTest, BadSpecsAreRefusedWithAReason) {
  auto stream = MakeCpuStream(1);
  auto expect = [&](const KvSpec& spec, Code code, std::string_view text) {
    KvBounds bounds;
    bounds.page_size = 4;
    bounds.max_tokens = 20;
    bounds.max_sequences = 2;
    bounds.max_kv_length = 16;
    auto plan = KvPlan::Create(*stream, bounds);
    ASSERT_TRUE(plan.ok());
    const Status s = plan->Refill(*stream, spec);
    EXPECT_EQ(s.code(), code) << s.message();
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect({{1}, {}, {{0}}}, Code::kInvalidArgument, "1 lengths, 0 contexts and 1 page tables");
  expect({{1, 1, 1}, {0, 0, 0}, {{0}, {1}, {2}}}, Code::kResource, "3 sequences, but its capacity is 2");
  expect({{-1}, {0}, {{0}}}, Code::kInvalidArgument, "length -1");
  expect({{1}, {-4}, {{0}}}, Code::kInvalidArgument, "context -4");
  expect({{1}, {16}, {{0, 1, 2, 3, 4}}}, Code::kResource, "16 + 1 tokens");
  expect({{1}, {INT64_MAX}, {{0}}}, Code::kResource, "capacity is 16");
  expect({{12, 12}, {0, 0}, {{0, 1, 2}, {3, 4, 5}}}, Code::kResource, "24 new tokens, but the capacity is 20");
  expect({{5}, {0}, {{0}}}, Code::kInvalidArgument, "1 pages, but 5 tokens need 2 pages of 4");
  expect({{1}, {4}, {{0, -1}}}, Code::kInvalidArgument, "page -1 at index 1");
  expect({{1, 1}, {0, 0}, {{3}, {3}}}, Code::kInvalidArgument, "page 3 is written by sequences 0 and 1");
  expect({{5}, {0}, {{3, 3}}}, Code::kInvalidArgument, "page 3 is written by sequences 0 and 0");
  expect({{1, 1}, {0, 4}, {{3}, {3, 4}}}, Code::kInvalidArgument, "page 3 is read by sequence 1 while sequence 0");
  // Pages that are only read may be shared; empty sequences may name anything.
  KvSpec shared{{1, 1}, {4, 4}, {{3, 4}, {3, 5}}};
  EXPECT_TRUE(KvPlan::Make(*stream, 4, shared).ok());
  EXPECT_TRUE(KvPlan::Make(*stream, 4, {{0, 0}, {4, 4}, {{}, {-9}}}).ok());
  EXPECT_FALSE(KvPlan::Make(*stream, 0, shared).ok());
  EXPECT_FALSE(KvPlan::Make(*stream, 1025, shared).ok());
}

TEST(PagedAttentionContract, BadProblemsNameTheField) {
  ASSERT_TRUE(Validate(Good()).ok());
  auto expect = [](auto change, std::string_view text) {
    Problem p = Good();
    change(p);
    const Status s = Validate(p);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Problem& p) { p.hkv = 0; }, "hkv is 0");
  expect([](Problem& p) { p.hq = 5; }, "hq is 5, it must be a multiple of hkv 2");
  expect([](Problem& p) { p.d_qk = 0; }, "d_qk is 0, it must be 1..640");
  expect([](Problem& p) { p.d_v = 641; }, "d_v is 641");
  expect([](Problem& p) { p.page_size = 2048; }, "page_size is 2048");
  expect([](Problem& p) { p.io = DType::kI32; }, "io is i32");
  expect([](Problem& p) { p.kv = DType::kF8E4M3; }, "kv is fp8_e4m3");
  expect([](Problem& p) { p.scale = -1; }, "scale is -1");
  expect([](Problem& p) { p.scale = NAN; }, "scale is nan");
  expect([](Problem& p) { p.tokens = -1; }, "negative");
}

TEST(PagedAttentionContract, BadArgsNameTheTensor) {
  auto stream = MakeCpuStream(1);
  CallSetup s;
  s.problem = Good();
  s.problem.io = s.problem.kv = DType::kF32;
  s.problem.lse = true;
  s.lengths = {3, 2};
  s.contexts = {20, 0};
  Call call(s);
  auto plan = KvPlan::Make(*stream, 16, call.spec);
  ASSERT_TRUE(plan.ok());
  call.args.plan = call.append.plan = &*plan;
  ASSERT_TRUE(Validate(call.problem, call.args).ok());
  ASSERT_TRUE(Validate(call.problem, call.append).ok());
  auto expect = [&](auto change, std::string_view text) {
    Args a = call.args;
    change(a);
    const Status status = Validate(call.problem, a);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  expect([](Args& a) { a.plan = nullptr; }, "no plan");
  expect([](Args& a) { a.q.dims[1] = 3; }, "q must be fp32[5,4,16], got fp32[5,3,16]");
  expect([](Args& a) { a.q.strides[2] = 2; }, "unit inner stride");
  expect([](Args& a) { a.out.dtype = DType::kBF16; }, "out must be fp32[5,4,24], got bf16[5,4,24]");
  expect([](Args& a) { a.out.data = a.q.data; }, "out overlaps q");
  expect([](Args& a) { a.out.data = static_cast<char*>(a.v_pages.data) + 64; }, "out overlaps v_pages");
  expect([](Args& a) { a.lse = {}; }, "lse must be fp32[5,4]");
  expect([](Args& a) { a.k_pages.dims[2] = 8; }, "k_pages must be");
  expect([](Args& a) { a.v_pages.dims[0] = 2; }, "v_pages must be");
  expect([](Args& a) { a.k_pages.dims[0] = a.v_pages.dims[0] = 1; }, "but the cache has 1 pages");
  Problem other = call.problem;
  other.page_size = 32;
  EXPECT_NE(Validate(other, call.args).message().find("pages of 16 tokens, the problem says 32"), std::string::npos);
  other = call.problem;
  other.max_kv_length = 22;
  EXPECT_NE(Validate(other, call.args).message().find("23 keys, the problem says at most 3 and 22"), std::string::npos);
  AppendArgs append = call.append;
  append.v.dims[2] = 23;
  EXPECT_NE(Validate(call.problem, append).message().find("v must be fp32[5,2,24]"), std::string::npos);
}

TEST(PagedAttentionContract, TooSmallAWorkspaceIsRefusedBeforeAnythingIsWritten) {
  auto stream = MakeCpuStream(2);
  CallSetup s;
  s.problem = Good();
  s.lengths = {3};
  s.contexts = {5000};
  Call call(s);
  auto plan = KvPlan::Make(*stream, 16, call.spec);
  ASSERT_TRUE(plan.ok());
  call.args.plan = &*plan;
  const AttentionBackend& cpu = Backends().front();
  const size_t bytes = cpu.workspace_bytes(call.problem, stream->device());
  ASSERT_GT(bytes, 0u);
  std::vector<char> memory(bytes);
  const std::vector<char> before = call.out;
  const Status status = cpu.run(*stream, call.problem, call.args, {memory.data(), bytes - 1});
  EXPECT_EQ(status.code(), Code::kResource);
  EXPECT_NE(status.message().find("bytes needed"), std::string::npos);
  EXPECT_TRUE(call.out == before);
  EXPECT_TRUE(cpu.run(*stream, call.problem, call.args, {memory.data(), bytes}).ok());
}

TEST(PagedAttentionContract, WorkspaceDoesNotGrowWithTheSquareOfTheTokens) {
  const AttentionBackend& cpu = Backends().front();
  const DeviceInfo device = CpuDeviceInfo(64);
  auto bytes = [&](int64_t tokens, int64_t context) {
    Problem p = Good();
    p.d_qk = p.d_v = 128;
    SetLengths(p, std::vector<int64_t>{tokens}, std::vector<int64_t>{context});
    return cpu.workspace_bytes(p, device);
  };
  EXPECT_LT(bytes(1 << 20, 0), size_t{64} << 20);
  EXPECT_LT(bytes(1, 1 << 20), size_t{192} << 20);  // spans of shared rows have a budget
}

TEST(PagedAttentionContract, EmptyStepsAreLegal) {
  auto stream = MakeCpuStream(2);
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {0}, {0, 0, 0}}) {
    CallSetup s;
    s.problem = Good();
    s.lengths = lengths;
    s.contexts.assign(lengths.size(), 7);
    Call call(s);
    for (const AttentionBackend& b : Backends()) EXPECT_TRUE(Execute(*stream, b, call).ok()) << b.name;
    EXPECT_TRUE(Append(*stream, call).ok());
  }
}

TEST(PagedAttentionSelection, AutoTakesCpuAndNamesAreObeyed) {
  Problem p = Good();
  SetLengths(p, std::vector<int64_t>{100}, std::vector<int64_t>{0});
  const DeviceInfo cpu = CpuDeviceInfo(2);
  EXPECT_EQ(Choose(p, cpu, "auto")->backend->name, "cpu");
  EXPECT_EQ(Choose(p, cpu, "reference")->backend->name, "reference");
  EXPECT_EQ(Choose(p, cpu, "nonsense").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Choose(p, *AssumedDevice("sm_90"), "cpu").status().code(), Code::kRefused);
  // The eager cadence has only the reference; asked for by name, cpu says so instead of rounding otherwise.
  p.rounding = Rounding::kEager;
  EXPECT_EQ(Choose(p, cpu, "auto")->backend->name, "reference");
  const Status refused = Choose(p, cpu, "cpu").status();
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_NE(refused.message().find("backends that can: reference"), std::string::npos) << refused.message();
}

TEST(PagedAttentionText, LinesRoundTrip) {
  const std::string text =
      "paged_attention hq=16 hkv=2 dqk=192 dv=128 page=64 io=bf16 kv=fp16 scale=0.125 lse=1 rounding=eager lens=3x1,17 "
      "ctx=3x1024,0 seed=9";
  auto line = ParseProblemLine(text);
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(FormatProblemLine(*line), text);
  EXPECT_EQ(line->problem.tokens, 20);
  EXPECT_EQ(line->problem.max_kv_length, 1025);
  EXPECT_EQ(line->problem.pairs, 3 * 1025 + 17 * 18 / 2);
  EXPECT_EQ(ParseProblemLine(FormatProblemLine(*line))->problem, line->problem);
  EXPECT_NE(line->problem.Hash(), Good().Hash());
  for (const char* bad :
       {"", "attention hq=2", "paged_attention hq=0", "paged_attention hq=3 hkv=2", "paged_attention hq=2 foo=1",
        "paged_attention hq=2 lens=1,2 ctx=1", "paged_attention hq=2 lse=2", "paged_attention hq=2 rounding=never",
        "paged_attention hq=2 scale=x"}) {
    EXPECT_EQ(ParseProblemLine(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace fluvial::ops::paged_attention
