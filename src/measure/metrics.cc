// SPDX-License-Identifier: Apache-2.0
#include "measure/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "measure/statistics.h"

namespace fluvial::measure {
namespace {

bool IsMetric(const std::string& name) { return name == "ttft" || name == "tpot" || name == "itl" || name == "e2el"; }

/// Largest number of tokens, and of requests under way, in any second of the load.
std::pair<double, int64_t> Peaks(const LoadResult& load) {
  const auto seconds = static_cast<size_t>(std::max(0.0, load.duration)) + 2;
  std::vector<double> tokens(seconds, 0);
  std::vector<int64_t> under_way(seconds, 0);
  const auto bucket = [&](double at) { return std::min(seconds - 1, static_cast<size_t>(std::max(0.0, at))); };
  for (const RequestRecord& r : load.records) {
    if (!r.ok) continue;
    // Tokens are counted by the server, pieces seen by the client: each piece stands for its share.
    const double share = static_cast<double>(r.output_tokens) / static_cast<double>(r.itl.size() + 1);
    double at = r.start + r.ttft;
    tokens[bucket(at)] += share;
    for (const double gap : r.itl) tokens[bucket(at += gap)] += share;
    for (size_t s = bucket(r.start); s <= bucket(r.start + r.latency); ++s) ++under_way[s];
  }
  return {*std::max_element(tokens.begin(), tokens.end()), *std::max_element(under_way.begin(), under_way.end())};
}

bool IsGood(const RequestRecord& r, const std::map<std::string, double>& bounds) {
  for (const auto& [name, ms] : bounds) {
    const double value = name == "ttft" ? r.ttft : name == "tpot" ? r.Tpot().value_or(0) : r.latency;
    if (value * 1000 > ms) return false;
  }
  return r.ok;
}

Json Lists(const LoadResult& load) {
  Json j;
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
                          "generated_texts", "errors"}) {
    j[key] = Json::array();
  }
  for (const RequestRecord& r : load.records) {
    j["input_lens"].push_back(r.prompt_tokens);
    j["output_lens"].push_back(r.output_tokens);
    j["ttfts"].push_back(r.ttft);
    j["itls"].push_back(r.itl);
    j["latencies"].push_back(r.latency);
    j["start_times"].push_back(r.start);
    j["queue_times"].push_back(r.queue);
    j["generated_texts"].push_back(r.text);
    j["errors"].push_back(r.error);
  }
  return j;
}

std::string Line(const std::string& label, double value, const char* form) {
  char number[64], line[160];
  std::snprintf(number, sizeof(number), form, value);
  std::snprintf(line, sizeof(line), "%-40s %12s\n", label.c_str(), number);
  return line;
}

}  // namespace

std::string PercentileName(double percent) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", percent);
  return text;
}

Status CheckMetricOptions(const MetricOptions& options) {
  for (const std::string& name : options.metrics) {
    if (!IsMetric(name)) {
      return Status::InvalidArgument("--percentile-metrics: '" + name + "' is none of ttft, tpot, itl, e2el");
    }
  }
  for (const double p : options.percentiles) {
    if (!(p >= 0 && p <= 100)) return Status::InvalidArgument("--metric-percentiles must be in 0..100");
  }
  for (const auto& [name, ms] : options.goodput) {
    if (name != "ttft" && name != "tpot" && name != "e2el") {
      return Status::InvalidArgument("--goodput: '" + name + "' is none of ttft, tpot, e2el");
    }
    if (!(ms >= 0)) return Status::InvalidArgument("--goodput: the bound of " + name + " must be 0 ms or more");
  }
  return Status::Ok();
}

std::vector<double> MetricMs(const LoadResult& load, const std::string& metric) {
  std::vector<double> values;
  for (const RequestRecord& r : load.records) {
    if (!r.ok) continue;
    if (metric == "ttft") values.push_back(r.ttft * 1000);
    if (metric == "e2el") values.push_back(r.latency * 1000);
    if (metric == "tpot" && r.Tpot().has_value()) values.push_back(*r.Tpot() * 1000);
    if (metric == "itl") {
      for (const double gap : r.itl) values.push_back(gap * 1000);
    }
  }
  return values;
}

Json SummaryJson(const LoadResult& load, const MetricOptions& options, bool detailed) {
  int64_t completed = 0, input = 0, output = 0, good = 0;
  std::map<std::string, int64_t> kinds;
  for (const RequestRecord& r : load.records) {
    if (!r.ok) {
      ++kinds[r.error_kind];
      continue;
    }
    ++completed;
    input += r.prompt_tokens;
    output += r.output_tokens;
    good += IsGood(r, options.goodput);
  }
  const double seconds = std::max(load.duration, 1e-9);
  const auto rate = [&](int64_t n) { return static_cast<double>(n) / seconds; };
  const auto [peak_tokens, peak_requests] = Peaks(load);
  Json j;
  j["duration"] = load.duration;
  j["completed"] = completed;
  j["failed"] = static_cast<int64_t>(load.records.size()) - completed;
  j["total_input_tokens"] = input;
  j["total_output_tokens"] = output;
  j["request_throughput"] = rate(completed);
  j["request_goodput"] = options.goodput.empty() ? Json() : Json(rate(good));
  j["output_throughput"] = rate(output);
  j["total_token_throughput"] = rate(input + output);
  j["max_output_tokens_per_s"] = peak_tokens;
  j["max_concurrent_requests"] = peak_requests;
  j["rtfx"] = 0.0;  // vLLM's key for audio: seconds of input per second; there is no audio here
  for (const std::string& metric : options.metrics) {
    const std::vector<double> values = MetricMs(load, metric);
    j["mean_" + metric + "_ms"] = Mean(values);
    j["median_" + metric + "_ms"] = Median(values);
    j["std_" + metric + "_ms"] = StandardDeviation(values);
    for (const double p : options.percentiles) {
      j["p" + PercentileName(p) + "_" + metric + "_ms"] = Percentile(values, p);
    }
  }
  if (!kinds.empty()) j["failures"] = kinds;
  if (detailed) j.update(Lists(load));
  return j;
}

std::string SummaryText(const Json& s, const MetricOptions& options) {
  std::string text = "============ Serving Benchmark Result ============\n";
  text += Line("Successful requests:", s["completed"], "%.0f");
  text += Line("Failed requests:", s["failed"], "%.0f");
  if (s.contains("failures")) {
    for (const auto& [kind, n] : s["failures"].items()) text += Line("  " + kind + ":", n, "%.0f");
  }
  text += Line("Benchmark duration (s):", s["duration"], "%.2f");
  text += Line("Total input tokens:", s["total_input_tokens"], "%.0f");
  text += Line("Total generated tokens:", s["total_output_tokens"], "%.0f");
  text += Line("Request throughput (req/s):", s["request_throughput"], "%.2f");
  if (!s["request_goodput"].is_null()) text += Line("Request goodput (req/s):", s["request_goodput"], "%.2f");
  text += Line("Output token throughput (tok/s):", s["output_throughput"], "%.2f");
  text += Line("Peak output token throughput (tok/s):", s["max_output_tokens_per_s"], "%.2f");
  text += Line("Peak concurrent requests:", s["max_concurrent_requests"], "%.0f");
  text += Line("Total token throughput (tok/s):", s["total_token_throughput"], "%.2f");
  for (const std::string& metric : options.metrics) {
    std::string name = metric;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    text += "--------------------- " + name + " ---------------------\n";
    text += Line("Mean " + name + " (ms):", s["mean_" + metric + "_ms"], "%.2f");
    text += Line("Median " + name + " (ms):", s["median_" + metric + "_ms"], "%.2f");
    for (const double p : options.percentiles) {
      const std::string key = "p" + PercentileName(p) + "_" + metric + "_ms";
      text += Line("P" + PercentileName(p) + " " + name + " (ms):", s[key], "%.2f");
    }
  }
  return text + "==================================================\n";
}

}  // namespace fluvial::measure
