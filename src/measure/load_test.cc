// SPDX-License-Identifier: Apache-2.0
// Loads against a server in this process: what is sent, what is timed, and what failures are called.
#include "measure/load.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "measure/metrics.h"
#include "measure/statistics.h"
#include "server/server_testkit.h"

namespace fluvial::measure {
namespace {

using server::testing::DemoModel;
using server::testing::FakeEngine;

std::unique_ptr<server::Server> Serve(std::chrono::microseconds step = std::chrono::microseconds(0)) {
  auto engine = std::make_unique<FakeEngine>();
  engine->step_time = step;
  return server::testing::StartServer(std::move(engine));
}

Target TargetOf(const server::Server& server) {
  Target t;
  t.base_url = "http://127.0.0.1:" + std::to_string(server.port());
  t.model = "demo";
  t.ignore_eos = true;
  return t;
}

std::vector<BenchPrompt> Prompts(int64_t count, int64_t output_len = 8) {
  const auto tokenizer = text::Tokenizer::Load(DemoModel());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto prompts = RandomPrompts(*tokenizer, {16, output_len, 0, 0}, count, 1);
  EXPECT_TRUE(prompts.ok());
  return *prompts;
}

TEST(Load, CountsAndTimes) {
  constexpr double kStep = 0.01;
  const auto server = Serve(std::chrono::milliseconds(10));
  const Target target = TargetOf(*server);
  LoadOptions options;
  options.max_concurrency = 3;
  int64_t last = 0;
  const auto load = RunLoad(target, Prompts(6), options, [&](int64_t done, int64_t, int64_t) { last = done; });
  ASSERT_TRUE(load.ok()) << load.status().message();
  EXPECT_EQ(last, 6);
  for (const RequestRecord& r : load->records) {
    ASSERT_TRUE(r.ok) << r.error;
    EXPECT_EQ(r.prompt_tokens, 16);
    EXPECT_EQ(r.output_tokens, 8);
    EXPECT_EQ(r.finish_reason, "length");
    EXPECT_LE(r.itl.size(), 7u);
    EXPECT_GE(r.ttft, kStep * 0.9);
    EXPECT_GE(r.latency, kStep * 7.9);  // a lower bound holds on a busy machine, too
    EXPECT_NEAR(*r.Tpot() * 7, r.latency - r.ttft, 1e-9);
  }
  const Json j = SummaryJson(*load, {}, false);
  EXPECT_EQ(j["max_concurrent_requests"], 6);  // within one second, all of them
}

TEST(Load, ResultHasVllmsKeys) {
  const auto server = Serve();
  const auto load = RunLoad(TargetOf(*server), Prompts(3), {});
  ASSERT_TRUE(load.ok());
  MetricOptions options;
  options.metrics = {"ttft", "tpot", "itl", "e2el"};
  options.percentiles = {50, 99.9};
  options.goodput = {{"ttft", 1e9}};
  const Json j = SummaryJson(*load, options, true);
  for (const char* key : {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
                          "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
                          "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"}) {
    ASSERT_TRUE(j.contains(key)) << key;
    EXPECT_TRUE(j[key].is_number()) << key;
  }
  for (const std::string metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const std::string form : {"mean_", "median_", "std_", "p50_", "p99.9_"}) {
      EXPECT_TRUE(j.contains(form + metric + "_ms")) << form << metric;
    }
    EXPECT_EQ(j["median_" + metric + "_ms"], j["p50_" + metric + "_ms"]);
  }
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
                          "generated_texts", "errors"}) {
    ASSERT_TRUE(j.contains(key)) << key;
    EXPECT_EQ(j[key].size(), 3u) << key;
  }
  EXPECT_EQ(j["completed"], 3);
  EXPECT_EQ(j["total_input_tokens"], 48);
  EXPECT_EQ(j["total_output_tokens"], 24);
  EXPECT_EQ(j["request_goodput"], j["request_throughput"]);
  EXPECT_FALSE(SummaryText(j, options).empty());
}

TEST(Load, FailuresAreWhatTheyAre) {
  auto server = Serve(std::chrono::milliseconds(50));
  Target target = TargetOf(*server);
  target.model = "nobody";
  auto load = RunLoad(target, Prompts(1), {});
  ASSERT_TRUE(load.ok());
  EXPECT_EQ(load->records[0].error_kind, "http 404");
  EXPECT_NE(load->records[0].error.find("nobody"), std::string::npos) << load->records[0].error;

  target = TargetOf(*server);
  target.timeout = std::chrono::milliseconds(120);
  load = RunLoad(target, Prompts(1, 100), {});
  ASSERT_TRUE(load.ok());
  EXPECT_EQ(load->records[0].error_kind, "timeout");

  server.reset();
  load = RunLoad(target, Prompts(2), {});
  ASSERT_TRUE(load.ok());
  EXPECT_EQ(load->records[0].error_kind, "connection");
  const Json j = SummaryJson(*load, {}, true);
  EXPECT_EQ(j["failed"], 2);
  EXPECT_EQ(j["completed"], 0);
  EXPECT_EQ(j["failures"]["connection"], 2);
  EXPECT_FALSE(WaitReady(target, std::chrono::milliseconds(0)).ok());
  EXPECT_FALSE(RunLoad(target, {}, {}).ok());
}

TEST(Arrivals, FollowTheRateAndItsShape) {
  LoadOptions o;
  EXPECT_EQ((*Arrivals(o, 3))[2], 0);
  o.request_rate = 50;
  for (const double burstiness : {0.25, 1.0, 16.0}) {
    o.burstiness = burstiness;
    const auto times = *Arrivals(o, 20000);
    EXPECT_NEAR(times.back(), 400, 1e-9);
    std::vector<double> gaps;
    for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
    // Gamma with shape k: standard deviation over mean is 1 / sqrt(k).
    EXPECT_NEAR(StandardDeviation(gaps) / Mean(gaps) * std::sqrt(burstiness), 1, 0.05) << burstiness;
  }
  o.ramp_up = "linear";
  o.ramp_start = 10;
  o.ramp_end = 1000;
  o.burstiness = 100;
  const auto ramp = *Arrivals(o, 1000);
  EXPECT_GT(ramp[100], 4 * (ramp[999] - ramp[899]));
  o.ramp_up = "steep";
  EXPECT_FALSE(Arrivals(o, 1).ok());
  o = {};
  o.request_rate = 0;
  EXPECT_FALSE(Arrivals(o, 1).ok());
  o = {};
  o.burstiness = -1;
  EXPECT_FALSE(Arrivals(o, 1).ok());
}

TEST(Metrics, RefuseUnknownNames) {
  MetricOptions o;
  o.goodput = {{"itl", 1}};
  EXPECT_NE(CheckMetricOptions(o).message().find("'itl' is none of"), std::string::npos);
  o = {};
  o.metrics = {"speed"};
  EXPECT_FALSE(CheckMetricOptions(o).ok());
  o = {};
  o.percentiles = {101};
  EXPECT_FALSE(CheckMetricOptions(o).ok());
}

TEST(Datasets, RandomPromptsHaveTheirLengthsAndPrefix) {
  const auto tokenizer = text::Tokenizer::Load(DemoModel());
  ASSERT_TRUE(tokenizer.ok());
  const auto prompts = RandomPrompts(*tokenizer, {20, 10, 0.5, 5}, 200, 3);
  ASSERT_TRUE(prompts.ok());
  std::set<int64_t> lengths;
  for (const BenchPrompt& p : *prompts) {
    lengths.insert(p.prompt_tokens);
    EXPECT_EQ(std::vector<int32_t>(p.ids.begin(), p.ids.begin() + 5),
              std::vector<int32_t>((*prompts)[0].ids.begin(), (*prompts)[0].ids.begin() + 5));
    EXPECT_GE(p.max_tokens, 5);
    EXPECT_LE(p.max_tokens, 15);
  }
  EXPECT_EQ(*lengths.begin(), 15);
  EXPECT_EQ(*lengths.rbegin(), 35);
  EXPECT_FALSE(RandomPrompts(*tokenizer, {0, 1, 0, 0}, 1, 0).ok());
  EXPECT_FALSE(RandomPrompts(*tokenizer, {1, 1, 1.0, 0}, 1, 0).ok());
}

TEST(Datasets, FilesAreReadAndBadOnesNamed) {
  const std::string folder = ::testing::TempDir();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + name) << text;
    return folder + name;
  };
  const auto custom = CustomPrompts(
      write("measure_custom.jsonl", "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\", \"output_tokens\": 7}\n"), 5, 3);
  ASSERT_TRUE(custom.ok()) << custom.status().message();
  EXPECT_EQ((*custom)[0].max_tokens, 5);
  EXPECT_EQ((*custom)[1].max_tokens, 7);
  EXPECT_EQ((*custom)[2].text, "a");
  EXPECT_NE(
      CustomPrompts(write("measure_bad.jsonl", "{\"prompt\": \"a\"}\n{}\n"), 5, 1).status().message().find("line 2"),
      std::string::npos);
  EXPECT_EQ(CustomPrompts(folder + "measure_none", 5, 1).status().code(), Code::kUnusableModel);

  const auto tokenizer = text::Tokenizer::Load(DemoModel());
  const std::string talk =
      R"([{"conversations": [{"from": "human", "value": "one two three four five six seven"},
                            {"from": "gpt", "value": "eight nine ten eleven twelve"}]},
         {"conversations": [{"value": "x"}]}, 3])";
  const auto shared = ShareGptPrompts(write("measure_sharegpt.json", talk), *tokenizer, 0, 2, 0);
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  EXPECT_EQ(shared->size(), 2u);
  EXPECT_EQ((*shared)[1].text, "one two three four five six seven");
  EXPECT_GE((*shared)[0].max_tokens, 4);
  EXPECT_FALSE(ShareGptPrompts(write("measure_sharegpt.json", "[]"), *tokenizer, 0, 2, 0).ok());

  const auto url = ImageUrl(write("measure_image", "\x89PNGx"));
  EXPECT_EQ(*url, "data:image/png;base64,iVBOR3g=");
}

TEST(Body, IsWhatTheServerExpects) {
  Target t;
  t.model = "m";
  t.endpoint = "/v1/chat/completions";
  t.extra_body = R"({"top_k": 3})";
  BenchPrompt p;
  p.text = "Hi";
  p.images = {"data:image/png;base64,AA=="};
  const Json body = Json::parse(*RequestBody(t, p));
  EXPECT_EQ(body["messages"][0]["content"][0]["image_url"]["url"], p.images[0]);
  EXPECT_EQ(body["messages"][0]["content"][1]["text"], "Hi");
  EXPECT_EQ(body["top_k"], 3);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  t.extra_body = "[]";
  EXPECT_FALSE(RequestBody(t, p).ok());
}

}  // namespace
}  // namespace fluvial::measure
