// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace fluvial::measure {
namespace {

TEST(Summaries, AreNumpys) {
  const std::vector<double> v = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(Mean(v), 2.5);
  EXPECT_DOUBLE_EQ(StandardDeviation(v), std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(Median(v), 2.5);
  EXPECT_DOUBLE_EQ(Percentile(v, 99), 3.97);
  EXPECT_DOUBLE_EQ(Percentile(v, 0), 1);
  EXPECT_EQ(Percentile({}, 50), 0);
}

TEST(Wilson, KnownValues) {
  // Newcombe 1998, table I: 81 of 263 and 0 of 20.
  EXPECT_NEAR(WilsonInterval(81, 263).low, 0.2553, 5e-5);
  EXPECT_NEAR(WilsonInterval(81, 263).high, 0.3662, 5e-5);
  EXPECT_EQ(WilsonInterval(0, 20).low, 0);
  EXPECT_NEAR(WilsonInterval(0, 20).high, 0.1611, 5e-5);
  for (const int64_t n : {1, 3, 100, 299}) {
    EXPECT_EQ(WilsonInterval(0, n).low, 0);
    EXPECT_EQ(WilsonInterval(n, n).high, 1);
  }
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

TEST(McNemar, IsTheBinomialTail) {
  EXPECT_EQ(McNemar(0, 0), 1);
  EXPECT_NEAR(McNemar(0, 5), 0.0625, 1e-12);
  EXPECT_NEAR(McNemar(9, 0), 0.00390625, 1e-12);
  EXPECT_NEAR(McNemar(1, 7), 0.0703125, 1e-12);
  EXPECT_EQ(McNemar(4, 4), 1);
}

TEST(Student, QuantilesOfTheTables) {
  EXPECT_NEAR(StudentQuantile(0.975, 1), 12.7062, 1e-4);
  EXPECT_NEAR(StudentQuantile(0.975, 5), 2.5706, 1e-4);
  EXPECT_NEAR(StudentQuantile(0.995, 10), 3.1693, 1e-4);
  EXPECT_NEAR(StudentQuantile(0.025, 30), -2.0423, 1e-4);
}

/// Launches whose own speed wanders by `launch`, and requests around it by `request` (log standard deviations).
std::vector<std::vector<double>> Simulate(std::mt19937_64& random, double shift, double launch, double request) {
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> pairs(8);
  for (auto& pair : pairs) {
    const double of_pair = shift + launch * (normal(random) - normal(random));
    for (int i = 0; i < 12; ++i) pair.push_back(of_pair + request * (normal(random) - normal(random)));
  }
  return pairs;
}

/// How many of 20 comparisons of four metrics each, as `compare` makes them, establish something about any of them.
int Established(double shift, double launch) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    bool any = false;
    for (int metric = 0; metric < 4; ++metric) {
      const auto pairs = Simulate(random, shift, launch, 0.05);
      any = any || JudgeTime(ComparePairs(pairs, kMetricAlpha, seed), false) != TimeVerdict::kNotEstablished;
    }
    found += any;
  }
  return found;
}

TEST(Compare, SaysNotEstablishedOfAAgainstAIn19Of20) {
  EXPECT_LE(Established(0, 0.02), 1);
  EXPECT_LE(Established(0, 0.10), 1);
  EXPECT_LE(Established(0, 0), 1);
}

TEST(Compare, FindsAPlantedSlowDownOfTenPercent) {
  EXPECT_EQ(Established(std::log(1.10), 0.015), 20);
  std::mt19937_64 random(7);
  const TimeEffect effect = ComparePairs(Simulate(random, std::log(1.10), 0.015, 0.05), kMetricAlpha, 7);
  EXPECT_EQ(JudgeTime(effect, false), TimeVerdict::kSlower);
  EXPECT_EQ(JudgeTime(effect, true), TimeVerdict::kFaster);
  EXPECT_NEAR(effect.ratio, 1.10, 0.04);
  EXPECT_LT(effect.interval.low, effect.ratio);
  EXPECT_GT(effect.interval.high, effect.ratio);
}

TEST(Compare, OnePairEstablishesNothing) {
  const std::vector<std::vector<double>> one = {{1, 1, 1}, {}};
  const TimeEffect effect = ComparePairs(one, 0.05, 1);
  EXPECT_EQ(effect.pairs, 1);
  EXPECT_EQ(JudgeTime(effect, false), TimeVerdict::kNotEstablished);
  EXPECT_EQ(ComparePairs({}, 0.05, 1).ratio, 1);
}

TEST(Compare, FindsThreePercentWrongAnswers) {
  std::vector<bool> a(300, true), b(300, true);
  for (size_t i = 0; i < 300; i += 10) a[i] = b[i] = false;
  EXPECT_EQ(JudgeAnswers(CompareAnswers(a, b), 0.02), AnswerVerdict::kEqual);
  for (size_t i = 1; i < 300; i += 33) b[i] = false;
  const AnswerEffect effect = CompareAnswers(a, b);
  EXPECT_EQ(effect.only_a, 9);
  EXPECT_EQ(effect.both_wrong, 30);
  EXPECT_EQ(JudgeAnswers(effect, 0.02), AnswerVerdict::kDifferent);
}

TEST(Compare, FewItemsAreNotCalledEqual) {
  const std::vector<bool> a(20, true);
  EXPECT_EQ(JudgeAnswers(CompareAnswers(a, a), 0.02), AnswerVerdict::kNotEstablished);
  EXPECT_EQ(JudgeAnswers(CompareAnswers({}, {}), 0.02), AnswerVerdict::kNotEstablished);
}

}  // namespace
}  // namespace fluvial::measure
