// SPDX-License-Identifier: Apache-2.0
// fluvial bench latency and bench throughput: the engine alone, in this process, with vLLM's options and JSON keys.
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>

#include "fluvial/engine.h"
#include "measure/metrics.h"
#include "measure/statistics.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/load_flags.h"
#include "tools/load_notice.h"
#include "tools/progress.h"

namespace fluvial::tools {
namespace {

using measure::Json;
using Clock = std::chrono::steady_clock;

struct Options {
  EngineFlags engine;
  DatasetFlags dataset;                                      // throughput
  int64_t input_len = 32, output_len = 128, batch_size = 8;  // latency
  int32_t warmups = 10, iterations = 30;
  std::string json, log_level = "warning";
};

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Result<std::unique_ptr<Engine>> LoadEngine(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(LogToStderr(o.log_level));
  FLUVIAL_ASSIGN_OR_RETURN(const EngineOptions options, ToEngineOptions(o.engine));
  const LoadNotice notice(options.model);
  auto engine = Engine::Load(options);
  if (engine.ok()) WarnOfUnusedBackends(options, **engine);
  return engine;
}

/// Runs the requests and gives the seconds that it took; kFailed when one of them did not end well.
Result<double> Time(Engine& engine, std::vector<Request> requests, std::vector<Completion>* completions) {
  const Clock::time_point begin = Clock::now();
  FLUVIAL_ASSIGN_OR_RETURN(*completions, engine.Generate(std::move(requests)));
  const double seconds = SecondsSince(begin);
  for (const Completion& c : *completions) {
    if (c.finish_reason == FinishReason::kError) return c.status;
  }
  return seconds;
}

Json BackendsJson(const Engine& engine) {
  Json j = Json::object();
  for (const BackendUse& use : engine.backends()) j[use.op] = use.name;
  return j;
}

Status Save(const Options& o, const Json& j) {
  return o.json.empty() ? Status::Ok() : WriteFile(o.json, j.dump(2) + "\n");
}

Result<int> Latency(const Options& o) {
  if (o.input_len < 1 || o.output_len < 1 || o.batch_size < 1 || o.iterations < 1 || o.warmups < 0) {
    return Status::InvalidArgument("lengths, --batch-size and --num-iters must be at least 1");
  }
  FLUVIAL_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(o));
  std::mt19937_64 random(0);
  std::vector<Request> requests(static_cast<size_t>(o.batch_size));
  for (Request& r : requests) {
    for (int64_t i = 0; i < o.input_len; ++i) {
      r.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(engine->info().vocab_size)));
    }
    r.max_tokens = o.output_len;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
  }
  std::vector<double> latencies, first;
  std::vector<Completion> completions;
  {
    ProgressLine line("iterations");
    for (int i = -o.warmups; i < o.iterations; ++i) {
      FLUVIAL_ASSIGN_OR_RETURN(const double seconds, Time(*engine, requests, &completions));
      if (i < 0) continue;
      latencies.push_back(seconds);
      for (const Completion& c : completions) first.push_back(c.first_token_seconds);
      line.Update(i + 1, 0, o.iterations);
    }
  }
  Json j;
  j["avg_latency"] = measure::Mean(latencies);
  j["latencies"] = latencies;
  for (const double p : {10.0, 25.0, 50.0, 75.0, 90.0, 99.0}) {
    j["percentiles"][measure::PercentileName(p)] = measure::Percentile(latencies, p);
  }
  j["first_token_seconds"] = measure::Median(first);
  j["backends"] = BackendsJson(*engine);
  char text[160];
  std::snprintf(text, sizeof(text), "Avg latency: %.4f seconds (first token, median: %.4f)\n", measure::Mean(latencies),
                measure::Median(first));
  Print(text);
  for (const auto& [p, value] : j["percentiles"].items()) {
    std::snprintf(text, sizeof(text), "%s%% percentile latency: %.4f seconds\n", p.c_str(), value.get<double>());
    Print(text);
  }
  FLUVIAL_RETURN_IF_ERROR(Save(o, j));
  return Finish();
}

Result<int> Throughput(const Options& o) {
  FLUVIAL_ASSIGN_OR_RETURN(auto prompts, ReadDataset(o.dataset, o.engine.engine.model));
  FLUVIAL_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(o));
  std::vector<Request> requests;
  std::optional<text::Tokenizer> tokenizer;
  for (measure::BenchPrompt& p : prompts) {
    if (p.ids.empty()) {
      if (!tokenizer.has_value()) {
        FLUVIAL_ASSIGN_OR_RETURN(tokenizer, text::Tokenizer::Load(o.engine.engine.model));
      }
      FLUVIAL_ASSIGN_OR_RETURN(p.ids, tokenizer->Encode(p.text));
    }
    Request r;
    r.prompt = std::move(p.ids);
    r.max_tokens = p.max_tokens;
    r.ignore_eos = true;
    requests.push_back(std::move(r));
  }
  int64_t input = 0, output = 0;
  for (const Request& r : requests) input += static_cast<int64_t>(r.prompt.size());
  const size_t count = requests.size();
  std::vector<Completion> completions;
  FLUVIAL_ASSIGN_OR_RETURN(const double seconds, Time(*engine, std::move(requests), &completions));
  for (const Completion& c : completions) output += static_cast<int64_t>(c.tokens.size());
  Json j;
  j["elapsed_time"] = seconds;
  j["num_requests"] = count;
  j["total_num_tokens"] = input + output;
  j["requests_per_second"] = static_cast<double>(count) / seconds;
  j["tokens_per_second"] = static_cast<double>(input + output) / seconds;
  j["output_tokens_per_second"] = static_cast<double>(output) / seconds;
  j["backends"] = BackendsJson(*engine);
  char text[256];
  std::snprintf(text, sizeof(text),
                "Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n"
                "Total num prompt tokens:  %lld\nTotal num output tokens:  %lld\n",
                static_cast<double>(count) / seconds, static_cast<double>(input + output) / seconds,
                static_cast<double>(output) / seconds, static_cast<long long>(input), static_cast<long long>(output));
  Print(text);
  FLUVIAL_RETURN_IF_ERROR(Save(o, j));
  return Finish();
}

CLI::App* AddCommon(CLI::App& bench, Options& o, const char* name, const char* what) {
  CLI::App* app = bench.add_subcommand(name, what);
  AddEngineFlags(*app, o.engine);
  AddBatchingFlags(*app, o.engine);
  app->add_option("--output-json", o.json, "Write the figures to this file")->type_name("FILE");
  app->add_option("--log-level", o.log_level, "debug, info, warning or error")
      ->type_name("LEVEL")
      ->capture_default_str();
  return app;
}

}  // namespace

Command AddBenchLatency(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* app = AddCommon(bench, *o, "latency", "One batch, again and again, in this process");
  const auto number = [&](const char* option, auto& value, const char* help) {
    app->add_option(option, value, help)->type_name("N")->capture_default_str();
  };
  number("--input-len", o->input_len, "Tokens of a prompt");
  number("--output-len", o->output_len, "Tokens of an answer");
  number("--batch-size", o->batch_size, "Requests at once");
  number("--num-iters-warmup", o->warmups, "Batches before, not measured");
  number("--num-iters", o->iterations, "Batches measured");
  app->footer("Example: fluvial bench latency ./Qwen3.5-0.8B --batch-size 1 --num-iters 5 --num-iters-warmup 1");
  return {app, [o] {
            const Result<int> r = Latency(*o);
            return r.ok() ? *r : Fail(r.status());
          }};
}

Command AddBenchThroughput(CLI::App& bench) {
  auto o = std::make_shared<Options>();
  CLI::App* app = AddCommon(bench, *o, "throughput", "Many requests as fast as they go, in this process");
  AddDatasetFlags(*app, o->dataset);
  app->footer("Example: fluvial bench throughput ./Qwen3.5-0.8B --input-len 256 --output-len 64 --num-prompts 32");
  return {app, [o] {
            const Result<int> r = Throughput(*o);
            return r.ok() ? *r : Fail(r.status());
          }};
}

}  // namespace fluvial::tools
