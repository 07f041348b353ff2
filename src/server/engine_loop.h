// SPDX-License-Identifier: Apache-2.0
// EngineLoop: the one thread that steps the engine, and the door through which other threads give it requests.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fluvial/engine.h"

namespace fluvial::server {

class EngineLoop {
 public:
  using Clock = std::chrono::steady_clock;

  /// Steps `engine` until Stop(). Danger: nobody else may step it, and it must outlive this.
  /// `max_requests`: waiting and running together; more are refused with kResource. `on_step` is called after each step
  /// with the tokens it held.
  EngineLoop(Engine& engine, int64_t max_requests, std::function<void(int64_t tokens)> on_step = {});
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  Engine& engine() { return engine_; }
  const Engine& engine() const { return engine_; }

  /// Engine::Submit; at `deadline` the request is cancelled. Exactly one `on_done` for every id. Any thread.
  Result<uint64_t> Submit(Request request, TokenCallback on_token, DoneCallback on_done, Clock::time_point deadline);
  /// kResource when `more` requests would be too many now.
  Status Room(size_t more) const;
  void Cancel(uint64_t id);
  void CancelAll();
  /// Runs `task` on the stepping thread before the next step. Never waits for a step or a request, so that the network
  /// thread can call it; after Stop the task is dropped.
  void Post(std::function<void()> task);

  /// Requests given to the engine that have not ended.
  int64_t active() const;
  /// False once a step has failed beyond a single request: nothing is accepted from then on.
  bool alive() const { return alive_.load(); }

  /// Cancels what is left and joins the thread.
  void Stop();

 private:
  void Run();
  void RunTasks();
  void Wake();
  void CancelExpired();
  /// Every request that has not ended ends with `status`.
  void FailAll(const Status& status);

  Engine& engine_;
  const int64_t max_requests_;
  const std::function<void(int64_t)> on_step_;
  std::atomic<bool> alive_{true};

  std::mutex wake_mutex_;  // guards the next four; held for moments only, taken last
  std::condition_variable wake_;
  std::vector<std::function<void()>> tasks_;
  bool woken_ = false;
  bool ended_ = false;

  mutable std::mutex mutex_;  // guards what follows
  bool stopping_ = false;
  Status broken_;
  std::unordered_map<uint64_t, std::pair<DoneCallback, Clock::time_point>> active_;
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
  std::thread thread_;
};

}  // namespace fluvial::server
