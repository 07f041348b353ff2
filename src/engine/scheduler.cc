// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "vision/processor.h"

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

int64_t EngineImpl::PagesFor(int64_t tokens) const { return (tokens + pool_->page_size() - 1) / pool_->page_size(); }

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
  const int64_t pages = PagesFor(prompt + TokenLimit(r));
  if (pages > pool_->total_pages()) {
    return Status::InvalidArgument("the request may need " + std::to_string(pages * pool_->page_size()) +
                                   " tokens of KV cache, but it holds " +
                                   std::to_string(int64_t{pool_->total_pages()} * pool_->page_size()) +
                                   ": lower max_tokens or raise the cache's size");
  }
  FLUVIAL_RETURN_IF_ERROR(PlanVision(r).status());
  return ops::sampling::Validate(ParamsOf(r), info_.vocab_size);
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
  for (VisionInput& v : request.vision) {
    if (v.hash == decltype(v.hash){}) v.hash = vision::ContentHash(v);
  }
  s->features.resize(request.vision.size());
  s->request = std::move(request);
  s->on_token = std::move(on_token);
  s->on_done = std::move(on_done);
  s->submitted = Clock::now();
  const std::lock_guard lock(mutex_);
  s->id = next_id_++;
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
    for (SequencePtr& s : submitted_) waiting_.push_back(std::move(s));
    submitted_.clear();
    cancelled.swap(cancelled_);
  }
  if (cancelled.empty()) return;
  for (SequencePtr& s : running_) {
    if (cancelled.contains(s->id)) Finish(*s, FinishReason::kCancelled);
  }
  for (SequencePtr& s : waiting_) {
    if (cancelled.contains(s->id)) Finish(*s, FinishReason::kCancelled);
  }
  DropFinished();
}

void EngineImpl::Admit() {
  // In order of arrival; all pages a request can ever need are reserved, so that a running one never has to stop.
  while (!waiting_.empty() && pool_->slots().free() > 0) {
    Sequence& s = *waiting_.front();
    const int64_t pages = PagesFor(s.prompt_tokens() + s.max_tokens);
    if (pages > pool_->pages().free()) return;
    s.slot = pool_->slots().Take();
    for (int64_t i = 0; i < pages; ++i) s.pages.push_back(pool_->pages().Take());
    s.started = Clock::now();
    s.completion.queue_seconds = Seconds(s.submitted, s.started);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
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

Status EngineImpl::RunStep() {
  FLUVIAL_RETURN_IF_ERROR(batch_->Build(*stream_));
  const models::Step step = batch_->Step(pool_->caches());
  FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, model_->WorkspaceBytes(step));
  FLUVIAL_RETURN_IF_ERROR(EnsureWorkspace(bytes));
  Arena arena(workspace_.data(), workspace_.bytes());
  FLUVIAL_RETURN_IF_ERROR(model_->Forward(*stream_, step, arena));
  return stream_->Synchronize();
}

Result<bool> EngineImpl::Step() {
  TakeMail();
  Admit();
  batch_->Schedule(running_);
  if (batch_->empty()) return !waiting_.empty() || !running_.empty();
  const Clock::time_point start = Clock::now();
  if (!EncodeStep()) {
    DropFinished();
    return true;
  }
  const Status status = RunStep();
  if (!status.ok()) {
    // The states of everything in the step are undefined now.
    for (const Batch::Item& item : batch_->items()) Finish(*item.sequence, FinishReason::kError, status);
    DropFinished();
    return true;
  }
  for (const Batch::Item& item : batch_->items()) {
    item.sequence->done += item.tokens;
    DropFeatures(*item.sequence);
  }
  SampleRows();
  {
    const double seconds = Seconds(start, Clock::now());
    const std::lock_guard lock(mutex_);
    const bool prompt = batch_->prompt_tokens() > 0;
    (prompt ? stats_.prefill_seconds : stats_.decode_seconds) += seconds;
    (prompt ? stats_.prefill_step_tokens : stats_.decode_step_tokens) += batch_->tokens();
    stats_.prompt_tokens += batch_->prompt_tokens();
    ++stats_.steps;
  }
  DropFinished();
  return true;
}

void EngineImpl::SampleRows() {
  const auto items = batch_->logit_items();
  std::vector<ops::sampling::Row> rows(items.size());
  std::vector<ops::sampling::Outcome> outcomes(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Sequence& s = *batch_->items()[items[i]].sequence;
    ops::sampling::Row& row = rows[i];
    if (s.request.constraint != nullptr) {
      s.mask.assign((static_cast<size_t>(info_.vocab_size) + 31) / 32, 0);
      Status status = s.request.constraint->Allowed(s.mask);
      if (!status.ok()) Finish(s, FinishReason::kError, std::move(status));
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
  }
  sampler_->Sample(stream_->pool(), rows, outcomes);
  for (size_t i = 0; i < items.size(); ++i) {
    Sequence& s = *batch_->items()[items[i]].sequence;
    if (!s.finished) Accept(s, outcomes[i]);
  }
}

bool EngineImpl::Accept(Sequence& s, const ops::sampling::Outcome& outcome) {
  if (outcome.verdict == ops::sampling::Verdict::kNotFinite) {
    pool_->ClearSlot(s.slot);
    {
      const std::lock_guard lock(mutex_);
      ++stats_.nan_aborts;
    }
    Finish(s, FinishReason::kError,
           Status::Failed("the model's logits are not finite after " + std::to_string(s.ids.size()) +
                          " tokens: the request was aborted and its state cleared"));
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

void EngineImpl::Release(Sequence& s) {
  for (const int32_t page : s.pages) pool_->pages().Give(page);
  s.pages.clear();
  if (s.slot >= 0) {
#ifndef NDEBUG
    pool_->PoisonSlot(s.slot);
#endif
    pool_->slots().Give(s.slot);
    s.slot = -1;
  }
  if (s.on_done) s.on_done(s.id, std::move(s.completion));
}

void EngineImpl::DropFinished() {
  const auto drop = [this](auto& list) {
    for (size_t i = 0; i < list.size();) {
      if (!list[i]->finished) {
        ++i;
        continue;
      }
      const SequencePtr ended = std::move(list[i]);
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      Release(*ended);
    }
  };
  drop(running_);
  drop(waiting_);
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
