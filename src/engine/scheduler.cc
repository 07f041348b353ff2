// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace fluvial::engine {
namespace {

ops::sampling::Params ParamsOf(const Request& r) {
  ops::sampling::Params p;
  p.temperature = r.sampling.temperature;
  p.top_k = r.sampling.top_k;
  p.top_p = r.sampling.top_p;
  p.min_p = r.sampling.min_p;
  p.repetition_penalty = r.sampling.repetition_penalty;
  p.presence_penalty = r.sampling.presence_penalty;
  p.frequency_penalty = r.sampling.frequency_penalty;
  p.seed = r.sampling.seed;
  p.logprobs = r.logprobs;
  p.logit_bias = r.sampling.logit_bias;
  return p;
}

bool NeedsHistory(const ops::sampling::Params& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

}  // namespace

int64_t EngineImpl::TokenLimit(const Request& r) const {
  return std::min(r.max_tokens, info_.max_model_len - static_cast<int64_t>(r.prompt.size()));
}

Status EngineImpl::Check(const Request& r) const {
  const int64_t prompt = static_cast<int64_t>(r.prompt.size());
  if (prompt == 0) return Status::InvalidArgument("the prompt is empty: give at least one token");
  if (prompt >= info_.max_model_len) {
    return Status::InvalidArgument(
        "the prompt has " + std::to_string(prompt) + " tokens, but with at least one answer token " + "at most " +
        std::to_string(info_.max_model_len - 1) + " fit (max_model_len): shorten it or raise --max-model-len");
  }
  for (const int32_t id : r.prompt) {
    if (id < 0 || id >= info_.vocab_size) {
      return Status::InvalidArgument("the prompt holds token id " + std::to_string(id) + ", but ids go from 0 to " +
                                     std::to_string(info_.vocab_size - 1));
    }
  }
  if (r.max_tokens < 1) {
    return Status::InvalidArgument("max_tokens is " + std::to_string(r.max_tokens) + ": it must be at least 1");
  }
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens) {
    return Status::InvalidArgument("min_tokens is " + std::to_string(r.min_tokens) + ": it must lie in 0.." +
                                   std::to_string(r.max_tokens) + " (max_tokens)");
  }
  FLUVIAL_ASSIGN_OR_RETURN(const models::VisionPlan plan, PlanVision(r));
  FLUVIAL_RETURN_IF_ERROR(CheckPromptKeys(PromptKeys(r, plan), prompt));
  const int64_t pages = planner_->PagesFor(prompt + TokenLimit(r));
  if (pages > pool_->total_pages()) {
    return Status::InvalidArgument("the request may need " + std::to_string(pages * pool_->page_size()) +
                                   " tokens of KV cache, but it holds " +
                                   std::to_string(int64_t{pool_->total_pages()} * pool_->page_size()) +
                                   ": lower max_tokens or raise the cache's size");
  }
  if (r.prompt_logprobs < -1 || r.prompt_logprobs > ops::sampling::kMaxLogprobs) {
    return Status::InvalidArgument("prompt_logprobs is " + std::to_string(r.prompt_logprobs) +
                                   ": it must be -1 (none) or lie in 0.." +
                                   std::to_string(ops::sampling::kMaxLogprobs));
  }
  return ops::sampling::Validate(ParamsOf(r), info_.vocab_size);
}

Status EngineImpl::CheckPromptKeys(const std::vector<PromptKey>& keys, int64_t prompt) {
  int64_t end = 0;
  for (const PromptKey& k : keys) {
    if (k.begin < end || k.end < k.begin || k.end > prompt) {
      return Status::InvalidArgument("prompt_keys has positions " + std::to_string(k.begin) + ".." +
                                     std::to_string(k.end) +
                                     ": they must be in order, apart, and within the prompt of " +
                                     std::to_string(prompt) + " tokens (images have keys of their own)");
    }
    end = k.end;
  }
  return Status::Ok();
}

Result<uint64_t> EngineImpl::Submit(Request request, TokenCallback on_token, DoneCallback on_done) {
  FLUVIAL_RETURN_IF_ERROR(Check(request));
  auto s = std::make_unique<Sequence>();
  s->params = ParamsOf(request);
  s->penalties = NeedsHistory(s->params);
  if (s->penalties) s->history.AddPrompt(request.prompt);
  if (!request.ignore_eos) s->stops = info_.eos_ids;
  s->stops.insert(s->stops.end(), request.stop_ids.begin(), request.stop_ids.end());
  s->max_tokens = TokenLimit(request);
  s->ids = request.prompt;
  FLUVIAL_ASSIGN_OR_RETURN(s->vision, PlanVision(request));
  s->features.resize(request.vision.size());
  s->prompt = std::make_shared<const Prefix>(request.prompt, PromptKeys(request, s->vision));
  s->all_rows = request.prompt_logprobs >= 0;
  if (s->all_rows) s->completion.prompt_logprobs.push_back({request.prompt[0], 0, {}});
  s->request = std::move(request);
  s->on_token = std::move(on_token);
  s->on_done = std::move(on_done);
  s->submitted = Clock::now();
  const std::lock_guard lock(mutex_);
  s->id = s->order = next_id_++;
  const uint64_t id = s->id;
  submitted_.push_back(std::move(s));
  return id;
}

void EngineImpl::Cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  cancelled_.insert(id);
}

void EngineImpl::TakeMail() {
  std::unordered_set<uint64_t> cancelled;
  {
    const std::lock_guard lock(mutex_);
    for (SequencePtr& s : submitted_) {
      planner_->Add(s.get());
      live_.push_back(std::move(s));
    }
    submitted_.clear();
    cancelled.swap(cancelled_);
  }
  if (cancelled.empty()) return;
  for (const SequencePtr& s : live_) {
    if (cancelled.contains(s->id)) Finish(*s, FinishReason::kCancelled);
  }
  DropFinished();
}

Status EngineImpl::EnsureWorkspace(size_t bytes) {
  if (workspace_.bytes() >= bytes) return Status::Ok();
  // Sized at start for the largest shapes; grows only when another mix of lengths needs more.
  workspace_ = Buffer();
  FLUVIAL_ASSIGN_OR_RETURN(workspace_, Buffer::Allocate(stream_->device().kind, bytes, stream_->device().index));
  const std::lock_guard lock(mutex_);
  stats_.workspace_bytes = workspace_.bytes();
  return Status::Ok();
}

Status EngineImpl::RunStep(const Plan& plan) {
  for (const Plan::Copy& copy : plan.copies) FLUVIAL_RETURN_IF_ERROR(pool_->CopyPage(*stream_, copy.from, copy.to));
  if (plan.items.empty()) return Status::Ok();
  FLUVIAL_RETURN_IF_ERROR(batch_->Build(*stream_, plan));
  const models::Step step = batch_->Step(pool_->caches());
  FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, model_->WorkspaceBytes(step));
  FLUVIAL_RETURN_IF_ERROR(EnsureWorkspace(bytes));
  Arena arena(workspace_.data(), workspace_.bytes());
  FLUVIAL_RETURN_IF_ERROR(model_->Forward(*stream_, step, arena));
  return stream_->Synchronize();
}

Result<bool> EngineImpl::Step() {
  TakeMail();
  const Clock::time_point start = Clock::now();
  const Plan& plan = planner_->Next();
  for (const Plan::Item& item : plan.items) {
    auto& s = static_cast<Sequence&>(*item.task);
    if (s.started) continue;
    s.started = true;
    s.completion.queue_seconds = Seconds(s.submitted, start);
    s.completion.cached_tokens = s.cached;
  }
  EncodeStep(plan);
  const Status status = RunStep(plan);
  if (!status.ok()) {
    // The states of everything in the step are undefined now.
    for (const Plan::Item& item : plan.items) {
      Finish(static_cast<Sequence&>(*item.task), FinishReason::kError, status);
    }
    planner_->Abandon();
    DropFinished();
    CountGauges();
    return true;
  }
  const bool ran = !plan.items.empty();
  planner_->Commit();
  for (const Plan::Item& item : plan.items) DropFeatures(static_cast<Sequence&>(*item.task));
  if (ran) {
    SampleRows();
    const double seconds = Seconds(start, Clock::now());
    const std::lock_guard lock(mutex_);
    const bool prompt = batch_->prompt_tokens() > 0;
    (prompt ? stats_.prefill_seconds : stats_.decode_seconds) += seconds;
    (prompt ? stats_.prefill_step_tokens : stats_.decode_step_tokens) += batch_->tokens();
    stats_.prompt_tokens += batch_->prompt_tokens();
    ++stats_.steps;
  }
  DropFinished();
  CountGauges();
  return ran || !live_.empty();
}

void EngineImpl::CountGauges() {
  const PlannerCounters& counters = planner_->counters();
  const std::lock_guard lock(mutex_);
  stats_.preemptions = counters.preemptions;
  stats_.prefix_cache_queries = counters.queries;
  stats_.prefix_cache_hits = counters.hits;
  stats_.requests_running = static_cast<int32_t>(planner_->running().size());
  stats_.requests_waiting = static_cast<int32_t>(planner_->waiting().size());
  stats_.kv_pages_used = planner_->pages().used();
  stats_.kv_pages_cached = planner_->pages().cached();
  stats_.state_slots_used = stats_.requests_running;
  stats_.snapshot_slots_used = planner_->cache().slots_used();
}

void EngineImpl::TakePromptLogprobs() {
  const auto uses = batch_->logit_uses();
  std::vector<size_t> rows;
  for (size_t i = 0; i < uses.size(); ++i) {
    const Sequence& s = *batch_->items()[uses[i].item].sequence;
    if (s.all_rows && uses[i].position + 1 < s.prompt->size()) rows.push_back(i);
  }
  std::vector<ops::sampling::Outcome> outcomes(rows.size());
  stream_->pool().ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t i, int) {
    const Batch::LogitRow& use = uses[rows[static_cast<size_t>(i)]];
    const Sequence& s = *batch_->items()[use.item].sequence;
    outcomes[static_cast<size_t>(i)] = ops::sampling::RawLogprobs(
        {batch_->LogitsOfRow(rows[static_cast<size_t>(i)]), static_cast<size_t>(info_.vocab_size)},
        s.ids[static_cast<size_t>(use.position) + 1], s.request.prompt_logprobs);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& s = *batch_->items()[uses[rows[i]].item].sequence;
    if (s.finished) continue;
    if (outcomes[i].verdict != ops::sampling::Verdict::kOk) {
      AbortNotFinite(s);
      continue;
    }
    Token token;
    token.id = outcomes[i].token;
    token.logprob = outcomes[i].logprob;
    for (const auto& t : outcomes[i].top) token.top.emplace_back(t.id, t.logprob);
    s.completion.prompt_logprobs.push_back(std::move(token));
  }
}

void EngineImpl::SampleRows() {
  TakePromptLogprobs();
  const auto uses = batch_->logit_uses();
  std::vector<ops::sampling::Row> rows;
  std::vector<Sequence*> sequences;
  for (size_t i = 0; i < uses.size(); ++i) {
    Sequence& s = *batch_->items()[uses[i].item].sequence;
    if (s.finished || uses[i].position + 1 != s.size()) continue;
    ops::sampling::Row row;
    if (s.request.constraint != nullptr) {
      s.mask.assign((static_cast<size_t>(info_.vocab_size) + 31) / 32, 0);
      Status status = s.request.constraint->Allowed(s.mask);
      if (!status.ok()) {
        Finish(s, FinishReason::kError, std::move(status));
        continue;
      }
      row.allowed = s.mask.data();
    }
    row.logits = batch_->LogitsOfRow(i);
    row.params = &s.params;
    row.history = s.penalties ? &s.history : nullptr;
    row.position = static_cast<uint64_t>(s.generated());
    if (s.generated() < s.request.min_tokens) row.banned = s.stops;
    if (s.request.prompt_logits && s.generated() == 0) {
      s.completion.prompt_logits.assign(row.logits, row.logits + info_.vocab_size);
    }
    rows.push_back(row);
    sequences.push_back(&s);
  }
  std::vector<ops::sampling::Outcome> outcomes(rows.size());
  sampler_->Sample(stream_->pool(), rows, outcomes);
  for (size_t i = 0; i < rows.size(); ++i) Accept(*sequences[i], outcomes[i]);
}

void EngineImpl::AbortNotFinite(Sequence& s) {
  // Nothing that these tokens led to may be met again.
  planner_->Forget(s);
  pool_->ClearSlot(s.write_slot);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.nan_aborts;
  }
  Finish(s, FinishReason::kError,
         Status::Failed("the model's logits are not finite after " + std::to_string(s.done) +
                        " tokens: the request was aborted and its state cleared"));
}

bool EngineImpl::Accept(Sequence& s, const ops::sampling::Outcome& outcome) {
  if (outcome.verdict == ops::sampling::Verdict::kNotFinite) {
    AbortNotFinite(s);
    return true;
  }
  if (outcome.verdict == ops::sampling::Verdict::kNoToken) {
    Finish(s, FinishReason::kError, Status::InvalidArgument("no token is allowed: loosen the bias or the stop ids"));
    return true;
  }
  Token token;
  token.id = outcome.token;
  if (s.request.logprobs >= 0) {
    token.logprob = outcome.logprob;
    for (const auto& t : outcome.top) token.top.emplace_back(t.id, t.logprob);
  }
  if (s.completion.tokens.empty()) s.completion.first_token_seconds = Seconds(s.submitted, Clock::now());
  s.ids.push_back(token.id);
  if (s.penalties) s.history.AddOutput(token.id);
  if (s.request.constraint != nullptr) {
    Status status = s.request.constraint->Accept(token.id);
    if (!status.ok()) {
      Finish(s, FinishReason::kError, std::move(status));
      return true;
    }
  }
  s.completion.tokens.push_back(token);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.generated_tokens;
  }
  const Next next = s.on_token ? s.on_token(s.id, token) : Next::kContinue;
  if (std::find(s.stops.begin(), s.stops.end(), token.id) != s.stops.end()) {
    s.completion.stop_id = token.id;
    Finish(s, FinishReason::kStop);
  } else if (next == Next::kStop) {
    Finish(s, FinishReason::kStop);
  } else if (s.generated() >= s.max_tokens) {
    Finish(s, FinishReason::kLength);
  } else {
    return false;
  }
  return true;
}

void EngineImpl::Finish(Sequence& s, FinishReason reason, Status status) {
  if (s.finished) return;
  s.finished = true;
  s.completion.finish_reason = reason;
  s.completion.status = std::move(status);
  s.completion.total_seconds = Seconds(s.submitted, Clock::now());
}

void EngineImpl::DropFinished() {
  std::vector<SequencePtr> ended;
  for (SequencePtr& s : live_) {
    if (s->finished) ended.push_back(std::move(s));
  }
  if (ended.empty()) return;
  std::erase(live_, nullptr);
  for (const SequencePtr& s : ended) {
    const FinishReason reason = s->completion.finish_reason;
    planner_->Remove(s.get(), reason == FinishReason::kStop || reason == FinishReason::kLength);
    s->completion.preemptions = s->preemptions;
  }
  // A callback may look at the statistics: everything is back by then.
  CountGauges();
  for (const SequencePtr& s : ended) {
    if (s->on_done) s->on_done(s->id, std::move(s->completion));
  }
}

Result<std::vector<Completion>> EngineImpl::Generate(std::vector<Request> requests, const TokenCallback& on_token,
                                                     const std::atomic<bool>* cancel) {
  for (const Request& r : requests) FLUVIAL_RETURN_IF_ERROR(Check(r));
  std::vector<Completion> out(requests.size());
  std::vector<uint64_t> ids(requests.size());
  size_t left = requests.size();
  for (size_t i = 0; i < requests.size(); ++i) {
    TokenCallback token;
    if (on_token) token = [&on_token, i](uint64_t, const Token& t) { return on_token(i, t); };
    const DoneCallback done = [&out, &left, i](uint64_t, Completion c) {
      out[i] = std::move(c);
      --left;
    };
    FLUVIAL_ASSIGN_OR_RETURN(ids[i], Submit(std::move(requests[i]), std::move(token), done));
  }
  bool told = false;
  while (left > 0) {
    if (!told && cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      for (const uint64_t id : ids) Cancel(id);
      told = true;
    }
    const Status status = Step().status();
    if (status.ok()) continue;
    // The callbacks point into this frame: nothing of these requests may outlive it.
    for (const uint64_t id : ids) Cancel(id);
    TakeMail();
    return status;
  }
  return out;
}

}  // namespace fluvial::engine
