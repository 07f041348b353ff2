// SPDX-License-Identifier: Apache-2.0
// fluvial compare: two configurations of `fluvial serve`, or two servers, launched A B B A, and what that establishes.
#include "measure/compare.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "measure/metrics.h"
#include "server/http_client.h"
#include "tools/child_server.h"
#include "tools/command.h"
#include "tools/load_flags.h"
#include "tools/progress.h"

namespace fluvial::tools {
namespace {

using measure::Json;
using measure::Launch;

struct Options {
  std::string model, a, b;
  DatasetFlags dataset;
  std::string rate = "inf";
  measure::LoadOptions load;
  int64_t repeats = 4, warmups = 4;
  std::string eval;
  int64_t eval_questions = 0, eval_tokens = 256;
  double margin = 0.02, timeout = 600, launch_timeout = 600;
  std::string json, markdown, html;
};

bool IsUrl(const std::string& text) { return text.starts_with("http://") || text.starts_with("https://"); }

/// Words as a shell splits them, with 'single' and "double" quotes.
Result<std::vector<std::string>> SplitWords(const std::string& text, const std::string& option) {
  std::vector<std::string> words;
  std::string word;
  bool any = false;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      any = true;
    } else if (c == ' ') {
      if (any || !word.empty()) words.push_back(std::exchange(word, {}));
      any = false;
    } else {
      word += c;
    }
  }
  if (quote != 0) return Status::InvalidArgument(option + " has a quote that does not end");
  if (any || !word.empty()) words.push_back(word);
  return words;
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

struct Workload {
  std::vector<measure::BenchPrompt> prompts;
  std::vector<measure::EvalItem> items;
  std::vector<measure::BenchPrompt> questions;
};

/// Sends everything to `target`; what fails stays in the launch.
Status Measure(const Options& o, const Workload& work, measure::Target target, bool evaluate, ProgressLine* line,
               Launch* launch) {
  FLUVIAL_ASSIGN_OR_RETURN(target.model, measure::FirstModel(target));
  launch->facts["model"] = target.model;
  target.ignore_eos = true;
  if (o.warmups > 0) {
    std::vector<measure::BenchPrompt> warm;
    for (int64_t i = 0; i < o.warmups; ++i) warm.push_back(work.prompts[static_cast<size_t>(i) % work.prompts.size()]);
    FLUVIAL_ASSIGN_OR_RETURN(const auto ignored, measure::RunLoad(target, warm, o.load));
  }
  const auto update = [&](int64_t done, int64_t failed, int64_t total) { line->Update(done, failed, total); };
  FLUVIAL_ASSIGN_OR_RETURN(launch->load, measure::RunLoad(target, work.prompts, o.load, update));
  if (!evaluate || work.items.empty()) return Status::Ok();
  target.ignore_eos = false;
  target.endpoint = "/v1/chat/completions";
  target.temperature = 0;
  target.seed = 42;
  measure::LoadOptions at_once;
  at_once.max_concurrency = o.load.max_concurrency;
  FLUVIAL_ASSIGN_OR_RETURN(launch->eval, measure::RunLoad(target, work.questions, at_once, update));
  launch->evaluated = true;
  return Status::Ok();
}

bool AnyBroken(const measure::LoadResult& load) {
  return std::any_of(load.records.begin(), load.records.end(),
                     [](const auto& r) { return r.error_kind == "connection" || r.error_kind == "stream"; });
}

Result<Launch> LaunchOnce(const Options& o, const Workload& work, char side, bool evaluate, const std::string& label) {
  const std::string& configuration = side == 'A' ? o.a : o.b;
  Launch launch;
  launch.side = side;
  ProgressLine line(label);
  measure::Target target;
  target.timeout = Milliseconds(o.timeout);
  const auto begin = std::chrono::steady_clock::now();
  std::unique_ptr<ChildServer> child;
  if (IsUrl(configuration)) {
    target.base_url = configuration;
    launch.facts["server"] = configuration;
  } else {
    FLUVIAL_ASSIGN_OR_RETURN(std::vector<std::string> words, SplitWords(configuration, side == 'A' ? "--a" : "--b"));
    words.insert(words.begin(), {"serve", o.model});
    launch.facts["arguments"] = words;
    FLUVIAL_ASSIGN_OR_RETURN(child, ChildServer::Start(words));
    const Result<std::string> url = child->WaitUrl(Milliseconds(o.launch_timeout));
    if (!url.ok()) {
      launch.error = url.status().message();
      launch.error_kind = url.status().code() == Code::kRefused ? "refused" : "launch";
      launch.facts["log"] = child->Log();
      return launch;
    }
    target.base_url = *url;
  }
  const Status ready = measure::WaitReady(target, std::chrono::milliseconds(child == nullptr ? 0 : 10'000));
  launch.start_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  server::HttpCall version;
  version.url = target.base_url + "/version";
  version.timeout = std::chrono::milliseconds(5000);
  if (const auto reply = server::CallHttp(version); reply.ok() && reply->status == 200) {
    launch.facts["version"] = reply->body;
  }
  const Status measured = ready.ok() ? Measure(o, work, target, evaluate, &line, &launch) : ready;
  std::string ended = child == nullptr ? "" : child->Ended();
  // A process that dies closes its connections some time before it can be waited for.
  const bool broken = !measured.ok() || AnyBroken(launch.load) || AnyBroken(launch.eval);
  for (int i = 0; child != nullptr && broken && ended.empty() && i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = child->Ended();
  }
  if (!ended.empty()) {
    launch.error = "the server ended during the measurement: " + ended;
    launch.error_kind = "server died";
  } else if (!measured.ok()) {
    launch.error = measured.message();
    launch.error_kind = "connection";
  }
  if (child != nullptr) launch.facts["log"] = child->Log();
  return launch;
}

Status CheckOptions(const Options& o) {
  if (o.a.empty() && o.b.empty()) return Status::InvalidArgument("--a and --b say what to compare");
  if (o.model.empty() && !(IsUrl(o.a) && IsUrl(o.b))) {
    return Status::InvalidArgument("MODEL is needed, unless --a and --b are URLs of servers");
  }
  if (o.repeats < 1 || o.warmups < 0 || o.load.max_concurrency < 0 || o.eval_tokens < 1) {
    return Status::InvalidArgument("--repeats and --eval-max-tokens must be at least 1, other counts 0 or more");
  }
  if (!(o.margin > 0 && o.margin < 1)) return Status::InvalidArgument("--margin must be above 0 and below 1");
  if (!(o.timeout > 0) || !(o.launch_timeout > 0)) return Status::InvalidArgument("a timeout must be above 0 seconds");
  return Status::Ok();
}

Result<Workload> ReadWorkload(const Options& o) {
  Workload work;
  FLUVIAL_ASSIGN_OR_RETURN(work.prompts, ReadDataset(o.dataset, o.model));
  if (o.eval.empty()) return work;
  FLUVIAL_ASSIGN_OR_RETURN(work.items, measure::ReadEvalItems(o.eval, o.eval_questions));
  work.questions = measure::EvalPrompts(work.items, {}, true, o.eval_tokens);
  return work;
}

Json Describe(const Options& o) {
  Json j{{"dataset", o.dataset.name}, {"num_prompts", o.dataset.num_prompts}};
  if (o.dataset.name == "random") {
    j["input_len"] = o.dataset.random.input_len;
    j["output_len"] = o.dataset.random.output_len;
  } else {
    j["dataset_path"] = o.dataset.path;
  }
  j["request_rate"] = o.rate;
  j["max_concurrency"] = o.load.max_concurrency;
  j["seed"] = o.dataset.seed;
  j["eval"] = o.eval.empty() ? Json() : Json(o.eval);
  j["order"] = measure::LaunchOrder(o.repeats);
  j["date"] = DateStamp();
  return j;
}

Result<int> Compare(Options o) {
  FLUVIAL_RETURN_IF_ERROR(CheckOptions(o));
  FLUVIAL_ASSIGN_OR_RETURN(o.load.request_rate, ParseRate(o.rate, "--request-rate"));
  o.load.seed = o.dataset.seed;
  FLUVIAL_ASSIGN_OR_RETURN(const Workload work, ReadWorkload(o));
  measure::CompareInput input;
  const auto name = [&](const std::string& side) {
    return IsUrl(side) ? side : "fluvial serve " + o.model + " " + side;
  };
  input.name_a = name(o.a);
  input.name_b = name(o.b);
  input.items = work.items;
  input.margin = o.margin;
  input.seed = o.dataset.seed;
  input.workload = Describe(o);
  const std::string order = measure::LaunchOrder(o.repeats);
  bool evaluated[2] = {false, false};
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string label =
        "launch " + std::to_string(i + 1) + " of " + std::to_string(order.size()) + " (" + order[i] + ")";
    bool& done = evaluated[order[i] == 'B'];
    FLUVIAL_ASSIGN_OR_RETURN(Launch launch, LaunchOnce(o, work, order[i], !done, label));
    done = done || launch.evaluated;
    if (!launch.error.empty()) std::fprintf(stderr, "%s: %s\n", label.c_str(), launch.error.c_str());
    input.launches.push_back(std::move(launch));
  }
  const Json report = measure::CompareJson(input);
  const std::string markdown = measure::CompareMarkdown(report);
  Print(markdown);
  if (!o.json.empty()) {
    FLUVIAL_RETURN_IF_ERROR(WriteFile(o.json, report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"));
  }
  if (!o.markdown.empty()) FLUVIAL_RETURN_IF_ERROR(WriteFile(o.markdown, markdown));
  if (!o.html.empty()) FLUVIAL_RETURN_IF_ERROR(WriteFile(o.html, measure::CompareHtml(report)));
  return Finish();
}

}  // namespace

Command AddCompare(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("compare", "Two configurations or servers: which is faster, which answers better");
  auto o = std::make_shared<Options>();
  o->dataset.num_prompts = 16;
  o->dataset.random.input_len = 128;
  o->dataset.random.output_len = 32;
  o->load.max_concurrency = 4;
  app->add_option("model,--model", o->model, "Folder of the checkpoint; not needed for two URLs")->type_name("MODEL");
  app->add_option("--a", o->a, "Options of fluvial serve in one word, or the URL of a server")->type_name("OPTIONS");
  app->add_option("--b", o->b, "The same of the other side")->type_name("OPTIONS");
  app->add_option("--repeats", o->repeats, "Times A B B A; fewer than 3 rarely establish anything")
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--num-warmups", o->warmups, "Requests of each launch before, not measured")
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--request-rate", o->rate, "Requests per second, or inf")->type_name("X")->capture_default_str();
  app->add_option("--max-concurrency", o->load.max_concurrency, "Most requests under way; 0: no limit")
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--request-timeout", o->timeout, "A request that takes longer has failed")
      ->type_name("SECONDS")
      ->capture_default_str();
  app->add_option("--launch-timeout", o->launch_timeout, "A server that takes longer to be ready has failed")
      ->type_name("SECONDS")
      ->capture_default_str();
  app->add_option("--eval", o->eval, "Also compare answers to these questions (as eval gsm8k --chat)")
      ->type_name("FILE");
  app->add_option("--eval-questions", o->eval_questions, "Only the first so many; 0: all")->type_name("N");
  app->add_option("--eval-max-tokens", o->eval_tokens, "Longest answer")->type_name("N")->capture_default_str();
  app->add_option("--margin", o->margin, "Share of the items that may differ and still be called equal")
      ->type_name("X")
      ->capture_default_str();
  app->add_option("--json", o->json, "Write every launch, request and failure")->type_name("FILE");
  app->add_option("--markdown", o->markdown, "Write the report")->type_name("FILE");
  app->add_option("--html", o->html, "Write the report with plots, in one file")->type_name("FILE");
  AddDatasetFlags(*app, o->dataset);
  app->footer(
      "Every launch is a fresh process. A side that fails to start is in the report with its reason.\n"
      "Examples:\n"
      "  fluvial compare ./Qwen3.5-0.8B --a=\"--mamba-ssm-cache-dtype float32\" --b=\"--mamba-ssm-cache-dtype "
      "bfloat16\"\n"
      "      --eval questions.jsonl --html report.html --json report.json\n"
      "  fluvial compare --a http://127.0.0.1:8000 --b http://127.0.0.1:8001 --tokenizer ./Qwen3.5-0.8B");
  return {app, [o] {
            const Result<int> r = Compare(*o);
            return r.ok() ? *r : Fail(r.status());
          }};
}

}  // namespace fluvial::tools
