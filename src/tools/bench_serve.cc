// SPDX-License-Identifier: Apache-2.0
// fluvial bench serve: a load on an OpenAI server, measured at the client, with the options and keys of vLLM's.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "measure/metrics.h"
#include "tools/command.h"
#include "tools/load_flags.h"
#include "tools/progress.h"

namespace fluvial::tools {
namespace {

using measure::Json;

struct Options {
  std::string backend = "openai";
  std::string base_url, host = "127.0.0.1", endpoint;
  int32_t port = 8000;
  measure::Target target;
  DatasetFlags dataset;
  measure::LoadOptions load;
  std::string rate = "inf";
  int64_t warmups = 0;
  double timeout = 600, ready_timeout = 0;
  std::string metrics = "ttft,tpot,itl", percentiles = "99";
  std::vector<std::string> goodput, metadata;
  bool save_result = false, save_detailed = false, no_progress = false;
  std::string result_dir = ".", result_filename, label;
};

Result<measure::MetricOptions> MetricsOf(const Options& o) {
  measure::MetricOptions m;
  m.metrics = SplitList(o.metrics);
  FLUVIAL_ASSIGN_OR_RETURN(m.percentiles, ParseNumbers(o.percentiles, "--metric-percentiles"));
  for (const std::string& item : o.goodput) {
    const size_t colon = item.find(':');
    if (colon == std::string::npos) {
      return Status::InvalidArgument("--goodput: '" + item + "' is not NAME:MILLISECONDS, e.g. ttft:500");
    }
    FLUVIAL_ASSIGN_OR_RETURN(const auto bound, ParseNumbers(item.substr(colon + 1), "--goodput"));
    if (bound.size() != 1) return Status::InvalidArgument("--goodput: '" + item + "' needs one number");
    m.goodput[item.substr(0, colon)] = bound[0];
  }
  FLUVIAL_RETURN_IF_ERROR(measure::CheckMetricOptions(m));
  return m;
}

Result<measure::Target> TargetOf(const Options& o) {
  measure::Target t = o.target;
  if (o.backend != "openai" && o.backend != "openai-chat" && o.backend != "vllm") {
    return Status::InvalidArgument("--backend: there is no '" + o.backend + "'; use openai, openai-chat or vllm");
  }
  t.base_url = o.base_url.empty() ? "http://" + o.host + ":" + std::to_string(o.port) : o.base_url;
  t.endpoint = !o.endpoint.empty()          ? o.endpoint
               : o.backend == "openai-chat" ? "/v1/chat/completions"
                                            : "/v1/completions";
  if (!(o.timeout > 0 && o.timeout < 1e6)) return Status::InvalidArgument("--request-timeout must be above 0");
  t.timeout = std::chrono::milliseconds(static_cast<int64_t>(o.timeout * 1000));
  return t;
}

Status Save(const Options& o, const measure::Target& target, Json summary) {
  Json j;
  const std::string date = DateStamp();
  j["date"] = date;
  j["endpoint_type"] = o.backend;
  j["backend"] = o.backend;
  j["label"] = o.label.empty() ? Json() : Json(o.label);
  j["model_id"] = target.model;
  j["model"] = target.model;
  j["tokenizer_id"] = o.dataset.tokenizer.empty() ? target.model : o.dataset.tokenizer;
  j["num_prompts"] = o.dataset.num_prompts;
  for (const std::string& item : o.metadata) {
    const size_t equals = item.find('=');
    j[item.substr(0, equals)] = equals == std::string::npos ? "" : item.substr(equals + 1);
  }
  // JSON has no infinity: vLLM writes the word, too.
  j["request_rate"] = std::isinf(o.load.request_rate) ? Json("inf") : Json(o.load.request_rate);
  j["burstiness"] = o.load.burstiness;
  j["max_concurrency"] = o.load.max_concurrency > 0 ? Json(o.load.max_concurrency) : Json();
  j.update(summary);
  std::string name = o.result_filename;
  if (name.empty()) {
    const std::string model = std::filesystem::path(target.model).filename().string();
    const std::string limit =
        o.load.max_concurrency > 0 ? "-concurrency" + std::to_string(o.load.max_concurrency) : std::string();
    name = (o.label.empty() ? o.backend : o.label) + "-" + o.rate + "qps" + limit + "-" + model + "-" + date + ".json";
  }
  std::error_code ignored;
  std::filesystem::create_directories(o.result_dir, ignored);
  const std::string path = (std::filesystem::path(o.result_dir) / name).string();
  FLUVIAL_RETURN_IF_ERROR(WriteFile(path, j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
  std::fprintf(stderr, "saved %s\n", path.c_str());
  return Status::Ok();
}

Result<int> Bench(Options o) {
  FLUVIAL_ASSIGN_OR_RETURN(const measure::MetricOptions metrics, MetricsOf(o));
  FLUVIAL_ASSIGN_OR_RETURN(o.load.request_rate, ParseRate(o.rate, "--request-rate"));
  FLUVIAL_ASSIGN_OR_RETURN(measure::Target target, TargetOf(o));
  o.load.seed = o.dataset.seed;
  if (o.load.max_concurrency < 0) return Status::InvalidArgument("--max-concurrency must be 0 (no limit) or more");
  FLUVIAL_ASSIGN_OR_RETURN(const auto checked, measure::Arrivals(o.load, 1));
  if (o.ready_timeout > 0) {
    FLUVIAL_RETURN_IF_ERROR(
        measure::WaitReady(target, std::chrono::milliseconds(static_cast<int64_t>(o.ready_timeout * 1000))));
  }
  if (target.model.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(target.model, measure::FirstModel(target));
  }
  FLUVIAL_ASSIGN_OR_RETURN(const auto prompts, ReadDataset(o.dataset, target.model));

  // One request before, so that a wrong name or address is an error and not a thousand of them.
  const auto test = measure::SendRequest(target, prompts.front(), std::chrono::steady_clock::now());
  if (!test.ok) return Status::Failed("the first request failed (" + test.error_kind + "): " + test.error);
  if (o.warmups > 0) {
    const std::vector<measure::BenchPrompt> warm(static_cast<size_t>(o.warmups), prompts.front());
    measure::LoadOptions at_once;
    at_once.max_concurrency = o.load.max_concurrency;
    FLUVIAL_ASSIGN_OR_RETURN(const auto ignored, measure::RunLoad(target, warm, at_once));
  }
  Result<measure::LoadResult> load = Status::Failed("");
  {
    ProgressLine line("requests");
    load = measure::RunLoad(target, prompts, o.load, [&](int64_t done, int64_t failed, int64_t total) {
      if (!o.no_progress) line.Update(done, failed, total);
    });
  }
  if (!load.ok()) return load.status();
  const Json summary = measure::SummaryJson(*load, metrics, o.save_detailed);
  Print(measure::SummaryText(summary, metrics));
  if (o.save_result || o.save_detailed) FLUVIAL_RETURN_IF_ERROR(Save(o, target, summary));
  for (const auto& r : load->records) {
    if (r.ok) return Finish();
  }
  return Status::Failed("all requests failed; the first (" + load->records[0].error_kind +
                        "): " + load->records[0].error);
}

void AddArrivals(CLI::App& app, Options& o) {
  const char* group = "Arrivals";
  app.add_option("--request-rate", o.rate, "Requests per second, or inf: all at once")
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_option("--burstiness", o.load.burstiness, "Shape of the gamma distribution of gaps; 1: Poisson")
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-concurrency", o.load.max_concurrency, "Most requests under way; 0: no limit (4096)")
      ->type_name("N")
      ->group(group);
  app.add_option("--ramp-up-strategy", o.load.ramp_up, "linear or exponential: the rate changes from start to end")
      ->type_name("HOW")
      ->group(group);
  app.add_option("--ramp-up-start-rps", o.load.ramp_start, "Requests per second at first")
      ->type_name("X")
      ->group(group);
  app.add_option("--ramp-up-end-rps", o.load.ramp_end, "Requests per second at last")->type_name("X")->group(group);
  app.add_option("--num-warmups", o.warmups, "Requests before, not measured")->type_name("N")->group(group);
}

void AddResults(CLI::App& app, Options& o) {
  const char* group = "Results";
  app.add_option("--percentile-metrics", o.metrics, "Of ttft, tpot, itl, e2el")
      ->type_name("A,B")
      ->capture_default_str()
      ->group(group);
  app.add_option("--metric-percentiles", o.percentiles, "Percentiles to report")
      ->type_name("P,Q")
      ->capture_default_str()
      ->group(group);
  app.add_option("--goodput", o.goodput, "Bounds in ms of requests that count, e.g. ttft:500 tpot:50 e2el:9000")
      ->type_name("NAME:MS")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_flag("--save-result", o.save_result, "Write a JSON file")->group(group);
  app.add_flag("--save-detailed", o.save_detailed, "Write it with the values of every request")->group(group);
  app.add_option("--result-dir", o.result_dir, "Where")->type_name("FOLDER")->capture_default_str()->group(group);
  app.add_option("--result-filename", o.result_filename, "Default: LABEL-RATEqps-MODEL-DATE.json")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--label", o.label, "First part of that name; default: the backend")->type_name("TEXT")->group(group);
  app.add_option("--metadata", o.metadata, "Written into the file")
      ->type_name("KEY=VALUE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_flag("--disable-tqdm", o.no_progress, "No progress on stderr")->group(group);
}

}  // namespace

Command AddBenchServe(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("serve", "A load on an OpenAI server, measured at the client");
  auto o = std::make_shared<Options>();
  app->add_option("--backend", o->backend, "openai (/v1/completions), openai-chat (/v1/chat/completions)")
      ->type_name("NAME")
      ->capture_default_str();
  app->add_option("--base-url", o->base_url, "Server, e.g. http://127.0.0.1:8000; instead of --host and --port")
      ->type_name("URL");
  app->add_option("--host", o->host, "Of the server")->type_name("NAME")->capture_default_str();
  app->add_option("--port", o->port, "Of the server")->type_name("N")->capture_default_str();
  app->add_option("--endpoint", o->endpoint, "Path, when not the backend's usual one")->type_name("PATH");
  app->add_option("--model", o->target.model, "Name in requests; default: the first of /v1/models")->type_name("NAME");
  app->add_option("--api-key", o->target.api_key, "Sent as Authorization: Bearer KEY")->type_name("KEY");
  app->add_flag("--ignore-eos", o->target.ignore_eos, "Answers have their full length");
  app->add_option("--temperature", o->target.temperature, "Sampling; default: the server's")->type_name("X");
  app->add_option("--top-p", o->target.top_p, "Sampling")->type_name("X");
  app->add_option("--top-k", o->target.top_k, "Sampling")->type_name("K");
  app->add_option("--extra-body", o->target.extra_body, "Merged into every request")->type_name("JSON");
  app->add_option("--request-timeout", o->timeout, "A request that takes longer has failed")
      ->type_name("SECONDS")
      ->capture_default_str();
  app->add_option("--ready-check-timeout-sec", o->ready_timeout, "Wait so long for /health; 0: do not ask")
      ->type_name("SECONDS")
      ->capture_default_str();
  AddDatasetFlags(*app, o->dataset);
  AddArrivals(*app, *o);
  AddResults(*app, *o);
  app->footer(
      "Times are the client's: TTFT from sending to the first text, TPOT (E2EL - TTFT) / (tokens - 1), ITL between\n"
      "pieces of text. Connections are opened per request.\n"
      "Examples:\n"
      "  fluvial bench serve --tokenizer ./Qwen3.5-0.8B --input-len 512 --output-len 64 --num-prompts 100 "
      "--ignore-eos\n"
      "  fluvial bench serve --dataset-name custom --dataset-path prompts.jsonl --request-rate 4 --save-result");
  return {app, [o] {
            const Result<int> r = Bench(*o);
            return r.ok() ? *r : Fail(r.status());
          }};
}

}  // namespace fluvial::tools
