// SPDX-License-Identifier: Apache-2.0
#include "measure/compare.h"

#include <cmath>
#include <map>
#include <optional>

#include "fluvial/version.h"
#include "measure/metrics.h"
#include "measure/statistics.h"

namespace fluvial::measure {
namespace {

struct Metric {
  const char* key;
  const char* title;
  bool more_is_better;
};

// The four that verdicts are given on: kMetricAlpha counts them.
constexpr Metric kMetrics[] = {{"ttft", "TTFT (ms)", false},
                               {"tpot", "TPOT (ms)", false},
                               {"itl", "ITL (ms)", false},
                               {"output_throughput", "output tokens/s", true}};

std::optional<double> ValueOf(const RequestRecord& r, const std::string& metric) {
  if (!r.ok) return std::nullopt;
  if (metric == "ttft") return r.ttft;
  if (metric == "tpot") return r.Tpot();
  if (r.itl.empty()) return std::nullopt;
  return Mean(r.itl);  // not the median: a server that sends several tokens in one piece makes most gaps tiny
}

double Throughput(const LoadResult& load) {
  int64_t tokens = 0;
  for (const RequestRecord& r : load.records) tokens += r.ok ? r.output_tokens : 0;
  return static_cast<double>(tokens) / std::max(load.duration, 1e-9);
}

int64_t Failures(const LoadResult& load) {
  int64_t n = 0;
  for (const RequestRecord& r : load.records) n += !r.ok;
  return n;
}

/// log(B / A) of what both launches have.
std::vector<double> LogRatios(const Launch& a, const Launch& b, const std::string& metric) {
  std::vector<double> out;
  if (metric == "output_throughput") {
    const double ta = Throughput(a.load), tb = Throughput(b.load);
    // Requests that failed took no time: a rate over them would flatter the side that failed.
    if (ta > 0 && tb > 0 && Failures(a.load) == 0 && Failures(b.load) == 0) out.push_back(std::log(tb / ta));
    return out;
  }
  for (size_t i = 0; i < std::min(a.load.records.size(), b.load.records.size()); ++i) {
    const auto x = ValueOf(a.load.records[i], metric), y = ValueOf(b.load.records[i], metric);
    if (x.has_value() && y.has_value() && *x > 0 && *y > 0) out.push_back(std::log(*y / *x));
  }
  return out;
}

/// Neighbours of different sides: of A B B A the first two and the last two.
std::vector<std::pair<const Launch*, const Launch*>> Pairs(const std::vector<Launch>& launches) {
  std::vector<std::pair<const Launch*, const Launch*>> pairs;
  for (size_t i = 0; i + 1 < launches.size(); i += 2) {
    const Launch *a = &launches[i], *b = &launches[i + 1];
    if (a->side == 'B') std::swap(a, b);
    if (a->error.empty() && b->error.empty()) pairs.emplace_back(a, b);
  }
  return pairs;
}

Json LaunchJson(const Launch& launch, size_t index) {
  MetricOptions metrics;
  metrics.metrics = {"ttft", "tpot", "itl", "e2el"};
  metrics.percentiles = {50, 90, 99};
  Json j{{"index", index},
         {"side", std::string(1, launch.side)},
         {"error", launch.error},
         {"error_kind", launch.error_kind},
         {"start_seconds", launch.start_seconds},
         {"facts", launch.facts}};
  if (!launch.load.records.empty()) j["result"] = SummaryJson(launch.load, metrics, true);
  return j;
}

Json Failed(const std::vector<Launch>& launches) {
  Json list = Json::array();
  for (size_t i = 0; i < launches.size(); ++i) {
    const Launch& l = launches[i];
    const std::string side(1, l.side);
    if (!l.error.empty()) {
      list.push_back(Json{{"launch", i}, {"side", side}, {"kind", l.error_kind}, {"count", 1}, {"error", l.error}});
    }
    for (const LoadResult* load : {&l.load, &l.eval}) {
      std::map<std::string, std::pair<int64_t, std::string>> kinds;
      for (const RequestRecord& r : load->records) {
        if (r.ok) continue;
        auto& [count, error] = kinds[r.error_kind];
        if (count++ == 0) error = r.error;
      }
      for (const auto& [kind, what] : kinds) {
        list.push_back(Json{{"launch", i},
                            {"side", side},
                            {"kind", kind},
                            {"count", what.first},
                            {"error", what.second},
                            {"during", load == &l.load ? "load" : "evaluation"}});
      }
    }
  }
  return list;
}

Json AccuracyJson(const CompareInput& input) {
  if (input.items.empty()) return {};
  const Launch* first[2] = {nullptr, nullptr};
  for (const Launch& l : input.launches) {
    const Launch*& slot = first[l.side == 'B'];
    if (slot == nullptr && l.evaluated) slot = &l;
  }
  Json j;
  std::vector<bool> right[2];
  for (int s = 0; s < 2; ++s) {
    if (first[s] == nullptr) continue;
    EvalResult result = ScoreEval(input.items, first[s]->eval);
    right[s] = result.right;
    j[s == 0 ? "a" : "b"] = std::move(result.json);
  }
  if (first[0] == nullptr || first[1] == nullptr) {
    j["verdict"] = Name(AnswerVerdict::kNotEstablished);
    j["why"] = "a side was never evaluated";
    return j;
  }
  int64_t same = 0;
  for (size_t i = 0; i < input.items.size(); ++i) {
    same += first[0]->eval.records[i].ok && first[1]->eval.records[i].ok &&
            first[0]->eval.records[i].text == first[1]->eval.records[i].text;
  }
  const AnswerEffect effect = CompareAnswers(right[0], right[1]);
  j["verdict"] = Name(JudgeAnswers(effect, input.margin));
  j["items"] = effect.items;
  j["both_right"] = effect.both_right;
  j["both_wrong"] = effect.both_wrong;
  j["only_a_right"] = effect.only_a;
  j["only_b_right"] = effect.only_b;
  j["identical_texts"] = same;
  j["mcnemar_p"] = effect.p;
  j["margin"] = input.margin;
  j["disagreement_upper"] = effect.disagreement_high;
  return j;
}

}  // namespace

std::string LaunchOrder(int64_t repeats) {
  std::string order;
  for (int64_t i = 0; i < repeats; ++i) order += "ABBA";
  return order;
}

Json CompareJson(const CompareInput& input) {
  Json j{{"fluvial_version", Version()}, {"a", input.name_a}, {"b", input.name_b}, {"workload", input.workload}};
  const auto pairs = Pairs(input.launches);
  for (const Metric& m : kMetrics) {
    std::vector<std::vector<double>> logs;
    for (const auto& [a, b] : pairs) logs.push_back(LogRatios(*a, *b, m.key));
    const TimeEffect effect = ComparePairs(logs, kMetricAlpha, input.seed);
    std::vector<double> values[2];
    for (const Launch& l : input.launches) {
      if (!l.error.empty()) continue;
      const std::vector<double> ms = MetricMs(l.load, m.key);
      if (m.more_is_better) {
        values[l.side == 'B'].push_back(Throughput(l.load));
      } else if (!ms.empty()) {
        values[l.side == 'B'].push_back(std::string(m.key) == "itl" ? Mean(ms) : Median(ms));
      }
    }
    Json ratios = Json::array();
    for (const auto& pair : logs) ratios.push_back(pair.empty() ? Json() : Json(std::exp(Mean(pair))));
    const bool known = effect.pairs >= 2;
    j["metrics"][m.key] = Json{{"title", m.title},
                               {"verdict", Name(JudgeTime(effect, m.more_is_better))},
                               {"ratio_b_over_a", effect.pairs > 0 ? Json(effect.ratio) : Json()},
                               {"interval", known ? Json{effect.interval.low, effect.interval.high} : Json()},
                               {"alpha", kMetricAlpha},
                               {"pairs", effect.pairs},
                               {"pair_ratios", ratios},
                               {"a", values[0]},
                               {"b", values[1]}};
  }
  j["accuracy"] = AccuracyJson(input);
  j["failures"] = Failed(input.launches);
  j["launches"] = Json::array();
  for (size_t i = 0; i < input.launches.size(); ++i) j["launches"].push_back(LaunchJson(input.launches[i], i));
  return j;
}

}  // namespace fluvial::measure
