// SPDX-License-Identifier: Apache-2.0
#include "server/engine_loop.h"

#include <vector>

#include "base/log.h"

namespace fluvial::server {

EngineLoop::EngineLoop(Engine& engine, int64_t max_requests, std::function<void(int64_t)> on_step)
    : engine_(engine), max_requests_(max_requests), on_step_(std::move(on_step)), thread_([this] { Run(); }) {}

EngineLoop::~EngineLoop() { Stop(); }

Status EngineLoop::Room(size_t more) const {
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  if (stopping_) return Status::Resource("the server is shutting down");
  const int64_t all = static_cast<int64_t>(active_.size() + more);
  if (all <= max_requests_) return Status::Ok();
  return Status::Resource("there would be " + std::to_string(all) + " answers under way, at most " +
                          std::to_string(max_requests_) + " may be (--max-requests): try again later");
}

Result<uint64_t> EngineLoop::Submit(Request request, TokenCallback on_token, DoneCallback on_done,
                                    Clock::time_point deadline) {
  FLUVIAL_RETURN_IF_ERROR(Room(1));
  // The end of a request takes its entry out, so the entry must be there before the stepping thread can get so far.
  const std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  if (stopping_) return Status::Resource("the server is shutting down");
  const DoneCallback ended = [this](uint64_t id, Completion completion) {
    DoneCallback tell;
    {
      const std::lock_guard guard(mutex_);
      const auto it = active_.find(id);
      if (it == active_.end()) return;  // FailAll was first
      tell = std::move(it->second.first);
      deadlines_.erase({it->second.second, id});
      active_.erase(it);
    }
    tell(id, std::move(completion));
  };
  FLUVIAL_ASSIGN_OR_RETURN(const uint64_t id, engine_.Submit(std::move(request), std::move(on_token), ended));
  active_.emplace(id, std::pair(std::move(on_done), deadline));
  if (deadline != Clock::time_point::max()) deadlines_.emplace(deadline, id);
  Wake();
  return id;
}

void EngineLoop::Cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (!active_.contains(id)) return;
  engine_.Cancel(id);
  Wake();
}

void EngineLoop::CancelAll() {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : active_) engine_.Cancel(id);
  Wake();
}

void EngineLoop::Wake() {
  const std::lock_guard lock(wake_mutex_);
  woken_ = true;
  wake_.notify_one();
}

void EngineLoop::Post(std::function<void()> task) {
  const std::lock_guard lock(wake_mutex_);
  if (ended_) return;
  tasks_.push_back(std::move(task));
  woken_ = true;
  wake_.notify_one();
}

void EngineLoop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(wake_mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) task();
}

int64_t EngineLoop::active() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(active_.size());
}

void EngineLoop::CancelExpired() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    engine_.Cancel(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
  }
}

void EngineLoop::FailAll(const Status& status) {
  std::vector<std::pair<uint64_t, DoneCallback>> left;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, entry] : active_) left.emplace_back(id, std::move(entry.first));
    active_.clear();
    deadlines_.clear();
  }
  for (auto& [id, tell] : left) {
    Completion completion;
    completion.finish_reason = FinishReason::kError;
    completion.status = status;
    tell(id, std::move(completion));
  }
}

void EngineLoop::Run() {
  int64_t seen = 0;
  while (true) {
    RunTasks();
    CancelExpired();
    const Result<bool> stepped = engine_.Step();
    if (!stepped.ok()) {
      Log(LogLevel::kError, "the engine stopped: " + stepped.status().message());
      {
        const std::lock_guard lock(mutex_);
        broken_ = Status::Failed("the engine stopped: " + stepped.status().message());
      }
      alive_.store(false);
      FailAll(broken_);
      return;
    }
    if (on_step_) {
      const EngineStats stats = engine_.stats();
      const int64_t all = stats.prefill_step_tokens + stats.decode_step_tokens;
      if (all > seen) on_step_(all - seen);
      seen = all;
    }
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ && active_.empty()) return;
    }
    std::unique_lock lock(wake_mutex_);
    // Idle: nothing waits or runs, so there is no deadline to watch either.
    if (!*stepped) wake_.wait(lock, [this] { return woken_; });
    woken_ = false;
  }
}

void EngineLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  CancelAll();  // wakes the thread, too
  if (thread_.joinable()) thread_.join();
  std::vector<std::function<void()>> dropped;  // what they hold ends outside the lock
  {
    const std::lock_guard lock(wake_mutex_);
    ended_ = true;
    dropped.swap(tasks_);
  }
  FailAll(Status::Resource("the server is shutting down"));
}

}  // namespace fluvial::server
