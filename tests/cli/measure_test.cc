// SPDX-License-Identifier: Apache-2.0
// bench serve, bench latency, bench throughput, eval and compare on the random demo model: what they print and write.
#include <nlohmann/json.hpp>

#include <fstream>

#include "cli_testkit.h"

namespace fluvial::tools {
namespace {

using Json = nlohmann::json;

const char kModel[] = "models/demo-random-gdn";

Json ReadJson(const std::filesystem::path& path) {
  std::ifstream in(path);
  return Json::parse(in, nullptr, false);
}

TEST_F(CliTest, BenchLatencyAndThroughputWriteVllmsKeys) {
  const std::string model = Source(kModel), file = (folder() / "out.json").string();
  Ran r =
      Run("bench latency " + model + " --input-len 4 --output-len 3 --batch-size 2 --num-iters 2 --num-iters-warmup 1" +
          " --output-json " + file);
  ASSERT_EQ(r.status, 0) << r.err;
  Json j = ReadJson(file);
  EXPECT_EQ(j["latencies"].size(), 2u);
  EXPECT_GT(j["avg_latency"], 0);
  EXPECT_TRUE(j["percentiles"].contains("99"));
  r = Run("bench throughput " + model + " --input-len 4 --output-len 3 --num-prompts 5 --output-json " + file);
  ASSERT_EQ(r.status, 0) << r.err;
  j = ReadJson(file);
  EXPECT_EQ(j["num_requests"], 5);
  EXPECT_EQ(j["total_num_tokens"], 35);
  EXPECT_GT(j["tokens_per_second"], 0);
  EXPECT_GT(j["elapsed_time"], 0);
  ExpectError("bench", 2, "bench");
  ExpectError("bench latency " + model + " --batch-size 0", 2, "--batch-size");
  ExpectError("bench serve --port 1 --model x --num-prompts 0", 2, "--num-prompts");
  ExpectError("bench serve --port 1 --model " + model, 1, "connection");
  ExpectError("bench serve --goodput itl:3", 2, "'itl' is none of");
  ExpectError("bench serve --request-rate 0", 2, "--request-rate");
}

TEST_F(CliTest, EvalScoresEveryItem) {
  const std::string data = (folder() / "items.jsonl").string(), file = (folder() / "out.json").string();
  std::ofstream(data) << R"({"question": "1+1?", "answer": "#### 2"})" << "\n"
                      << R"({"question": "2+1?", "answer": "#### 3"})";
  const std::string eval = "eval gsm8k " + Source(kModel).string() + " --data " + data;
  for (const std::string& how : {std::string(" --chat"), " --num-shots 1 --train " + data}) {
    const Ran r = Run(eval + how + " --max-tokens 4 --json " + file);
    ASSERT_EQ(r.status, 0) << r.err;
    const Json j = ReadJson(file);
    EXPECT_EQ(j["num_questions"], 2);
    EXPECT_EQ(j["failed"], 0);
    EXPECT_EQ(j["items"].size(), 2u);
    EXPECT_GT(j["items"][0]["output_tokens"], 0);
  }
  ExpectError(eval, 2, "--train");
  ExpectError("eval mmlu " + Source(kModel).string(), 2, "there is no evaluation 'mmlu'");
  ExpectError("eval gsm8k " + Source(kModel).string() + " --chat --data /none.jsonl", 3, "cannot be read");
  ExpectError("eval gsm8k http://127.0.0.1:1 --chat --data " + data, 1, "cannot be reached");
}

TEST_F(CliTest, CompareKeepsARefusalAsAResult) {
  const std::string json = (folder() / "out.json").string(), html = (folder() / "out.html").string();
  const Ran r = Run("compare " + Source(kModel).string() +
                    " --a=\"--threads 1\" --b=\"--gdn-prefill-backend cuda_chunk16 --device cpu\" --repeats 1 " +
                    "--num-warmups 0 --num-prompts 2 --input-len 4 --output-len 4 --json " + json + " --html " + html);
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = ReadJson(json);
  ASSERT_EQ(j["launches"].size(), 4u);
  EXPECT_EQ(j["launches"][0]["result"]["completed"], 2) << j["launches"][0]["error"];
  EXPECT_EQ(j["launches"][1]["error_kind"], "refused") << j["launches"][1]["error"];
  EXPECT_EQ(j["failures"].size(), 2u);
  EXPECT_EQ(j["metrics"]["ttft"]["verdict"], "not established");
  EXPECT_NE(r.out.find("refused"), std::string::npos);
  EXPECT_GT(std::filesystem::file_size(html), 2000u);
  ExpectError("compare", 2, "--a and --b");
  ExpectError("compare --a x --b y", 2, "MODEL is needed");
}

}  // namespace
}  // namespace fluvial::tools
