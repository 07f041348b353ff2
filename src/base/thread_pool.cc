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

// Layout of state_.
constexpr uint64_t kEpoch = uint64_t{1} << 32;
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;

inline uint64_t EpochOf(uint64_t state) { return state / kEpoch; }

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
    state_.fetch_add(kEpoch);
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
  {
    std::lock_guard lock(mutex_);  // pairs with the predicate check in WorkerLoop: no lost wake-up
    // Nobody is inside and the job before is closed, so this is the only writer.
    state_.store((EpochOf(state_.load(std::memory_order_relaxed)) + 1) * kEpoch + kOpen, std::memory_order_release);
  }
  wake_.notify_all();
  Drain(0);
  // Only workers that are inside are waited for: one that has not woken yet - other processes may hold its core - has
  // nothing to add and finds the job closed.
  state_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int spins = 0; (state_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
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
    while (EpochOf(state_.load(std::memory_order_acquire)) == seen && spins < kSpins) {
      Pause();
      ++spins;
    }
    if (EpochOf(state_.load(std::memory_order_acquire)) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return EpochOf(state_.load(std::memory_order_acquire)) != seen; });
    }
    if (stop_) return;
    uint64_t state = state_.load(std::memory_order_acquire);
    seen = EpochOf(state);
    while ((state & kOpen) != 0 && EpochOf(state) == seen) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      Drain(worker);
      state_.fetch_sub(1, std::memory_order_release);
      break;
    }
  }
}

}  // namespace fluvial
