// SPDX-License-Identifier: Apache-2.0
// Parameters, history, the generator, and every processor by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "ops/sampling/philox.h"
#include "ops/sampling/sampling.h"

namespace fluvial::ops::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<double> Reference(const Row& row, int64_t vocab) {
  std::vector<double> p(static_cast<size_t>(vocab));
  EXPECT_EQ(ReferenceProbabilities(row, vocab, p), Verdict::kOk);
  return p;
}

std::vector<int32_t> Support(const std::vector<double>& p) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// Vectors published with the Random123 library (kat_vectors, philox4x32 10 rounds).
TEST(Philox, KnownAnswers) {
  using A4 = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (A4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (A4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (A4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformUsesBothHalvesOfSeedAndPosition) {
  const double base = Uniform(1, 1);
  for (double other : {Uniform(2, 1), Uniform(1, 2), Uniform((1ull << 32) + 1, 1), Uniform(1, (1ull << 32) + 1)}) {
    EXPECT_NE(base, other);
  }
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(Uniform(7, i), 0.0);
    EXPECT_LT(Uniform(7, i), 1.0);
  }
}

TEST(Params, BadOnesNameParameterAndRange) {
  EXPECT_TRUE(Validate(Params{}, 10).ok());
  auto expect = [](auto change, std::string_view text) {
    Params p;
    change(p);
    const Status s = Validate(p, 10);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Params& p) { p.temperature = -0.1f; }, "temperature is -0.1, it must be from 0 (greedy) to 100");
  expect([](Params& p) { p.temperature = kNan; }, "temperature is nan");
  expect([](Params& p) { p.temperature = kInf; }, "temperature is inf");
  expect([](Params& p) { p.top_k = -2; }, "top_k is -2, it must be at least 1, or 0 or -1 for no limit");
  expect([](Params& p) { p.top_p = 0; }, "top_p is 0, it must be above 0 and at most 1");
  expect([](Params& p) { p.top_p = 1.01f; }, "top_p is 1.01");
  expect([](Params& p) { p.top_p = kNan; }, "top_p is nan");
  expect([](Params& p) { p.min_p = -0.5f; }, "min_p is -0.5, it must be from 0 to 1");
  expect([](Params& p) { p.repetition_penalty = 0; }, "repetition_penalty is 0");
  expect([](Params& p) { p.presence_penalty = 2.5f; }, "presence_penalty is 2.5, it must be from -2 to 2");
  expect([](Params& p) { p.frequency_penalty = -3; }, "frequency_penalty is -3");
  expect([](Params& p) { p.logprobs = -2; }, "logprobs is -2");
  expect([](Params& p) { p.logprobs = kMaxLogprobs + 1; }, "logprobs is 1025");
  expect([](Params& p) { p.logit_bias = {{10, 1.0f}}; }, "logit_bias has token 10, it must be 0 to 9");
  expect([](Params& p) { p.logit_bias = {{-1, 1.0f}}; }, "logit_bias has token -1");
  expect([](Params& p) { p.logit_bias = {{3, 101.0f}}; }, "logit_bias of token 3 is 101, it must be from -100 to 100");
  expect([](Params& p) { p.logit_bias = {{3, 1.0f}, {3, 2.0f}}; }, "token 3 is given twice");
}

TEST(History, CountsDistinctIds) {
  TokenHistory h;
  const std::vector<int32_t> prompt = {5, 7, 5};
  h.AddPrompt(prompt);
  h.AddOutput(7);
  h.AddOutput(9);
  h.AddOutput(7);
  ASSERT_EQ(h.entries().size(), 3u);
  EXPECT_EQ(h.entries()[0].id, 5);
  EXPECT_EQ(h.entries()[0].output_count, 0);
  EXPECT_EQ(h.entries()[1].output_count, 2);
  EXPECT_EQ(h.entries()[2].output_count, 1);
  h.Clear();
  EXPECT_TRUE(h.entries().empty());
}

// The processors, one by one, by hand.
TEST(Processors, RepetitionPenaltyOncePerIdByTheSignOfTheScore) {
  const std::vector<float> logits = {2, -2, 2, 1};
  Params p;
  p.repetition_penalty = 2;
  TokenHistory h;
  const std::vector<int32_t> prompt = {0, 0, 1};
  h.AddPrompt(prompt);
  h.AddOutput(0);
  const std::vector<double> got = Reference({logits.data(), &p, &h}, 4);
  const double e[] = {std::exp(1.0), std::exp(-4.0), std::exp(2.0), std::exp(1.0)};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(got[i], e[i] / (e[0] + e[1] + e[2] + e[3]), 1e-12);
}

TEST(Processors, PresenceAndFrequencyCountTheOutputOnly) {
  const std::vector<float> logits = {0, 0, 0};
  Params p;
  p.presence_penalty = 0.5f;
  p.frequency_penalty = 0.25f;
  TokenHistory h;
  const std::vector<int32_t> prompt = {0, 0};
  h.AddPrompt(prompt);
  for (int i = 0; i < 4; ++i) h.AddOutput(1);
  const std::vector<double> got = Reference({logits.data(), &p, &h}, 3);
  const double e[] = {1, std::exp(-1.5), 1};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(got[i], e[i] / (e[0] + e[1] + e[2]), 1e-12);
}

TEST(Processors, TopKKeepsTiesOfTheKthValue) {
  const std::vector<float> logits = {1, 5, 3, 3, 3, 0};
  Params p;
  p.top_k = 2;
  EXPECT_EQ(Support(Reference({logits.data(), &p}, 6)), (std::vector<int32_t>{1, 2, 3, 4}));
  p.top_k = 1;
  EXPECT_EQ(Support(Reference({logits.data(), &p}, 6)), (std::vector<int32_t>{1}));
  p.top_k = -1;
  EXPECT_EQ(Support(Reference({logits.data(), &p}, 6)).size(), 6u);
}

TEST(Processors, TopPKeepsTheSmallestSetThatReachesTheMass) {
  // Probabilities 0.5, 0.25, 0.125, 0.125 up to rounding.
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.125f), std::log(0.25f)};
  Params p;
  auto support = [&](float top_p) {
    p.top_p = top_p;
    return Support(Reference({logits.data(), &p}, 4));
  };
  EXPECT_EQ(support(0.01f), (std::vector<int32_t>{1}));
  EXPECT_EQ(support(0.49f), (std::vector<int32_t>{1}));
  EXPECT_EQ(support(0.51f), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(support(0.76f), (std::vector<int32_t>{0, 1, 3}));  // the tie goes to the lower id
  EXPECT_EQ(support(0.9f), (std::vector<int32_t>{0, 1, 2, 3}));
  // top-p counts the mass of what top-k left: 0.5 of 0.75.
  p.top_k = 2;
  EXPECT_EQ(support(0.6f), (std::vector<int32_t>{1}));
}

TEST(Processors, MinPIsRelativeToTheLargest) {
  const std::vector<float> logits = {0, std::log(0.2f), std::log(0.09f)};
  Params p;
  p.min_p = 0.1f;
  EXPECT_EQ(Support(Reference({logits.data(), &p}, 3)), (std::vector<int32_t>{0, 1}));
  p.min_p = 1;
  EXPECT_EQ(Support(Reference({logits.data(), &p}, 3)), (std::vector<int32_t>{0}));
}

TEST(Processors, MaskBanAndBias) {
  const std::vector<float> logits(40, 0.0f);
  Params p;
  p.logit_bias = {{3, -1.0f}};
  const uint32_t allowed[2] = {0x0000001eu,
                               0xffffff80u};  // 1, 2, 3, 4 and 39 (bits beyond the vocabulary mean nothing)
  const std::vector<int32_t> banned = {4};
  const std::vector<double> got = Reference({logits.data(), &p, nullptr, 0, allowed, banned}, 40);
  EXPECT_EQ(Support(got), (std::vector<int32_t>{1, 2, 3, 39}));
  EXPECT_NEAR(got[3] / got[1], std::exp(-1.0), 1e-12);
}

}  // namespace
}  // namespace fluvial::ops::sampling
