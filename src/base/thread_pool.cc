// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fluvial {
namespace {

// Spins before sleeping. About 20 us: longer than the gap between two operators of one layer, short enough
// that an idle engine does not hold a core.
constexpr int kSpins = 4000;

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = AvailableCpus();
  workers_.reserve(threads - 1);
  try {
    for (int w = 1; w < threads; ++w) workers_.emplace_back([this, w] { WorkerLoop(w); });
  } catch (const std::system_error&) {
    // The system's limit of threads: work with those there are; threads() tells.
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::Drain(int worker) {
  for (;;) {
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= count_) return;
    call_(fn_, i, worker);
  }
}

void ThreadPool::Run(int64_t count, Call call, void* fn) {
  count_ = count;
  call_ = call;
  fn_ = fn;
  next_.store(0, std::memory_order_relaxed);
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);  // pairs with the predicate check in WorkerLoop: no lost wake-up
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  Drain(0);
  // Every worker must have left Drain before count_/fn_ may change, hence the wait for all of them.
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins)
      Pause();
    else
      std::this_thread::yield();
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen && spins < kSpins) {
      Pause();
      ++spins;
    }
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    Drain(worker);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace fluvial
