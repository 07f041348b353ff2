// SPDX-License-Identifier: Apache-2.0
// Statistics of measurements: summaries as numpy computes them, and the paired tests behind `fluvial compare`.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace fluvial::measure {

double Mean(std::span<const double> values);               ///< 0 for no values
double StandardDeviation(std::span<const double> values);  ///< of the population (divisor n), as numpy's default
/// Linear interpolation between order statistics (numpy's default); percent in 0..100; 0 for no values.
double Percentile(std::span<const double> values, double percent);
inline double Median(std::span<const double> values) { return Percentile(values, 50); }

struct Interval {
  double low = 0, high = 0;
};

/// Wilson's score interval of a proportion at 95 % (Wilson 1927); {0, 1} for no trials.
Interval WilsonInterval(int64_t successes, int64_t trials);

/// Exact two-sided McNemar test: probability of a split at least as uneven as b : c of the items that differ, when both
/// directions are equally likely (binomial, p = 1/2). 1 when nothing differs.
double McNemar(int64_t b, int64_t c);

/// Quantile of Student's t: P(T <= t) = p, for 0 < p < 1 and degrees >= 1.
double StudentQuantile(double p, int32_t degrees);

/// Paired comparison of times: launches in pairs, and in each pair the logarithms log(B / A) of the same requests.
struct TimeEffect {
  double ratio = 1;   ///< geometric mean of B / A
  Interval interval;  ///< of the ratio, at 1 - alpha
  int32_t pairs = 0;
};

/// The estimate is the mean over pairs of the mean over requests. Launches, not requests, are the unit of chance, so
/// the interval is the wider of two: the hierarchical percentile bootstrap (pairs, then requests in each pair, are
/// drawn with replacement), and Student's t over the means of the pairs - the bootstrap alone is too narrow for few
/// pairs (Hesterberg 2015, "What Teachers Should Know about the Bootstrap", section 4). With fewer than two pairs the
/// interval is 0..infinity. Empty pairs are left out.
TimeEffect ComparePairs(std::span<const std::vector<double>> log_ratios, double alpha, uint64_t seed);

/// Alpha of one metric: with four metrics, at most 1 % of the comparisons of a configuration with itself say something
/// about any of them (Bonferroni), so that 19 of 20 stay silent with a wide margin.
inline constexpr double kMetricAlpha = 0.01 / 4;

enum class TimeVerdict : uint8_t { kNotEstablished, kFaster, kSlower };
/// B against A. `more_is_better`: a rate, so that a ratio above 1 is faster.
TimeVerdict JudgeTime(const TimeEffect& effect, bool more_is_better);
std::string_view Name(TimeVerdict verdict);  ///< "faster", "slower", "not established"

struct AnswerEffect {
  int64_t items = 0, both_right = 0, both_wrong = 0;
  int64_t only_a = 0, only_b = 0;  ///< right in A alone, in B alone
  double p = 1;                    ///< McNemar
  double disagreement_high = 1;    ///< upper end of Wilson's interval of the share of items that differ
};

/// `a[i]` and `b[i]`: was item i answered rightly. Equal lengths.
AnswerEffect CompareAnswers(const std::vector<bool>& a, const std::vector<bool>& b);

enum class AnswerVerdict : uint8_t { kNotEstablished, kEqual, kDifferent };
/// Different: p < 0.05. Equal: no more than `margin` of the items differ, at 95 %. Else the items are too few to say.
AnswerVerdict JudgeAnswers(const AnswerEffect& effect, double margin);
std::string_view Name(AnswerVerdict verdict);  ///< "equal", "different", "not established"

}  // namespace fluvial::measure
