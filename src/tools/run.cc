// SPDX-License-Identifier: Apache-2.0
// fluvial run: one prompt, one answer, streamed.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/log.h"
#include "fluvial/engine.h"
#include "text/stop_text.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/load_notice.h"
#include "tools/prompt.h"
#include "tools/run_output.h"
#include "weights/generation_config.h"

namespace fluvial::tools {
namespace {

constexpr int64_t kDefaultMaxTokens = 256;

struct Options {
  EngineFlags engine;
  PromptOptions prompt;
  int64_t max_tokens = kDefaultMaxTokens;
  int64_t min_tokens = 0;
  // Absent: generation_config.json of the model, see Sampling().
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  int32_t logprobs = -1;
  bool prompt_logits = false;
  bool json = false;
  bool stats = false;
  std::string log_level = "warning";
};

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler stores into it");

/// While it lives, the first Ctrl-C asks for a clean end and the second ends the process.
class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action{};
    action.sa_handler = [](int) { interrupted.store(true); };
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(SIGINT, &action, &before_);
    if (before_.sa_handler == SIG_IGN) sigaction(SIGINT, &before_, nullptr);  // started in the background: stay so
  }
  ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_{};
};

/// Options win; what they leave open comes from generation_config.json when that samples, else the answer is greedy -
/// as transformers' generate does.
Result<SamplingParams> Sampling(const Options& o) {
  FLUVIAL_ASSIGN_OR_RETURN(const weights::GenerationConfig g, weights::ReadGenerationConfig(o.engine.engine.model));
  const bool samples = g.do_sample.value_or(false);
  SamplingParams p;
  p.temperature = o.temperature.value_or(samples ? static_cast<float>(g.temperature.value_or(1.0)) : 0.0f);
  p.top_p = o.top_p.value_or(samples ? static_cast<float>(g.top_p.value_or(1.0)) : 1.0f);
  p.min_p = o.min_p.value_or(samples ? static_cast<float>(g.min_p.value_or(0.0)) : 0.0f);
  p.top_k = o.top_k.value_or(samples ? static_cast<int32_t>(g.top_k.value_or(0)) : 0);
  p.repetition_penalty = o.repetition_penalty.value_or(static_cast<float>(g.repetition_penalty.value_or(1.0)));
  p.presence_penalty = o.presence_penalty;
  p.frequency_penalty = o.frequency_penalty;
  p.seed = o.seed;
  return p;
}

/// Token ids are enough for a model without tokenizer files, as long as nobody asks for text.
Result<std::optional<text::Tokenizer>> LoadTokenizer(const Options& o) {
  Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(o.engine.engine.model);
  if (tokenizer.ok()) return std::optional(std::move(tokenizer).value());
  const auto exists = [&](const char* name) {
    return std::filesystem::exists(std::filesystem::path(o.engine.engine.model) / name);
  };
  const bool absent = exists("config.json") && !exists("tokenizer.json") && !exists("tiktoken.model");
  if (!absent || !o.prompt.ids.has_value() || !o.stop.empty()) return tokenizer.status();
  LogWarning("the model has no tokenizer: the answer is shown as token ids");
  return std::optional<text::Tokenizer>();
}

/// Turns tokens into what is shown.
class Answer {
 public:
  Answer(const std::optional<text::Tokenizer>& tokenizer, const Options& o, std::vector<int32_t> end_ids)
      : stop_(o.stop), end_ids_(o.ignore_eos ? std::vector<int32_t>() : std::move(end_ids)), show_(!o.json) {
    if (tokenizer.has_value()) decoder_.emplace(*tokenizer);
    end_ids_.insert(end_ids_.end(), o.stop_ids.begin(), o.stop_ids.end());
  }

  Next Take(const Token& token) {
    if (!decoder_.has_value()) {
      Show((any_ ? "," : "") + std::to_string(token.id));
      return lost_ ? Next::kStop : Next::kContinue;
    }
    for (int32_t id : end_ids_) {
      if (id == token.id) return Next::kContinue;  // the engine ends here; end tokens are not part of the text
    }
    Show(stop_.Push(decoder_->Push(token.id)));
    return stop_.stopped() || lost_ ? Next::kStop : Next::kContinue;
  }

  void End() {
    if (decoder_.has_value() && !stop_.stopped()) {
      Show(stop_.Push(decoder_->Finish()));
      if (!stop_.stopped()) Show(stop_.Finish());
    }
    if (show_ && any_ && text_.back() != '\n') Print("\n");
  }

  bool has_text() const { return decoder_.has_value(); }
  const std::string& text() const { return text_; }

 private:
  void Show(const std::string& piece) {
    if (piece.empty()) return;
    any_ = true;
    text_ += piece;
    if (show_ && !Print(piece)) lost_ = true;
  }

  std::optional<text::StreamDecoder> decoder_;
  text::StopText stop_;
  std::vector<int32_t> end_ids_;
  std::string text_;
  bool show_;
  bool any_ = false;
  bool lost_ = false;  // stdout takes nothing more: stop generating
};

Status CheckOptions(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(CheckPromptOptions(o.prompt, "--prompt-ids"));
  if (!o.json && o.logprobs >= 0) return Status::InvalidArgument("--logprobs is shown by --json only: add --json");
  if (!o.json && o.prompt_logits) {
    return Status::InvalidArgument("--prompt-logits is shown by --json only: add --json");
  }
  return LogToStderr(o.log_level);
}

Result<int> RunModel(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(CheckOptions(o));
  FLUVIAL_ASSIGN_OR_RETURN(const SamplingParams sampling, Sampling(o));
  FLUVIAL_ASSIGN_OR_RETURN(const std::optional<text::Tokenizer> tokenizer, LoadTokenizer(o));
  FLUVIAL_ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(o.prompt, o.engine.engine.model,
                                                     tokenizer.has_value() ? &*tokenizer : nullptr, "--prompt-ids"));
  if (prompt.ids.empty()) return Status::InvalidArgument("the prompt is empty: give at least one token");

  FLUVIAL_ASSIGN_OR_RETURN(EngineOptions engine_options, ToEngineOptions(o.engine));
  engine_options.max_num_seqs = 1;
  std::unique_ptr<Engine> engine;
  {
    const LoadNotice notice(engine_options.model);
    FLUVIAL_ASSIGN_OR_RETURN(engine, Engine::Load(engine_options));
  }

  WarnOfUnusedBackends(engine_options, *engine);

  Request request;
  request.prompt = prompt.ids;
  request.vision = std::move(prompt.vision);
  request.sampling = sampling;
  request.max_tokens = o.max_tokens;
  request.min_tokens = o.min_tokens;
  request.ignore_eos = o.ignore_eos;
  request.stop_ids = o.stop_ids;
  request.logprobs = o.logprobs;
  request.prompt_logits = o.prompt_logits;

  Answer answer(tokenizer, o, engine->info().eos_ids);
  const InterruptGuard guard;
  FLUVIAL_ASSIGN_OR_RETURN(
      std::vector<Completion> completions,
      engine->Generate({std::move(request)}, [&](uint64_t, const Token& t) { return answer.Take(t); }, &interrupted));
  answer.End();
  if (completions.front().finish_reason == FinishReason::kError) return completions.front().status;

  const RunReport report{std::move(prompt.ids), answer.text(),   answer.has_text(), std::move(completions.front()),
                         engine->backends(),    engine->stats(), engine->info()};
  if (o.json) Print(RunJson(report, o.logprobs >= 0, o.prompt_logits));
  if (o.stats) {
    std::fflush(stdout);
    std::fputs(("\n" + RunStatistics(report)).c_str(), stderr);
  }
  const int status = Finish();
  return interrupted.load() ? static_cast<int>(kInterrupted) : status;
}

void AddSampling(CLI::App& app, Options& o) {
  const char* group = "Sampling (left out: generation_config.json of the model, else greedy)";
  app.add_option("--max-tokens", o.max_tokens, "Longest answer")->type_name("N")->capture_default_str();
  app.add_option("--min-tokens", o.min_tokens, "No end token before that many tokens")->type_name("N");
  app.add_option("--temperature", o.temperature, "0: the most likely token")->type_name("X")->group(group);
  app.add_option("--top-p", o.top_p, "Smallest set of tokens with this probability, 0..1")
      ->type_name("X")
      ->group(group);
  app.add_option("--top-k", o.top_k, "The K most likely tokens; 0: all")->type_name("K")->group(group);
  app.add_option("--min-p", o.min_p, "Tokens at least this likely, relative to the most likely")
      ->type_name("X")
      ->group(group);
  app.add_option("--seed", o.seed, "Same seed, same answer")->type_name("N")->group(group);
  app.add_option("--repetition-penalty", o.repetition_penalty, "Above 1: repeats become unlikely")
      ->type_name("X")
      ->group(group);
  app.add_option("--presence-penalty", o.presence_penalty, "Subtracted from tokens of the answer, -2..2")
      ->type_name("X")
      ->group(group);
  app.add_option("--frequency-penalty", o.frequency_penalty, "The same, once per occurrence, -2..2")
      ->type_name("X")
      ->group(group);
  app.add_option("--stop", o.stop, "End before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--stop-token-ids", o.stop_ids, "End at these tokens too")
      ->type_name("IDS")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--ignore-eos", o.ignore_eos, "The model's end tokens do not end the answer");
}

}  // namespace

Command AddRun(CLI::App& root) {
  CLI::App* app = root.add_subcommand("run", "Generate text, streaming to the standard output");
  auto o = std::make_shared<Options>();
  AddEngineFlags(*app, o->engine);
  AddPromptOptions(*app, o->prompt, "--prompt-ids");
  AddMediaOptions(*app, o->prompt);
  AddSampling(*app, *o);
  app->add_option("--logprobs", o->logprobs, "With --json: log probability of each token and of the K most likely")
      ->type_name("K");
  app->add_flag("--prompt-logits", o->prompt_logits, "With --json: logits after the last token of the prompt");
  app->add_flag("--json", o->json, "One JSON object at the end instead of text (docs/cli.md)");
  app->add_flag("--stats", o->stats, "Tokens, speed, memory and backends on stderr");
  app->add_option("--log-level", o->log_level, "debug, info (backends chosen and why), warning or error")
      ->type_name("LEVEL")
      ->capture_default_str();
  app->footer(
      "Examples:\n"
      "  fluvial run ./Qwen3.5-0.8B --prompt \"A river is\" --max-tokens 32 --stats\n"
      "  fluvial run ./Qwen3.5-0.8B --chat --prompt \"What is a river?\"\n"
      "  fluvial run ./Qwen3.5-0.8B --image river.jpg --prompt \"What is in the picture?\"\n"
      "  fluvial run ./Qwen3.5-0.8B --messages chat.json --temperature 0.7 --seed 1\n"
      "  fluvial run ./Qwen3.5-0.8B --prompt-ids 3710,369,264 --temperature 0 --logprobs 5 --json\n"
      "  fluvial run ./Qwen3.5-0.8B --prompt \"A river is\" --gdn-prefill-backend reference --log-level info");
  return {app, [o] {
            const Result<int> r = RunModel(*o);
            return r.ok() ? *r : Fail(r.status());
          }};
}

}  // namespace fluvial::tools
