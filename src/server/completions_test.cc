// SPDX-License-Identifier: Apache-2.0
// A running server with the demo model: what completions say, alone and together.
#include <gtest/gtest.h>

#include "server/server_testkit.h"
#include "text/utf8.h"

namespace fluvial::server::testing {
namespace {

/// One server for all tests: a test that disturbs another is a bug.
class CompletionsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.model = DemoModel();
    options.device = "cpu";
    options.threads = 2;
    options.max_model_len = 1024;
    auto engine = Engine::Load(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    server_ = StartServer(std::move(engine).value());
    ASSERT_NE(server_, nullptr);
    port_ = server_->port();
  }
  static void TearDownTestSuite() { server_.reset(); }

  static Json Base(const std::string& prompt = "A river is") {
    Json body;
    body["model"] = "demo";
    body["prompt"] = prompt;
    body["max_tokens"] = 12;
    body["seed"] = 7;
    return body;
  }
  static Answer Complete(const Json& body) { return PostJson(port_, "/v1/completions", body); }
  static std::string Text(const Answer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? answer.json()["choices"][0]["text"].get<std::string>() : "";
  }

  static std::unique_ptr<Server> server_;
  static uint16_t port_;
};

std::unique_ptr<Server> CompletionsTest::server_;
uint16_t CompletionsTest::port_ = 0;

TEST_F(CompletionsTest, AnswersAreSeededAndCounted) {
  const Answer first = Complete(Base());
  const Json body = first.json();
  EXPECT_EQ(first.headers.at("content-type"), "application/json");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "demo");
  EXPECT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
  EXPECT_EQ(body["usage"]["total_tokens"], body["usage"]["prompt_tokens"].get<int>() + 12);
  EXPECT_EQ(Text(Complete(Base())), Text(first));
  Json other = Base();
  other["seed"] = 8;
  EXPECT_NE(Text(Complete(other)), Text(first));
}

TEST_F(CompletionsTest, StreamsEqualWholeAnswers) {
  for (const int n : {1, 2}) {
    Json body = Base();
    body["n"] = n;
    body["logprobs"] = 1;
    const Json whole = Complete(body).json();
    body["stream"] = true;
    body["stream_options"]["include_usage"] = true;
    const Answer answer = Complete(body);
    EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
    const Streamed streamed = Join(answer);
    EXPECT_EQ(streamed.usage, whole["usage"]);
    EXPECT_EQ(streamed.finish.size(), static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(streamed.text.at(i), whole["choices"][i]["text"]);
      EXPECT_EQ(streamed.finish.at(i), whole["choices"][i]["finish_reason"]);
      EXPECT_EQ(streamed.logprobs.at(i), 12);
    }
  }
}

TEST_F(CompletionsTest, ChoicesAreSeedsInARow) {
  Json body = Base();
  body["n"] = 3;
  const Json together = Complete(body).json();
  for (int i = 0; i < 3; ++i) {
    Json alone = Base();
    alone["seed"] = 7 + i;
    EXPECT_EQ(together["choices"][i]["text"], Text(Complete(alone))) << i;
    EXPECT_EQ(together["choices"][i]["index"], i);
  }
}

TEST_F(CompletionsTest, PromptsComeInFourShapes) {
  const Json ids = PostJson(port_, "/tokenize", Json{{"prompt", "A river is"}}).json()["tokens"];
  const std::string want = Text(Complete(Base()));
  Json body = Base();
  body["prompt"] = ids;
  EXPECT_EQ(Text(Complete(body)), want);
  body["prompt"] = Json::array({ids, ids});
  EXPECT_EQ(Complete(body).json()["choices"].size(), 2u);
  EXPECT_EQ(Complete(body).json()["choices"][0]["text"], want);
  body["prompt"] = Json::array({"A river is", "A lake"});
  EXPECT_EQ(Complete(body).json()["choices"][0]["text"], want);
  body["truncate_prompt_tokens"] = 1;
  body["prompt"] = ids;
  EXPECT_EQ(Complete(body).json()["usage"]["prompt_tokens"], 1);
}

TEST_F(CompletionsTest, EchoGivesThePromptBack) {
  Json body = Base();
  const std::string answer = Text(Complete(body));
  body["echo"] = true;
  EXPECT_EQ(Text(Complete(body)), "A river is" + answer);
  body["stream"] = true;
  EXPECT_EQ(Join(Complete(body)).text.at(0), "A river is" + answer);
  body.erase("stream");
  body["max_tokens"] = 0;
  const Json none = Complete(body).json();
  EXPECT_EQ(none["choices"][0]["text"], "A river is");
  EXPECT_EQ(none["usage"]["completion_tokens"], 0);
}

TEST_F(CompletionsTest, StopStringsCutTheSameTextEverywhere) {
  Json body = Base();
  body["max_tokens"] = 40;
  body["temperature"] = 0;
  const std::string whole = Text(Complete(body));
  ASSERT_GT(whole.size(), 20u);
  for (const size_t at : {size_t{0}, size_t{3}, size_t{10}}) {
    for (size_t length = 1; length <= 8; ++length) {
      const std::string stop = whole.substr(at, length);
      if (!text::IsValidUtf8(stop)) continue;
      const std::string want = whole.substr(0, whole.find(stop));
      for (const bool include : {false, true}) {
        Json stopped = body;
        stopped["stop"] = stop;
        stopped["include_stop_str_in_output"] = include;
        const Json answer = Complete(stopped).json();
        EXPECT_EQ(answer["choices"][0]["text"], include ? want + stop : want) << stop;
        EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
        EXPECT_EQ(answer["choices"][0]["stop_reason"], Json(stop));
        stopped["stream"] = true;
        const Streamed streamed = Join(Complete(stopped));
        EXPECT_EQ(streamed.text.at(0), include ? want + stop : want) << stop;
        EXPECT_EQ(streamed.stop_reason.at(0), Json(stop));
      }
    }
  }
  // A stop that is a piece of the prompt alone does not stop.
  body["stop"] = "A river";
  EXPECT_EQ(Text(Complete(body)), whole);
}

TEST_F(CompletionsTest, LogprobsAreFiniteAndLimited) {
  for (const int k : {0, 1, 5, 20}) {
    for (const double temperature : {0.0, 1.0}) {
      Json body = Base();
      body["logprobs"] = k;
      body["temperature"] = temperature;
      body["top_k"] = 1;
      const Answer answer = Complete(body);
      ASSERT_EQ(answer.status, 200) << answer.body;
      const Json logprobs = answer.json()["choices"][0]["logprobs"];
      EXPECT_EQ(logprobs["tokens"].size(), 12u);
      std::string joined;
      for (const Json& p : logprobs["token_logprobs"]) {
        ASSERT_TRUE(p.is_number());
        EXPECT_LE(p.get<double>(), 0.0);
      }
      EXPECT_EQ(logprobs["text_offset"][0], 0);
      if (k == 0) {
        EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
      } else {
        EXPECT_GE(logprobs["top_logprobs"][0].size(), static_cast<size_t>(k));
        EXPECT_LE(logprobs["top_logprobs"][0].size(), static_cast<size_t>(k + 1));
      }
    }
  }
  Json body = Base();
  body["logprobs"] = 21;
  const Answer answer = Complete(body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.error().find("21"), std::string::npos) << answer.error();
  EXPECT_NE(answer.error().find("20"), std::string::npos) << answer.error();
}

TEST_F(CompletionsTest, SamplingFieldsReachTheEngine) {
  Json body = Base();
  body["logit_bias"]["300"] = 100;
  body["logprobs"] = 0;
  body["return_tokens_as_token_ids"] = true;
  const Json drawn = Complete(body).json()["choices"][0]["logprobs"]["tokens"];
  for (const Json& token : drawn) EXPECT_EQ(token, "token_id:300");
  body["stop_token_ids"] = Json::array({300});
  Json stopped = Complete(body).json();
  EXPECT_EQ(stopped["choices"][0]["stop_reason"], 300);
  EXPECT_EQ(stopped["choices"][0]["text"], "");
  EXPECT_EQ(stopped["usage"]["completion_tokens"], 1);
  body["min_tokens"] = 5;
  EXPECT_EQ(Complete(body).json()["usage"]["completion_tokens"], 6);

  // The model's end token ends the answer unless told otherwise.
  Json ends = Base();
  ends["logit_bias"][std::to_string(kEos)] = 100;
  Json answer = Complete(ends).json();
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(answer["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
  ends["ignore_eos"] = true;
  EXPECT_EQ(Complete(ends).json()["usage"]["completion_tokens"], 12);

  // Of two biased tokens the model prefers one; a penalty gives the other its turn more often.
  Json two = Base();
  two["temperature"] = 0;
  two["max_tokens"] = 24;
  two["logit_bias"]["300"] = 100;
  two["logit_bias"]["301"] = 100;
  const std::string biased = Text(Complete(two));
  two["frequency_penalty"] = 2;
  EXPECT_NE(Text(Complete(two)), biased);
  Json repetition = Base();
  repetition["temperature"] = 0;
  const std::string without = Text(Complete(repetition));
  repetition["repetition_penalty"] = 50;
  EXPECT_NE(Text(Complete(repetition)), without);
}

TEST_F(CompletionsTest, BadRequestsSayWhatIsWrongAndDisturbNobody) {
  struct Case {
    const char* fields;
    const char* param;
    const char* says;
  };
  const Case cases[] = {
      {R"({"prompt": 5})", "prompt", "must be a string"},
      {R"({"prompt": []})", "prompt", "must be a string"},
      {R"({"prompt": ["a", 3]})", "prompt", "must be a string"},
      {R"({"prompt": [1, -2]})", "prompt", "no token id"},
      {R"({"prompt": [1, 99999]})", "", "99999"},
      {R"({"prompt": ""})", "", "empty"},
      {R"({"prompt": null})", "prompt", "no prompt"},
      {R"({"max_tokens": 0})", "max_tokens", "at least 1"},
      {R"({"max_tokens": -5})", "max_tokens", "-5"},
      {R"({"max_tokens": "many"})", "max_tokens", "integer"},
      {R"({"temperature": "hot"})", "temperature", "number"},
      {R"({"temperature": -1})", "", "temperature"},
      {R"({"top_p": 0})", "", "top_p"},
      {R"({"top_p": 1.5})", "", "top_p"},
      {R"({"n": 0})", "n", "1..128"},
      {R"({"n": 1000})", "n", "1..128"},
      {R"({"stop": [1]})", "stop", "strings"},
      {R"({"stop": ""})", "stop", "none empty"},
      {R"({"logit_bias": {"x": 1}})", "logit_bias", "token ids"},
      {R"({"logit_bias": {"5": "much"}})", "logit_bias", "token ids"},
      {R"({"logit_bias": {"99999": 1}})", "", "99999"},
      {R"({"stream": "yes"})", "stream", "true or false"},
      {R"({"stream_options": {"include_usage": true}})", "stream_options", "stream"},
      {R"({"stream": true, "stream_options": {"typo": 1}})", "stream_options", "typo"},
      {R"({"response_format": {"type": "json_object"}})", "response_format", "grammar"},
      {R"({"guided_regex": "a+"})", "guided_regex", "grammar"},
      {R"({"structured_outputs": {"choice": ["a"]}})", "structured_outputs", "grammar"},
      {R"({"suffix": "end"})", "suffix", "not supported"},
      {R"({"bad_words": ["x"]})", "bad_words", "logit_bias"},
      {R"({"best_of": 3})", "best_of", "best_of"},
      {R"({"multi_modal_data": {"image": "x"}})", "multi_modal_data", "no field"},
      {R"({"min_tokens": 50})", "", "min_tokens"},
      {R"({"seed": 1.5})", "seed", "integer"},
  };
  const std::string want = Text(Complete(Base()));
  for (const Case& c : cases) {
    Json body = Base();
    body.update(Json::parse(c.fields));
    const Answer answer = Complete(body);
    EXPECT_EQ(answer.status, 400) << c.fields << answer.body;
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_NE(answer.error().find(c.says), std::string::npos) << c.fields << " -> " << answer.error();
    if (*c.param != 0) {
      EXPECT_EQ(error["param"], Json(c.param)) << c.fields;
    }
  }
  EXPECT_EQ(Text(Complete(Base())), want);
}

TEST_F(CompletionsTest, OverlongPromptsNameBothNumbers) {
  Json body = Base();
  body["prompt"] = Json::array();
  for (int i = 0; i < 1500; ++i) body["prompt"].push_back(300);
  const Answer answer = Complete(body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.error().find("1500"), std::string::npos) << answer.error();
  EXPECT_NE(answer.error().find("1023"), std::string::npos) << answer.error();
}

TEST_F(CompletionsTest, ModelsAndPathsAndMethods) {
  EXPECT_EQ(Get(port_, "/health").status, 200);
  EXPECT_EQ(Get(port_, "/ping").status, 200);
  const Json models = Get(port_, "/v1/models").json();
  EXPECT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "demo");
  EXPECT_EQ(models["data"][0]["max_model_len"], 1024);
  EXPECT_EQ(Get(port_, "/v1/models/alias").json()["id"], "alias");
  EXPECT_EQ(Get(port_, "/v1/models/other").status, 404);
  EXPECT_EQ(Get(port_, "/version").json()["version"], "0.1.0");
  EXPECT_EQ(Get(port_, "/load").status, 200);
  EXPECT_EQ(Get(port_, "/nothing").status, 404);
  const Answer wrong = Get(port_, "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  Json body = Base();
  body["model"] = "gpt-9";
  const Answer unknown = Complete(body);
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json()["error"]["code"], "model_not_found");
  body["model"] = "alias";
  EXPECT_EQ(Complete(body).json()["model"], "alias");
}

TEST_F(CompletionsTest, TokenizeAndBack) {
  const std::string text = "A river, \xE6\xB2\xB3.\n";
  const Json answer = PostJson(port_, "/tokenize", Json{{"prompt", text}, {"return_token_strs", true}}).json();
  EXPECT_EQ(answer["count"], answer["tokens"].size());
  EXPECT_EQ(answer["token_strs"].size(), answer["tokens"].size());
  EXPECT_EQ(PostJson(port_, "/detokenize", Json{{"tokens", answer["tokens"]}}).json()["prompt"], text);
  EXPECT_EQ(PostJson(port_, "/tokenize", Json::object()).status, 400);
  EXPECT_EQ(PostJson(port_, "/detokenize", Json{{"tokens", "x"}}).status, 400);
}

TEST_F(CompletionsTest, ManyAtOnceAnswerAsAlone) {
  constexpr int kClients = 64;
  const auto body_of = [](int i) {
    Json body = Base(std::string(static_cast<size_t>(1 + 13 * i % 300), static_cast<char>('a' + i % 26)));
    body["seed"] = i;
    body["max_tokens"] = 1 + i % 24;
    body["temperature"] = i % 3 == 0 ? 0.0 : 1.0;
    return body;
  };
  std::vector<std::string> alone(kClients), together(kClients);
  for (int i = 0; i < kClients; ++i) alone[i] = Text(Complete(body_of(i)));
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      Json body = body_of(i);
      if (i % 2 == 0) {
        body["stream"] = true;
        together[i] = Join(Complete(body)).text[0];
      } else {
        together[i] = Text(Complete(body));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(together, alone);
  EXPECT_TRUE(Soon([] { return server_->active() == 0; }));
}

TEST_F(CompletionsTest, MetricsHaveTheNamesOfDashboards) {
  Complete(Base());
  const Answer page = Get(port_, "/metrics");
  EXPECT_EQ(page.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* name : {"vllm:num_requests_running{",
                           "vllm:num_requests_waiting{",
                           "vllm:kv_cache_usage_perc{",
                           "vllm:gpu_cache_usage_perc{",
                           "vllm:prompt_tokens_total{",
                           "vllm:generation_tokens_total{",
                           "vllm:request_success_total{",
                           "vllm:num_preemptions_total{",
                           "vllm:prefix_cache_queries_total{",
                           "vllm:prefix_cache_hits_total{",
                           "vllm:corrupted_requests_total{",
                           "vllm:time_to_first_token_seconds_bucket{",
                           "vllm:inter_token_latency_seconds_sum{",
                           "vllm:time_per_output_token_seconds_count{",
                           "vllm:e2e_request_latency_seconds_count{",
                           "vllm:request_queue_time_seconds_count{",
                           "vllm:request_prefill_time_seconds_count{",
                           "vllm:request_decode_time_seconds_count{",
                           "vllm:request_inference_time_seconds_count{",
                           "vllm:request_prompt_tokens_count{",
                           "vllm:request_generation_tokens_count{",
                           "vllm:request_max_num_generation_tokens_count{",
                           "vllm:request_params_n_count{",
                           "vllm:request_params_max_tokens_count{",
                           "vllm:iteration_tokens_total_count{",
                           "vllm:cache_config_info{",
                           "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"200\"}",
                           "http_request_duration_seconds_count"}) {
    EXPECT_NE(page.body.find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace fluvial::server::testing
