// SPDX-License-Identifier: Apache-2.0
// Comparisons of simulated launches: what is planted is found, what is not there is not.
#include "measure/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace fluvial::measure {
namespace {

using Json = nlohmann::ordered_json;

/// A launch of 12 requests of 20 tokens whose speed wanders by 2 %, its requests by 5 %; `slow` multiplies all times.
Launch Simulate(std::mt19937_64& random, char side, double slow) {
  std::normal_distribution<double> normal;
  Launch launch;
  launch.side = side;
  launch.facts = Json{{"version", "x"}};
  const double speed = slow * std::exp(0.02 * normal(random));
  for (int i = 0; i < 12; ++i) {
    RequestRecord r;
    r.ok = true;
    r.prompt_tokens = 16;
    r.output_tokens = 20;
    r.start = launch.load.duration;
    r.ttft = 0.05 * speed * std::exp(0.05 * normal(random));
    r.latency = r.ttft;
    for (int k = 0; k < 19; ++k) {
      r.itl.push_back(0.01 * speed * std::exp(0.05 * normal(random)));
      r.latency += r.itl.back();
    }
    launch.load.duration += r.latency;
    launch.load.records.push_back(r);
  }
  return launch;
}

CompareInput SimulateAll(uint64_t seed, double slow_b) {
  std::mt19937_64 random(seed);
  CompareInput input;
  input.name_a = "left <script>";
  input.name_b = "right";
  input.seed = seed;
  input.workload = Json{{"dataset", "random"}};
  for (const char side : LaunchOrder(4)) input.launches.push_back(Simulate(random, side, side == 'B' ? slow_b : 1));
  return input;
}

int Verdicts(const Json& report, const std::string& verdict) {
  int n = 0;
  for (const auto& [key, m] : report["metrics"].items()) n += m["verdict"] == verdict;
  return n;
}

TEST(CompareReport, AAgainstAIsNotEstablishedIn19Of20) {
  int said = 0;
  for (uint64_t seed = 100; seed < 120; ++seed) {
    said += Verdicts(CompareJson(SimulateAll(seed, 1)), "not established") != 4;
  }
  EXPECT_LE(said, 1);
}

TEST(CompareReport, FindsTenPercent) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Json report = CompareJson(SimulateAll(seed, 1.10));
    EXPECT_EQ(Verdicts(report, "slower"), 4) << "seed " << seed << report["metrics"].dump();
    EXPECT_NEAR(report["metrics"]["tpot"]["ratio_b_over_a"].get<double>(), 1.10, 0.04);
    EXPECT_NEAR(report["metrics"]["output_throughput"]["ratio_b_over_a"].get<double>(), 1 / 1.10, 0.04);
  }
  EXPECT_EQ(Verdicts(CompareJson(SimulateAll(1, 0.9)), "faster"), 4);
}

/// Answers all right, but every `wrong`-th of B (0: none).
CompareInput WithAnswers(size_t wrong) {
  CompareInput input = SimulateAll(1, 1);
  input.items.assign(300, EvalItem{"q", "#### 5", "5", {}});
  for (size_t l = 0; l < 2; ++l) {
    Launch& launch = input.launches[l];
    launch.evaluated = true;
    for (size_t i = 0; i < 300; ++i) {
      RequestRecord r;
      r.ok = true;
      r.text = launch.side == 'B' && wrong > 0 && i % wrong == 0 ? "It is 6." : "It is 5.";
      launch.eval.records.push_back(r);
    }
  }
  return input;
}

TEST(CompareReport, FindsThreePercentWrongAnswers) {
  Json accuracy = CompareJson(WithAnswers(34))["accuracy"];  // 9 of 300
  EXPECT_EQ(accuracy["verdict"], "different");
  EXPECT_EQ(accuracy["only_a_right"], 9);
  EXPECT_EQ(accuracy["identical_texts"], 291);
  accuracy = CompareJson(WithAnswers(0))["accuracy"];
  EXPECT_EQ(accuracy["verdict"], "equal");
  EXPECT_EQ(accuracy["mcnemar_p"], 1.0);
  accuracy = CompareJson(WithAnswers(150))["accuracy"];  // 2 of 300
  EXPECT_EQ(accuracy["verdict"], "not established");
}

TEST(CompareReport, FailuresAreResults) {
  CompareInput input = SimulateAll(3, 1);
  Launch& refused = input.launches[1];
  refused.load = {};
  refused.error = "exit status 4: fluvial: backend 'x' | refused";
  refused.error_kind = "refused";
  RequestRecord& late = input.launches[2].load.records[4];
  late.ok = false;
  late.error_kind = "timeout";
  late.error = "timed out: <b>slow</b>";
  const Json report = CompareJson(input);
  ASSERT_EQ(report["failures"].size(), 2u);
  EXPECT_EQ(report["failures"][0]["kind"], "refused");
  EXPECT_EQ(report["failures"][0]["side"], "B");
  EXPECT_EQ(report["failures"][1]["kind"], "timeout");
  EXPECT_EQ(report["failures"][1]["launch"], 2);
  EXPECT_EQ(report["launches"].size(), 16u);
  EXPECT_EQ(report["metrics"]["ttft"]["pairs"], 7);
  EXPECT_EQ(report["metrics"]["output_throughput"]["pairs"], 6);  // a rate with failures in it is not compared
  const std::string markdown = CompareMarkdown(report);
  EXPECT_NE(markdown.find("| 1 | B | refused | 1 | exit status 4: fluvial: backend 'x' / refused |"), std::string::npos)
      << markdown;
  const std::string html = CompareHtml(report);
  EXPECT_NE(html.find("timed out: &lt;b&gt;slow"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("src="), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
}

TEST(CompareReport, NothingThatServedEstablishesNothing) {
  CompareInput input = SimulateAll(3, 1);
  for (Launch& l : input.launches) {
    l.load = {};
    l.error = "exit status 3: fluvial: no";
    l.error_kind = "launch";
  }
  const Json report = CompareJson(input);
  EXPECT_EQ(Verdicts(report, "not established"), 4);
  EXPECT_EQ(report["failures"].size(), 16u);
  EXPECT_NE(CompareHtml(report).find("failed"), std::string::npos);
  EXPECT_FALSE(CompareMarkdown(report).empty());
}

}  // namespace
}  // namespace fluvial::measure
