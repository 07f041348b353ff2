// SPDX-License-Identifier: Apache-2.0
#include "measure/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace fluvial::measure {
namespace {

constexpr double kZ95 = 1.959963984540054;  // normal quantile of 0.975
constexpr int kResamples = 2000;

/// Continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8), by Lentz' method.
double BetaFraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::abs(d) < kTiny ? kTiny : d);
  double h = d;
  for (int m = 1; m <= 300; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1;
    for (const double term : {even, odd}) {
      d = 1 + term * d;
      c = 1 + term / c;
      d = 1 / (std::abs(d) < kTiny ? kTiny : d);
      if (std::abs(c) < kTiny) c = kTiny;
      change = c * d;
      h *= change;
    }
    if (std::abs(change - 1) < 1e-14) break;
  }
  return h;
}

double RegularizedBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * BetaFraction(a, b, x) / a;
  return 1 - front * BetaFraction(b, a, 1 - x) / b;
}

/// P(T <= t) for t >= 0 (Abramowitz and Stegun 26.7.1).
double StudentCdf(double t, double degrees) {
  return 1 - 0.5 * RegularizedBeta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

}  // namespace

double Mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double StandardDeviation(std::span<const double> values) {
  if (values.empty()) return 0;
  const double mean = Mean(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double Percentile(std::span<const double> values, double percent) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double place = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

Interval WilsonInterval(int64_t successes, int64_t trials) {
  if (trials <= 0) return {0, 1};
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double z2 = kZ95 * kZ95;
  const double centre = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kZ95 / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  // At the ends the formula gives exactly 0 and 1; rounding does not.
  return {successes == 0 ? 0 : std::max(0.0, centre - half), successes == trials ? 1 : std::min(1.0, centre + half)};
}

double McNemar(int64_t b, int64_t c) {
  const int64_t n = b + c;
  const int64_t small = std::min(b, c);
  double tail = 0;
  for (int64_t k = 0; k <= small; ++k) {
    const auto kd = static_cast<double>(k), nd = static_cast<double>(n);
    tail += std::exp(std::lgamma(nd + 1) - std::lgamma(kd + 1) - std::lgamma(nd - kd + 1) - nd * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

double StudentQuantile(double p, int32_t degrees) {
  if (p < 0.5) return -StudentQuantile(1 - p, degrees);
  double low = 0, high = 1;
  while (StudentCdf(high, degrees) < p && high < 1e15) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (StudentCdf(middle, degrees) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

TimeEffect ComparePairs(std::span<const std::vector<double>> log_ratios, double alpha, uint64_t seed) {
  std::vector<const std::vector<double>*> pairs;
  std::vector<double> means;
  for (const auto& pair : log_ratios) {
    if (pair.empty()) continue;
    pairs.push_back(&pair);
    means.push_back(Mean(pair));
  }
  TimeEffect effect;
  const size_t n = pairs.size();
  effect.pairs = static_cast<int32_t>(n);
  const double estimate = Mean(means);
  effect.ratio = std::exp(estimate);
  effect.interval = {0, std::numeric_limits<double>::infinity()};
  if (n < 2) return effect;

  std::mt19937_64 random(seed);
  std::vector<double> drawn(kResamples);
  for (double& mean : drawn) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
      const std::vector<double>& pair = *pairs[random() % n];
      double inner = 0;
      for (size_t k = 0; k < pair.size(); ++k) inner += pair[random() % pair.size()];
      sum += inner / static_cast<double>(pair.size());
    }
    mean = sum / static_cast<double>(n);
  }
  const double variance = StandardDeviation(means) * StandardDeviation(means) / static_cast<double>(n - 1);
  const double half = StudentQuantile(1 - alpha / 2, static_cast<int32_t>(n) - 1) * std::sqrt(variance);
  effect.interval.low = std::exp(std::min(Percentile(drawn, 100 * alpha / 2), estimate - half));
  effect.interval.high = std::exp(std::max(Percentile(drawn, 100 * (1 - alpha / 2)), estimate + half));
  return effect;
}

TimeVerdict JudgeTime(const TimeEffect& effect, bool more_is_better) {
  if (effect.interval.low > 1) return more_is_better ? TimeVerdict::kFaster : TimeVerdict::kSlower;
  if (effect.interval.high < 1) return more_is_better ? TimeVerdict::kSlower : TimeVerdict::kFaster;
  return TimeVerdict::kNotEstablished;
}

std::string_view Name(TimeVerdict verdict) {
  switch (verdict) {
    case TimeVerdict::kFaster:
      return "faster";
    case TimeVerdict::kSlower:
      return "slower";
    case TimeVerdict::kNotEstablished:
      break;
  }
  return "not established";
}

AnswerEffect CompareAnswers(const std::vector<bool>& a, const std::vector<bool>& b) {
  AnswerEffect effect;
  effect.items = static_cast<int64_t>(std::min(a.size(), b.size()));
  for (size_t i = 0; i < static_cast<size_t>(effect.items); ++i) {
    (a[i] ? (b[i] ? effect.both_right : effect.only_a) : (b[i] ? effect.only_b : effect.both_wrong)) += 1;
  }
  effect.p = McNemar(effect.only_a, effect.only_b);
  effect.disagreement_high = WilsonInterval(effect.only_a + effect.only_b, effect.items).high;
  return effect;
}

AnswerVerdict JudgeAnswers(const AnswerEffect& effect, double margin) {
  if (effect.p < 0.05) return AnswerVerdict::kDifferent;
  if (effect.items > 0 && effect.disagreement_high <= margin) return AnswerVerdict::kEqual;
  return AnswerVerdict::kNotEstablished;
}

std::string_view Name(AnswerVerdict verdict) {
  switch (verdict) {
    case AnswerVerdict::kEqual:
      return "equal";
    case AnswerVerdict::kDifferent:
      return "different";
    case AnswerVerdict::kNotEstablished:
      break;
  }
  return "not established";
}

}  // namespace fluvial::measure
