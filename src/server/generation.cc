// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "base/log.h"

namespace fluvial::server {
namespace {

double Seconds(Generation::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::string Event(const Json& json) { return "data: " + Dump(json) + "\n\n"; }

uint64_t RandomSeed() {
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Generation::Generation(EngineLoop& loop, Metrics& metrics, const ServedModel& model, GenerationPlan plan,
                       std::shared_ptr<Exchange> exchange, Clock::time_point arrival, Clock::time_point deadline)
    : loop_(loop),
      metrics_(metrics),
      model_(model),
      plan_(std::move(plan)),
      exchange_(std::move(exchange)),
      arrival_(arrival),
      deadline_(deadline),
      created_(static_cast<int64_t>(std::time(nullptr))) {}

void Generation::Start() {
  exchange_->OnLost([self = shared_from_this()] { self->OnLost(); });
  const std::lock_guard lock(mutex_);
  if (lost_.load()) return EndLost();  // gone while the request was read
  const size_t n = static_cast<size_t>(plan_.request.n);
  for (const Request& prompt : plan_.prompts) {
    const Status status = loop_.engine().Check(prompt);
    if (!status.ok()) return Fail(FromStatus(status));
    prompt_tokens_ += static_cast<int64_t>(prompt.prompt.size());
  }
  items_.resize(plan_.prompts.size() * n);
  const Status room = loop_.Room(items_.size());
  if (!room.ok()) return Fail(FromStatus(room));

  left_ = items_.size();
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].choice = std::make_unique<Choice>(model_.tokenizer, plan_.request.output);
    items_[i].voice = plan_.voice(static_cast<int64_t>(i));
  }
  if (plan_.request.stream) {
    exchange_->BeginStream();
    streaming_ = true;
  }
  const uint64_t seed = plan_.request.seed.value_or(RandomSeed());
  for (size_t i = 0; i < items_.size(); ++i) {
    Request request = plan_.prompts[i / n];
    request.sampling.seed = seed + i;  // one choice: the seed itself
    const Status status = Submit(i, std::move(request));
    if (!status.ok()) return Fail(FromStatus(status));
  }
  metrics_.params_n.Observe(static_cast<double>(n));
  for (const Request& prompt : plan_.prompts) {
    metrics_.prompt_tokens.Observe(static_cast<double>(prompt.prompt.size()));
    if (plan_.request.max_tokens.has_value()) {
      metrics_.params_max_tokens.Observe(static_cast<double>(*plan_.request.max_tokens));
    }
    metrics_.max_tokens.Observe(static_cast<double>(prompt.max_tokens));
  }
}

Status Generation::Submit(size_t index, Request request) {
  const auto self = shared_from_this();
  FLUVIAL_ASSIGN_OR_RETURN(
      items_[index].id,
      loop_.Submit(
          std::move(request), [self, index](uint64_t, const Token& token) { return self->OnToken(index, token); },
          [self, index](uint64_t, const Completion& completion) { self->OnDone(index, completion); }, deadline_));
  return Status::Ok();
}

Next Generation::OnToken(size_t index, const Token& token) {
  const std::lock_guard lock(mutex_);
  if (lost_.load()) EndLost();
  if (over_) return Next::kStop;
  Item& item = items_[index];
  const Clock::time_point now = Clock::now();
  if (item.choice->tokens() > 0) {
    metrics_.inter_token_latency.Observe(Seconds(now - item.last));
  } else {
    metrics_.time_to_first_token.Observe(Seconds(now - arrival_));
  }
  item.last = now;
  if (plan_.dropped_tokens > 0) return Next::kContinue;
  const Next next = item.choice->Push(token);
  if (plan_.request.stream && item.choice->HasText()) {
    item.voice->Add(item.choice->Take());
    WriteChunks(&item);
  }
  return over_ ? Next::kStop : next;
}

void Generation::OnDone(size_t index, const Completion& completion) {
  const std::lock_guard lock(mutex_);
  Item& item = items_[index];
  if (item.ended) return;
  item.ended = true;
  --left_;
  if (lost_.load()) EndLost();
  CountEnd(completion);
  if (over_) return;
  switch (completion.finish_reason) {
    case FinishReason::kError:
      return Fail(FromStatus(completion.status));
    case FinishReason::kCancelled: {
      ApiError error;
      const bool late = Clock::now() >= deadline_;
      error.status = late ? 504 : 503;
      error.message = late ? "the request took longer than the server allows (--request-timeout): ask for fewer tokens"
                           : "the server is shutting down: send the request again";
      return Fail(error);
    }
    case FinishReason::kStop:
    case FinishReason::kLength:
      break;
  }
  item.cached_tokens = completion.cached_tokens;
  item.voice->AddPrompt(completion.prompt_logprobs);
  item.choice->Finish(completion);
  item.voice->Add(item.choice->Take());
  item.voice->End(item.choice->reason(), item.choice->stop_reason());
  if (plan_.request.stream) WriteChunks(&item);
  if (left_ == 0 && !over_) Complete();
}

void Generation::OnLost() {
  lost_.store(true);
  loop_.Post([self = shared_from_this()] {
    const std::lock_guard lock(self->mutex_);
    self->EndLost();
  });
}

void Generation::EndLost() {
  if (over_) return;
  over_ = true;
  metrics_.disconnects.fetch_add(1);
  CancelAll();
}

void Generation::CountEnd(const Completion& completion) {
  Ended ended = Ended::kError;
  if (completion.finish_reason == FinishReason::kStop) ended = Ended::kStop;
  if (completion.finish_reason == FinishReason::kLength) ended = Ended::kLength;
  // A stop that the callback asked for because nobody listens any more is an abort.
  if (completion.finish_reason == FinishReason::kCancelled || over_) ended = Ended::kAbort;
  metrics_.ended[static_cast<size_t>(ended)].fetch_add(1);
  metrics_.e2e_latency.Observe(Seconds(Clock::now() - arrival_));
  metrics_.generation_tokens.Observe(static_cast<double>(completion.tokens.size()));
  if (completion.tokens.empty()) return;
  metrics_.queue_time.Observe(completion.queue_seconds);
  metrics_.prefill_time.Observe(completion.first_token_seconds - completion.queue_seconds);
  metrics_.decode_time.Observe(completion.total_seconds - completion.first_token_seconds);
  metrics_.inference_time.Observe(completion.total_seconds - completion.queue_seconds);
}

Json Generation::Envelope(const std::string& object) const {
  Json out;
  out["id"] = plan_.id;
  out["object"] = object;
  out["created"] = created_;
  out["model"] = plan_.request.model;
  return out;
}

Json Generation::Usage() const {
  int64_t drawn = 0;
  int64_t cached = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    drawn += items_[i].choice->tokens();
    if (i % static_cast<size_t>(plan_.request.n) == 0) cached += items_[i].cached_tokens;  // a prompt counts once
  }
  Json usage;
  usage["prompt_tokens"] = prompt_tokens_;
  usage["completion_tokens"] = drawn;
  usage["total_tokens"] = prompt_tokens_ + drawn;
  usage["prompt_tokens_details"]["cached_tokens"] = cached;
  return usage;
}

void Generation::WriteChunks(Item* item) {
  for (Json& entry : item->voice->TakeChunks()) {
    Json chunk = Envelope(plan_.chunk_object);
    chunk["choices"] = Json::array({std::move(entry)});
    if (plan_.request.continuous_usage) {
      chunk["usage"] = Usage();
    } else if (plan_.request.include_usage) {
      chunk["usage"] = Json();
    }
    if (exchange_->Write(Event(chunk))) continue;
    // Gone or too slow: the connection closes.
    return EndLost();
  }
}

void Generation::Complete() {
  over_ = true;
  if (plan_.request.stream) {
    if (plan_.request.include_usage) {
      Json chunk = Envelope(plan_.chunk_object);
      chunk["choices"] = Json::array();
      chunk["usage"] = Usage();
      exchange_->Write(Event(chunk));
    }
    exchange_->Write("data: [DONE]\n\n");
    return exchange_->EndStream();
  }
  Json answer = Envelope(plan_.object);
  Json choices = Json::array();
  for (Item& item : items_) choices.push_back(item.voice->Whole());
  answer["choices"] = std::move(choices);
  answer["usage"] = Usage();
  HttpResponse response;
  response.body = Dump(answer);
  exchange_->Send(std::move(response));
}

void Generation::Fail(const ApiError& error) {
  if (over_) return;
  over_ = true;
  CancelAll();
  if (error.status >= 500) LogWarning("request " + plan_.id + ": " + error.message);
  if (!streaming_) return exchange_->Send(ErrorResponse(error));
  exchange_->Write("data: " + ErrorJson(error) + "\n\n");
  exchange_->Write("data: [DONE]\n\n");
  exchange_->EndStream();
}

void Generation::CancelAll() {
  for (const Item& item : items_) {
    if (item.id != 0 && !item.ended) loop_.Cancel(item.id);
  }
}

}  // namespace fluvial::server
