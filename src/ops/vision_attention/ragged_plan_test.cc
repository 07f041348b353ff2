// SPDX-License-Identifier: Apache-2.0
// The layout plans for cuDNN: host arithmetic, so no GPU is needed.
#include "ops/vision_attention/ragged_plan.h"

#include <gtest/gtest.h>

#include <cstring>

namespace fluvial::ops::vision_attention {
namespace {

using Lengths = std::vector<int64_t>;

// 16 heads of 80: q, k and out packed, v a view of a packed [T, 3, H, D] buffer.
constexpr TokenStrides kQwen = {1280, 1280, 3840, 1280, 0};
constexpr RaggedRules kCareful = {};

std::vector<int32_t> DeviceOffsets(const RaggedPlan& plan, Section section) {
  EXPECT_EQ(plan.offset_type(), DType::kI32);
  std::vector<int32_t> out(static_cast<size_t>(plan.batch()) + 1);
  std::memcpy(out.data(), plan.device_offsets(section), out.size() * 4);
  return out;
}

TEST(RaggedPlanTest, SectionsCountElementsOfTheirTensors) {
  auto stream = MakeCpuStream(1);
  auto plan = RaggedPlan::Make(*stream, Lengths{1024, 4096, 256}, 0, kQwen, kCareful);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->batch(), 8);
  EXPECT_EQ(plan->max_length(), 4096);
  EXPECT_EQ(plan->sequences(), 3);
  EXPECT_EQ(plan->tokens(), 5376);
  EXPECT_FALSE(plan->dense());
  EXPECT_EQ(std::vector<int32_t>(plan->lengths().begin(), plan->lengths().end()),
            (std::vector<int32_t>{1024, 4096, 256, 0, 0, 0, 0, 0}));
  const int32_t e = 5376 * 1280;
  const std::vector<int32_t> packed = {0, 1024 * 1280, 5120 * 1280, e, e, e, e, e, e};
  std::vector<int32_t> view = packed;
  for (int32_t& x : view) x *= 3;
  EXPECT_EQ(DeviceOffsets(*plan, Section::kQ), packed);
  EXPECT_EQ(DeviceOffsets(*plan, Section::kK), packed);
  EXPECT_EQ(DeviceOffsets(*plan, Section::kV), view);
  EXPECT_EQ(DeviceOffsets(*plan, Section::kOut), packed);
  EXPECT_EQ(plan->offsets(Section::kV)[2], int64_t{5120} * 3840);
  // Equal strides share one copy.
  EXPECT_EQ(plan->device_offsets(Section::kQ), plan->device_offsets(Section::kOut));
  EXPECT_NE(plan->device_offsets(Section::kQ), plan->device_offsets(Section::kV));
  std::vector<int32_t> device(8);
  std::memcpy(device.data(), plan->device_lengths(), 32);
  EXPECT_EQ(device[1], 4096);
}

TEST(RaggedPlanTest, TokenUnitsArePrefixSumsForAll) {
  auto stream = MakeCpuStream(1);
  RaggedRules rules;
  rules.token_units = true;
  auto plan = RaggedPlan::Make(*stream, Lengths{3, 5}, 0, kQwen, rules);
  ASSERT_TRUE(plan.ok());
  const std::vector<int32_t> sums = {0, 3, 8, 8, 8, 8, 8, 8, 8};
  EXPECT_EQ(DeviceOffsets(*plan, Section::kQ), sums);
  EXPECT_EQ(plan->device_offsets(Section::kV), plan->device_offsets(Section::kQ));
  EXPECT_EQ(plan->Multiplier(Section::kV), 3840);
  EXPECT_EQ(plan->Multiplier(Section::kOut), 1280);
}

TEST(RaggedPlanTest, BatchAndLengthRoundUp) {
  for (const auto& [n, want] : std::vector<std::pair<int64_t, int64_t>>{{0, 8},
                                                                        {1, 8},
                                                                        {8, 8},
                                                                        {9, 16},
                                                                        {17, 32},
                                                                        {33, 64},
                                                                        {64, 64},
                                                                        {65, 72},
                                                                        {216, 216},
                                                                        {217, 224},
                                                                        {4001, 4008}}) {
    EXPECT_EQ(RoundBatch(n), want) << n;
  }
  for (const auto& [n, want] : std::vector<std::pair<int64_t, int64_t>>{{0, 1},
                                                                        {64, 64},
                                                                        {128, 128},
                                                                        {129, 1024},
                                                                        {1024, 1024},
                                                                        {1025, 2048},
                                                                        {65536, 65536},
                                                                        {65537, 131072},
                                                                        {131073, 262144},
                                                                        {262145, 393216}}) {
    EXPECT_EQ(RoundLength(n), want) << n;
  }
  auto stream = MakeCpuStream(1);
  RaggedRules exact;
  exact.round_batch = exact.round_length = false;
  auto plan = RaggedPlan::Make(*stream, Lengths{300, 1500}, 0, kQwen, exact);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->batch(), 2);
  EXPECT_EQ(plan->max_length(), 1500);
}

TEST(RaggedPlanTest, EmptySequencesAreLeftOutWhereTheLibraryCannotTakeThem) {
  auto stream = MakeCpuStream(1);
  const Lengths lengths = {0, 7, 0, 0, 9, 0};
  auto plan = RaggedPlan::Make(*stream, lengths, 0, kQwen, kCareful);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->sequences(), 2);
  EXPECT_EQ(plan->offsets(Section::kQ),
            (Lengths{0, 7 * 1280, 16 * 1280, 16 * 1280, 16 * 1280, 16 * 1280, 16 * 1280, 16 * 1280, 16 * 1280}));
  RaggedRules rules;
  rules.drop_empty = false;
  auto kept = RaggedPlan::Make(*stream, lengths, 0, kQwen, rules);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->sequences(), 6);
  EXPECT_EQ(kept->lengths()[0], 0);
  EXPECT_EQ(kept->offsets(Section::kQ)[2], 7 * 1280);
  // Nothing at all is a plan as well.
  for (const Lengths& none : {Lengths{}, Lengths{0}, Lengths{0, 0, 0}}) {
    auto empty = RaggedPlan::Make(*stream, none, 0, kQwen, kCareful);
    ASSERT_TRUE(empty.ok()) << empty.status().message();
    EXPECT_EQ(empty->sequences(), 0);
    EXPECT_EQ(empty->batch(), 8);
    EXPECT_FALSE(empty->dense());
    EXPECT_EQ(empty->offsets(Section::kV), Lengths(9, 0));
  }
}

TEST(RaggedPlanTest, EqualLengthsAreADenseBatchUnlessBounded) {
  auto stream = MakeCpuStream(1);
  auto plan = RaggedPlan::Make(*stream, Lengths(216, 64), 0, kQwen, kCareful);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->dense());
  EXPECT_EQ(plan->batch(), 216);
  EXPECT_EQ(plan->max_length(), 64);
  RaggedRules never;
  never.dense_when_equal = false;
  EXPECT_FALSE(RaggedPlan::Make(*stream, Lengths(216, 64), 0, kQwen, never)->dense());
  auto bounded =
      RaggedPlan::Create(*stream, {.max_tokens = 1000, .max_sequences = 9, .max_length = 500}, kQwen, kCareful);
  ASSERT_TRUE(bounded.ok());
  ASSERT_TRUE(bounded->Refill(*stream, Lengths(3, 64)).ok());
  EXPECT_FALSE(bounded->dense());
  EXPECT_TRUE(bounded->bounded());
  EXPECT_EQ(bounded->batch(), 16);
  EXPECT_EQ(bounded->max_length(), 1024);
}

TEST(RaggedPlanTest, PaddedTensorsStartWhereTheirRowsAre) {
  auto stream = MakeCpuStream(1);
  auto plan = RaggedPlan::Make(*stream, Lengths{3, 0, 5}, 10, {2, 2, 6, 2, 4}, kCareful);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->offsets(Section::kQ), (Lengths{0, 40, 50, 50, 50, 50, 50, 50, 50}));
  EXPECT_EQ(plan->offsets(Section::kV), (Lengths{0, 120, 150, 150, 150, 150, 150, 150, 150}));
  EXPECT_EQ(plan->offsets(Section::kLse), (Lengths{0, 80, 100, 100, 100, 100, 100, 100, 100}));
}

TEST(RaggedPlanTest, RefillKeepsAddressesAndDeclaredSizes) {
  auto stream = MakeCpuStream(1);
  auto plan = RaggedPlan::Create(*stream, {.max_tokens = 100, .max_sequences = 3, .max_length = 60}, kQwen, kCareful);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->generation(), 0u);
  const void* lengths = plan->device_lengths();
  const void* offsets = plan->device_offsets(Section::kV);
  ASSERT_TRUE(plan->Refill(*stream, Lengths{60, 40}).ok());
  EXPECT_EQ(plan->generation(), 1u);
  ASSERT_TRUE(plan->Refill(*stream, Lengths{1, 2, 3}).ok());
  EXPECT_EQ(plan->generation(), 2u);
  EXPECT_EQ(plan->device_lengths(), lengths);
  EXPECT_EQ(plan->device_offsets(Section::kV), offsets);
  EXPECT_EQ(plan->batch(), 8);
  EXPECT_EQ(plan->max_length(), 60);
  EXPECT_EQ(DeviceOffsets(*plan, Section::kV)[3], 6 * 3840);
  auto expect = [&](const Lengths& bad, Code code, std::string_view text) {
    const Status s = plan->Refill(*stream, bad);
    EXPECT_EQ(s.code(), code);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
    EXPECT_EQ(plan->generation(), 2u);
    EXPECT_EQ(DeviceOffsets(*plan, Section::kV)[3], 6 * 3840);
  };
  expect({1, 1, 1, 1}, Code::kResource, "4 sequences, but its capacity is 3");
  expect({61}, Code::kResource, "sequence 0 has 61 tokens, but its capacity is 60");
  expect({60, 41}, Code::kResource, "101 tokens, but its capacity is 100");
  expect({5, -1}, Code::kInvalidArgument, "sequence 1 has length -1");
}

TEST(RaggedPlanTest, OffsetsGrowTo64BitsWhenTheTensorsDo) {
  auto stream = MakeCpuStream(1);
  // 600,000 rows of 3840 elements end beyond 2^31.
  auto plan = RaggedPlan::Make(*stream, Lengths{400000, 200000}, 0, kQwen, kCareful);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->offset_type(), DType::kI64);
  int64_t second = 0;
  std::memcpy(&second, static_cast<const char*>(plan->device_offsets(Section::kV)) + 8, 8);
  EXPECT_EQ(second, int64_t{400000} * 3840);
  RaggedRules rules;
  rules.token_units = true;
  EXPECT_EQ(RaggedPlan::Make(*stream, Lengths{400000, 200000}, 0, kQwen, rules)->offset_type(), DType::kI32);
  EXPECT_FALSE(RaggedPlan::Make(*stream, Lengths{INT32_MAX}, 0, {INT64_MAX / 4, 1, 1, 1, 0}, kCareful).ok());
  EXPECT_FALSE(RaggedPlan::Make(*stream, Lengths{1}, 0, {0, 1, 1, 1, 0}, kCareful).ok());
  EXPECT_FALSE(RaggedPlan::Make(*stream, Lengths{int64_t{1} << 31}, 0, kQwen, kCareful).ok());
}

TEST(RaggedPlanTest, RulesFallAwayAsTheLibraryLearns) {
  const RaggedRules unknown = RaggedRules::For(0, 0), hopper = RaggedRules::For(91900, 13200);
  EXPECT_EQ(unknown, hopper);
  EXPECT_TRUE(hopper.round_batch && hopper.round_length && hopper.drop_empty && !hopper.token_units);
  EXPECT_TRUE(RaggedRules::For(92400, 12500).token_units);
  EXPECT_FALSE(RaggedRules::For(92400, 12400).token_units);
  EXPECT_TRUE(RaggedRules::For(92400, 13200).drop_empty);
  EXPECT_FALSE(RaggedRules::For(92500, 13200).drop_empty);
}

TEST(RaggedPlanTest, WorkspaceBoundCountsDescriptors) {
  EXPECT_EQ(WorkspaceBound(8), 4u * 8 * 128 + 20);
  EXPECT_EQ(WorkspaceBound(0), 20u);
}

}  // namespace
}  // namespace fluvial::ops::vision_attention
