// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "base/hash.h"
#include "hwy/targets.h"
#include "ops/sampling/philox.h"
#include "ops/sampling/scan.h"

namespace fluvial::ops::sampling {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// About normal logits with deviation `spread`: a sum of 12 uniform numbers.
std::vector<float> RandomLogits(int64_t vocab, float spread, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(vocab));
  for (size_t i = 0; i < x.size(); ++i) {
    double sum = -6;
    for (uint64_t j = 0; j < 12; ++j) sum += static_cast<double>(Mix64(seed * 1000003 + i * 12 + j) >> 11) * 0x1p-53;
    x[i] = spread * static_cast<float>(sum);
  }
  return x;
}

Outcome SampleOne(const Row& row, int64_t vocab, int threads = 1) {
  ThreadPool pool(threads);
  Sampler sampler(vocab);
  Outcome out;
  sampler.Sample(pool, {&row, 1}, {&out, 1});
  return out;
}

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

class Sampling : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(Sampling, ScansMatchPlainLoops) {
  for (int64_t n = 1; n < 150; ++n) {
    std::vector<float> x = RandomLogits(n, 3, static_cast<uint64_t>(n));
    for (float& v : x) v = std::round(v * 4) / 4;  // many ties
    if (n % 3 == 0) x[n / 2] = -kInf;
    const float largest = *std::max_element(x.begin(), x.end());
    EXPECT_EQ(FindMax(x.data(), n).max, largest);
    EXPECT_EQ(FindMax(x.data(), n).index, std::find(x.begin(), x.end(), largest) - x.begin());
    EXPECT_FALSE(FindMax(x.data(), n).nan);
    EXPECT_EQ(FirstEqual(x.data(), n, largest), std::find(x.begin(), x.end(), largest) - x.begin());
    EXPECT_EQ(FirstEqual(x.data(), n, 99.0f), n);
    EXPECT_EQ(CountGreater(x.data(), n, x[0]), std::count_if(x.begin(), x.end(), [&](float v) { return v > x[0]; }));
    std::vector<int32_t> got, want;
    CollectAtLeast(x.data(), n, x[0], &got);
    for (int32_t i = 0; i < n; ++i) {
      if (x[i] >= x[0]) want.push_back(i);
    }
    EXPECT_EQ(got, want);
    got.clear();
    want.clear();
    CollectBetween(x.data(), n, -0.5f, 1.0f, &got);
    for (int32_t i = 0; i < n; ++i) {
      if (x[i] >= -0.5f && x[i] < 1.0f) want.push_back(i);
    }
    EXPECT_EQ(got, want);
    std::vector<float> sorted = x, buffer;
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    for (int64_t k : {int64_t{1}, n / 2 + 1, n}) {
      EXPECT_EQ(KthLargest(x.data(), n, k, &buffer), sorted[k - 1]) << n << " " << k;
    }
    EXPECT_EQ(KthLargest(x.data(), n, n + 1, &buffer), -kInf);
    double sum = 0;
    for (float v : x) sum += std::exp((static_cast<double>(v) - largest) * 0.5);
    EXPECT_NEAR(SumExp(x.data(), n, largest, 0.5f), sum, sum * 1e-6);
    x[n - 1] = kNan;
    EXPECT_TRUE(FindMax(x.data(), n).nan);
  }
}

// Weights are whole numbers, so masses are exact; 2500 values take three blocks and a tail.
TEST_P(Sampling, MassesAndKeptSumsAreExact) {
  const int64_t n = 2500;
  std::vector<float> x = RandomLogits(n, 2, 8), w(n);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::round(x[i]);  // many ties
    w[i] = static_cast<float>(i % 7);
  }
  const float threshold[kThresholds] = {-10, -2, -1, 0, 0.5f, 1, 3, 99};
  double mass[kThresholds];
  MassAtLeast(x.data(), w.data(), n, threshold, mass);
  for (int t = 0; t < kThresholds; ++t) {
    double want = 0;
    for (int64_t i = 0; i < n; ++i) want += x[i] >= threshold[t] ? w[i] : 0;
    EXPECT_EQ(mass[t], want) << t;
  }
  for (int64_t id : {int64_t{0}, int64_t{5}, int64_t{1023}, int64_t{1024}, int64_t{1500}, n - 1, n + 5000}) {
    double sums[3];
    KeptBlocks(x.data(), w.data(), n, {1.0f, id, 3.0f}, sums);
    for (int64_t b = 0; b < 3; ++b) {
      double want = 0;
      for (int64_t i = b * kBlock; i < std::min((b + 1) * kBlock, n); ++i) {
        want += w[i] >= 3 && (x[i] > 1 || (x[i] == 1 && i <= id)) ? w[i] : 0;
      }
      EXPECT_EQ(sums[b], want) << id << " " << b;
    }
  }
}

TEST_P(Sampling, KthLargestOfLongRows) {
  std::vector<float> x = RandomLogits(100000, 2, 3), buffer;
  std::sort(x.begin(), x.end());  // rising: the buffer is refilled as often as can be
  for (int64_t k : {1, 20, 1000, 60000}) EXPECT_EQ(KthLargest(x.data(), 100000, k, &buffer), x[100000 - k]);
  std::fill(x.begin(), x.end(), 1.5f);
  EXPECT_EQ(KthLargest(x.data(), 100000, 50, &buffer), 1.5f);
}

TEST_P(Sampling, GreedyTakesTheLowestIdOnTies) {
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  Params p;
  for (float t : {0.0f, 1e-6f}) {
    p.temperature = t;
    EXPECT_EQ(SampleOne({logits.data(), &p}, 5).token, 1);
  }
  // A bias of one token lifts it above the tie.
  p.logit_bias = {{4, 0.5f}};
  EXPECT_EQ(SampleOne({logits.data(), &p}, 5).token, 4);
}

// With whatever parameters, the token must be the one that the reference's distribution gives for the same uniform
// number. Sums in fp32 lanes move a boundary by less than 1e-5.
TEST_P(Sampling, EveryDrawIsWhereTheReferencePutsIt) {
  std::vector<Params> all;
  for (float temperature : {0.3f, 1.0f, 1.7f}) {
    for (int32_t top_k : {0, 1, 7, 40, 5000}) {
      for (float top_p : {1.0f, 0.9f, 0.3f, 0.001f}) {
        for (float min_p : {0.0f, 0.02f, 0.5f}) {
          Params p;
          p.temperature = temperature;
          p.top_k = top_k;
          p.top_p = top_p;
          p.min_p = min_p;
          p.seed = all.size();
          all.push_back(p);
        }
      }
    }
  }
  const int64_t vocab = 2003;
  TokenHistory history;
  const std::vector<int32_t> prompt = {1, 2, 3, 100, 2002, 9999};
  history.AddPrompt(prompt);
  for (int32_t id : {2, 2, 50, 77}) history.AddOutput(id);
  std::vector<uint32_t> allowed(63, 0xfffffffdu);
  const std::vector<int32_t> banned = {5, 6, 2500, -1};
  ThreadPool pool(2);
  Sampler sampler(vocab);
  for (Params& p : all) {
    const bool dressed = p.seed % 3 == 0;
    if (dressed) {
      p.repetition_penalty = 1.3f;
      p.presence_penalty = 0.4f;
      p.frequency_penalty = 0.2f;
      p.logit_bias = {{8, 5.0f}, {9, -100.0f}};
    }
    const std::vector<float> logits = RandomLogits(vocab, 2.5f, p.seed);
    Row row{logits.data(), &p};
    if (dressed) {
      row.history = &history;
      row.allowed = allowed.data();
      row.banned = banned;
    }
    const std::vector<double> want = Reference(row, vocab);
    std::vector<double> before(want.size() + 1, 0.0);
    std::partial_sum(want.begin(), want.end(), before.begin() + 1);
    std::vector<Row> rows;
    for (uint64_t i = 0; i < 64; ++i) {
      rows.push_back(row);
      rows.back().position = i;
    }
    std::vector<Outcome> got(rows.size());
    sampler.Sample(pool, rows, got);
    for (uint64_t i = 0; i < rows.size(); ++i) {
      const int32_t t = got[i].token;
      ASSERT_EQ(got[i].verdict, Verdict::kOk);
      ASSERT_GT(want[t], 0.0) << "parameters " << p.seed << " position " << i;
      const double u = Uniform(p.seed, i);
      ASSERT_GE(u, before[t] - 1e-5) << "parameters " << p.seed << " position " << i;
      ASSERT_LE(u, before[t + 1] + 1e-5) << "parameters " << p.seed << " position " << i;
    }
  }
}

// Chi-square of 20000 draws against the reference's probabilities; the seed is fixed, so the outcome is too. The
// threshold is the 1 - 1e-6 quantile by Wilson and Hilferty: k (1 - 2/(9k) + z sqrt(2/(9k)))^3 with z = 4.7534.
TEST_P(Sampling, FrequenciesPassChiSquare) {
  constexpr int64_t kVocab = 300, kDraws = 20000;
  const std::vector<float> logits = RandomLogits(kVocab, 1.5f, 4);
  ThreadPool pool(2);
  Sampler sampler(kVocab);
  for (int which = 0; which < 4; ++which) {
    Params p;
    p.seed = 1234 + static_cast<uint64_t>(which);
    p.temperature = which == 0 ? 1.0f : 0.8f;
    if (which == 1) p.top_k = 50;
    if (which == 2) p.top_p = 0.9f;
    if (which == 3) p.min_p = 0.05f;
    const std::vector<double> want = Reference({logits.data(), &p}, kVocab);
    std::vector<Row> rows(kDraws, Row{logits.data(), &p});
    for (int64_t i = 0; i < kDraws; ++i) rows[i].position = static_cast<uint64_t>(i);
    std::vector<Outcome> got(kDraws);
    sampler.Sample(pool, rows, got);
    std::vector<int64_t> counts(kVocab, 0);
    for (const Outcome& o : got) ++counts[o.token];
    double chi = 0, rest_want = 0, rest_got = 0;
    int bins = 0;
    auto add = [&](double expected, double seen) {
      chi += (seen - expected) * (seen - expected) / expected;
      ++bins;
    };
    for (int64_t i = 0; i < kVocab; ++i) {
      const double expected = want[i] * kDraws;
      if (expected >= 5) {
        add(expected, static_cast<double>(counts[i]));
      } else {
        rest_want += expected;
        rest_got += static_cast<double>(counts[i]);
      }
    }
    if (rest_want >= 5) add(rest_want, rest_got);
    const double k = bins - 1, c = 2 / (9 * k);
    EXPECT_LT(chi, k * std::pow(1 - c + 4.7534 * std::sqrt(c), 3)) << which << " with " << bins << " bins";
    // The statistic is not suspiciously small either (same quantile on the other side).
    EXPECT_GT(chi, k * std::pow(std::max(0.0, 1 - c - 4.7534 * std::sqrt(c)), 3)) << which;
  }
}

TEST_P(Sampling, WholeVocabularyWithFlatAndPeakedRows) {
  constexpr int64_t kVocab = 248320;
  for (float spread : {0.01f, 1.0f, 6.0f}) {
    const std::vector<float> logits = RandomLogits(kVocab, spread, 11);
    for (int which = 0; which < 5; ++which) {
      Params p;
      p.seed = static_cast<uint64_t>(which);
      if (which == 1) p.top_p = 0.95f;
      if (which == 2) p.top_k = 20, p.top_p = 0.8f;
      if (which == 3) p.min_p = 0.1f;
      if (which == 4) p.top_p = 0.5f, p.temperature = 1.5f;
      const std::vector<double> want = Reference({logits.data(), &p}, kVocab);
      std::vector<double> before(want.size() + 1, 0.0);
      std::partial_sum(want.begin(), want.end(), before.begin() + 1);
      const Outcome got = SampleOne({logits.data(), &p}, kVocab);
      const double u = Uniform(p.seed, 0);
      ASSERT_GT(want[got.token], 0.0);
      ASSERT_GE(u, before[got.token] - 1e-4) << spread << " " << which;
      ASSERT_LE(u, before[got.token + 1] + 1e-4) << spread << " " << which;
    }
  }
}

// Equal scores throughout: top-p cuts by id alone. Half of 1000 tokens, give or take one where sums round.
TEST_P(Sampling, TopPAmongEqualScoresKeepsTheLowestIds) {
  const int64_t vocab = 1000;
  const std::vector<float> logits(vocab, 3.0f);
  Params p;
  p.top_p = 0.5f;
  int32_t largest = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    p.seed = seed;
    largest = std::max(largest, SampleOne({logits.data(), &p}, vocab).token);
  }
  EXPECT_GE(largest, 490);  // (490/500)^3000 < 1e-26
  EXPECT_LE(largest, 500);
}

TEST_P(Sampling, LogprobsAreOfTheRawLogits) {
  const int64_t vocab = 1000;
  std::vector<float> logits = RandomLogits(vocab, 4, 21);
  logits[10] = logits[20] = logits[30] = 25.0f;
  logits[40] = -kInf;
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - 25.0);
  auto logprob = [&](int64_t id) { return static_cast<double>(logits[id]) - 25.0 - std::log(sum); };
  Params p;
  p.logprobs = 2;
  p.temperature = 0.5f;  // no influence on log probabilities, nor have ban and bias
  p.logit_bias = {{500, 100.0f}};
  const std::vector<int32_t> banned = {10};
  const Outcome out = SampleOne({logits.data(), &p, nullptr, 0, nullptr, banned}, vocab);
  EXPECT_EQ(out.token, 500);
  EXPECT_NEAR(out.logprob, logprob(500), 1e-6 + 4e-7 * std::abs(logprob(500)));
  EXPECT_EQ(out.rank, 1 + std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logits[500]; }));
  ASSERT_EQ(out.top.size(), 2u);  // ties: the lowest ids
  EXPECT_EQ(out.top[0].id, 10);
  EXPECT_EQ(out.top[1].id, 20);
  EXPECT_NEAR(out.top[1].logprob, logprob(20), 1e-6);

  const Outcome all = RawLogprobs(logits, 3, 5000);
  ASSERT_EQ(all.top.size(), 1000u);
  double mass = 0;
  for (size_t i = 0; i < 1000; ++i) {
    EXPECT_GE(all.top[i > 0 ? i - 1 : 0].logprob, all.top[i].logprob);
    mass += std::exp(static_cast<double>(all.top[i].logprob));
  }
  EXPECT_NEAR(mass, 1.0, 1e-5);
  EXPECT_EQ(all.top.back().id, 40);
  EXPECT_EQ(RawLogprobs(logits, 3, 0).top.size(), 0u);

  p.logprobs = -1;
  EXPECT_EQ(SampleOne({logits.data(), &p}, vocab).rank, 0);
}

// NaN, infinity and an empty choice are verdicts about their row; the neighbours draw what they draw alone.
TEST_P(Sampling, BadRowsStayAlone) {
  const int64_t vocab = 70;
  const std::vector<float> good = RandomLogits(vocab, 2, 5);
  std::vector<float> nan = good, infinite = good, none(vocab, -kInf);
  nan[69] = kNan;
  infinite[3] = kInf;
  Params p;
  p.logprobs = 3;
  const std::vector<uint32_t> nothing(3, 0);
  std::vector<Row> rows = {{good.data(), &p, nullptr, 1}, {nan.data(), &p, nullptr, 1},
                           {good.data(), &p, nullptr, 2}, {infinite.data(), &p, nullptr, 1},
                           {none.data(), &p, nullptr, 1}, {good.data(), &p, nullptr, 3, nothing.data()},
                           {good.data(), &p, nullptr, 4}};
  ThreadPool pool(3);
  Sampler sampler(vocab);
  std::vector<Outcome> got(rows.size());
  sampler.Sample(pool, rows, got);
  EXPECT_EQ(got[1].verdict, Verdict::kNotFinite);
  EXPECT_EQ(got[3].verdict, Verdict::kNotFinite);
  EXPECT_EQ(got[4].verdict, Verdict::kNoToken);
  EXPECT_EQ(got[5].verdict, Verdict::kNoToken);
  for (int i : {1, 3, 4, 5}) EXPECT_EQ(got[i].token, -1);
  for (int i : {0, 2, 6}) {
    const Outcome alone = SampleOne(rows[i], vocab);
    EXPECT_EQ(got[i].token, alone.token);
    EXPECT_EQ(got[i].logprob, alone.logprob);
  }
  EXPECT_EQ(RawLogprobs(nan, 0, 3).verdict, Verdict::kNotFinite);
  EXPECT_EQ(RawLogprobs(none, 0, 3).verdict, Verdict::kNoToken);
  std::vector<double> probabilities(vocab);
  EXPECT_EQ(ReferenceProbabilities(rows[1], vocab, probabilities), Verdict::kNotFinite);
  EXPECT_EQ(ReferenceProbabilities(rows[5], vocab, probabilities), Verdict::kNoToken);
}

INSTANTIATE_TEST_SUITE_P(Targets, Sampling, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

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
