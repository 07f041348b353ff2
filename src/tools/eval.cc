// SPDX-License-Identifier: Apache-2.0
// fluvial eval gsm8k: exact match on a model, served in this process, or on a server.
#include <cstdio>
#include <memory>

#include "measure/gsm8k.h"
#include "server/image_input.h"
#include "server/server.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/load_flags.h"
#include "tools/load_notice.h"
#include "tools/progress.h"

namespace fluvial::tools {
namespace {

struct Options {
  EngineFlags engine;
  measure::Target target;
  std::string task;
  std::string data, train, json, log_level = "warning";
  bool chat = false;
  int64_t shots = 5, questions = 0, max_tokens = 256, concurrency = 0;
  double timeout = 600;
};

bool IsUrl(const std::string& text) { return text.starts_with("http://") || text.starts_with("https://"); }

Result<std::unique_ptr<server::Server>> ServeHere(const Options& o) {
  FLUVIAL_ASSIGN_OR_RETURN(const EngineOptions options, ToEngineOptions(o.engine));
  std::unique_ptr<Engine> engine;
  {
    const LoadNotice notice(options.model);
    FLUVIAL_ASSIGN_OR_RETURN(engine, Engine::Load(options));
  }
  WarnOfUnusedBackends(options, *engine);
  FLUVIAL_ASSIGN_OR_RETURN(server::ServedModel model,
                           server::ServedModel::Load(options.model, {}, engine->info(), true));
  if (engine->info().has_vision) {
    FLUVIAL_ASSIGN_OR_RETURN(model.images, server::MakeImageInput(options.model, {}));
  }
  server::ServerOptions s;
  s.http.port = 0;
  s.max_requests = 1 << 20;
  return server::Server::Start(std::move(engine), std::move(model), s);
}

Result<int> Eval(Options& o) {
  if (o.task != "gsm8k") return Status::InvalidArgument("there is no evaluation '" + o.task + "'; evaluations: gsm8k");
  FLUVIAL_RETURN_IF_ERROR(LogToStderr(o.log_level));
  if (o.data.empty()) return Status::InvalidArgument("--data FILE is needed: lines {\"question\", \"answer\"}");
  if (o.shots < 0 || o.max_tokens < 1 || o.concurrency < 0 || !(o.timeout > 0)) {
    return Status::InvalidArgument("--num-shots and --max-concurrency must be 0 or more, --max-tokens at least 1");
  }
  FLUVIAL_ASSIGN_OR_RETURN(const auto items, measure::ReadEvalItems(o.data, o.questions));
  std::vector<measure::EvalItem> shots;
  if (!o.chat && o.shots > 0) {
    if (o.train.empty()) {
      return Status::InvalidArgument("--train FILE is needed for " + std::to_string(o.shots) +
                                     " worked examples; or use --chat, or --num-shots 0");
    }
    FLUVIAL_ASSIGN_OR_RETURN(shots, measure::ReadEvalItems(o.train, o.shots));
  }
  std::unique_ptr<server::Server> here;
  measure::Target& t = o.target;
  if (IsUrl(o.engine.engine.model)) {
    t.base_url = o.engine.engine.model;
  } else {
    FLUVIAL_ASSIGN_OR_RETURN(here, ServeHere(o));
    t.base_url = "http://127.0.0.1:" + std::to_string(here->port());
  }
  t.endpoint = o.chat ? "/v1/chat/completions" : "/v1/completions";
  t.timeout = std::chrono::milliseconds(static_cast<int64_t>(o.timeout * 1000));
  t.temperature = 0;
  t.seed = 42;
  if (!o.chat) t.stop = measure::EvalStops();
  if (t.model.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(t.model, measure::FirstModel(t));
  }
  const auto prompts = measure::EvalPrompts(items, shots, o.chat, o.max_tokens);
  measure::LoadOptions load_options;
  load_options.max_concurrency = o.concurrency;
  Result<measure::LoadResult> load = Status::Failed("");
  {
    ProgressLine line("questions");
    load = measure::RunLoad(t, prompts, load_options,
                            [&](int64_t done, int64_t failed, int64_t total) { line.Update(done, failed, total); });
  }
  if (!load.ok()) return load.status();
  measure::EvalResult result = measure::ScoreEval(items, *load);
  nlohmann::ordered_json j = {
      {"task", "gsm8k"}, {"model", t.model}, {"data", o.data}, {"num_shots", o.chat ? 0 : o.shots}, {"chat", o.chat}};
  j.update(result.json);
  char text[400];
  std::snprintf(text, sizeof(text),
                "Accuracy: %.4f (95%% interval %.4f to %.4f), %lld of %zu\nInvalid rate: %.4f, failed requests: %lld\n"
                "Total latency: %.2f s, %.2f questions/s, %.2f output tokens/s\n",
                j["accuracy"].get<double>(), j["accuracy_interval"][0].get<double>(),
                j["accuracy_interval"][1].get<double>(), j["correct"].get<long long>(), items.size(),
                j["invalid_rate"].get<double>(), j["failed"].get<long long>(), j["latency"].get<double>(),
                j["questions_per_second"].get<double>(), j["tokens_per_second"].get<double>());
  Print(text);
  if (!o.json.empty()) {
    FLUVIAL_RETURN_IF_ERROR(
        WriteFile(o.json, j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
  }
  if (j["failed"].get<int64_t>() > 0) {
    for (const auto& r : load->records) {
      if (!r.ok) return Status::Failed("requests failed; the first (" + r.error_kind + "): " + r.error);
    }
  }
  return Finish();
}

}  // namespace

Command AddEval(CLI::App& root) {
  CLI::App* app = root.add_subcommand("eval", "Exact match on a set of questions (eval gsm8k)");
  auto o = std::make_shared<Options>();
  o->engine.engine.max_num_seqs = 16;
  app->add_option("task", o->task, "gsm8k: questions whose answer ends in '#### VALUE'")->required()->type_name("TASK");
  AddEngineFlags(*app, o->engine);
  AddBatchingFlags(*app, o->engine);
  app->add_option("--data", o->data, "Questions: lines {\"question\", \"answer\", \"images\"}")->type_name("FILE");
  app->add_option("--train", o->train, "Worked examples, in the same form; the first are used")->type_name("FILE");
  app->add_option("--num-shots", o->shots, "Worked examples before each question")
      ->type_name("N")
      ->capture_default_str();
  app->add_flag("--chat", o->chat, "Ask through the chat template, without examples");
  app->add_option("--num-questions", o->questions, "Only the first so many; 0: all")->type_name("N");
  app->add_option("--max-tokens", o->max_tokens, "Longest answer")->type_name("N")->capture_default_str();
  app->add_option("--max-concurrency", o->concurrency, "Questions at once; 0: all (4096)")->type_name("N");
  app->add_option("--request-timeout", o->timeout, "A question that takes longer has failed")
      ->type_name("SECONDS")
      ->capture_default_str();
  app->add_option("--served-model-name", o->target.model, "Name in requests; default: the first of /v1/models")
      ->type_name("NAME");
  app->add_option("--api-key", o->target.api_key, "For a server that wants one")->type_name("KEY");
  app->add_option("--json", o->json, "Write the result with every answer to this file")->type_name("FILE");
  app->add_option("--log-level", o->log_level, "debug, info, warning or error")
      ->type_name("LEVEL")
      ->capture_default_str();
  app->footer(
      "Instead of MODEL, the URL of a server: http://127.0.0.1:8000\n"
      "Examples:\n"
      "  fluvial eval gsm8k models/demo-kda --chat --data models/demo-kda/eval/arithmetic.jsonl\n"
      "  fluvial eval gsm8k http://127.0.0.1:8000 --data test.jsonl --train train.jsonl --json out.json");
  return {app, [o] {
            const Result<int> r = Eval(*o);
            return r.ok() ? *r : Fail(r.status());
          }};
}

}  // namespace fluvial::tools
