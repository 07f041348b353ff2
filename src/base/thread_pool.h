// SPDX-License-Identifier: Apache-2.0
// A small persistent pool for one thing: a blocking parallel_for with a stable worker index. Passed
// explicitly, never global.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace fluvial {

/// The calling thread is worker 0 and takes part; `threads - 1` others spin briefly, then sleep.
/// ParallelFor is not reentrant: a task must not call ParallelFor of the same pool. One caller at a time.
class ThreadPool {
 public:
  /// threads <= 0: as many as the process may use (its CPU affinity). Fewer when the system refuses more.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(index, worker) for index in [0, count), each index once, in increasing order per worker but
  /// unordered across workers; returns when all are done. fn must not throw. Indexes are handed out
  /// dynamically, so tasks of unequal length balance; results must not depend on the worker index.
  template <class Fn>
  void ParallelFor(int64_t count, Fn&& fn) {
    if (count <= 0) return;
    if (count == 1 || workers_.empty()) {
      for (int64_t i = 0; i < count; ++i) fn(i, 0);
      return;
    }
    using F = std::remove_reference_t<Fn>;
    Run(
        count, [](void* f, int64_t i, int w) { (*static_cast<F*>(f))(i, w); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void*, int64_t, int);
  void Run(int64_t count, Call call, void* fn);
  void WorkerLoop(int worker);
  void Drain(int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Epoch (upper 32 bits, one per job), open flag, and the number of workers inside the job.
  std::atomic<uint64_t> state_{0};
  std::atomic<int64_t> next_{0};
  int64_t count_ = 0;
  Call call_ = nullptr;
  void* fn_ = nullptr;
  std::atomic<bool> stop_{false};
};

/// CPUs this process may run on (affinity mask), at least 1.
int AvailableCpus();

}  // namespace fluvial
