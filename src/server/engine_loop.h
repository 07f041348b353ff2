// SPDX-License-Identifier: Apache-2.0
// EngineLoop: the one thread that steps the engine, and the door through which other threads give it requests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

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

  /// Requests given to the engine that have not ended.
  int64_t active() const;
  /// False once a step has failed beyond a single request: nothing is accepted from then on.
  bool alive() const;

  /// Cancels what is left and joins the thread.
  void Stop();

 private:
  void Run();
  void CancelExpired();
  /// Every request that has not ended ends with `status`.
  void FailAll(const Status& status);

  Engine& engine_;
  const int64_t max_requests_;
  const std::function<void(int64_t)> on_step_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool woken_ = false;
  bool stopping_ = false;
  Status broken_;
  std::unordered_map<uint64_t, std::pair<DoneCallback, Clock::time_point>> active_;
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
  std::thread thread_;
};

}  // namespace fluvial::server
