// SPDX-License-Identifier: Apache-2.0
// Plain (not atomic) counters on purpose: the thread sanitizer lane sees any missing hand-over.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace fluvial {
namespace {

TEST(ThreadPool, EveryIndexOnceForEveryCount) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 3, 7, 8, 9, 64, 1000}) {
      std::vector<int> calls(count);
      pool.ParallelFor(count, [&](int64_t i, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++calls[i];
      });
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << "index " << i << " of " << count;
    }
  }
}

TEST(ThreadPool, NegativeCountDoesNothing) {
  ThreadPool pool(2);
  pool.ParallelFor(-5, [](int64_t, int) { FAIL(); });
}

TEST(ThreadPool, CountsBeyond32Bits) {
  // Not run to the end: only the first indexes of a huge count matter, so that 64-bit counts are not cut.
  ThreadPool pool(1);
  const int64_t count = (int64_t{1} << 33) + 2;
  std::vector<int64_t> seen;
  struct Enough {};
  try {
    pool.ParallelFor(count, [&](int64_t i, int) {
      seen.push_back(i);
      if (seen.size() == 3) throw Enough();  // one thread: the loop runs in this frame
    });
    FAIL();
  } catch (const Enough&) {
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2}));
}

TEST(ThreadPool, ResultsOfOneCallAreSeenByTheNext) {
  ThreadPool pool(4);
  std::vector<int64_t> a(257), b(257);
  for (int round = 0; round < 50; ++round) {
    pool.ParallelFor(257, [&](int64_t i, int) { a[i] = i + round; });
    pool.ParallelFor(257, [&](int64_t i, int) { b[i] = a[256 - i]; });
    int64_t sum = 0;
    for (int64_t x : b) sum += x;
    ASSERT_EQ(sum, 256 * 257 / 2 + 257 * round);
  }
}

TEST(ThreadPool, UnequalTasksBalance) {
  // One long task must not keep the others from being done by somebody else.
  ThreadPool pool(2);
  std::atomic<int> others{0};
  std::atomic<bool> waited{false};
  pool.ParallelFor(101, [&](int64_t i, int) {
    if (i == 0) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (others.load() < 100 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      waited = others.load() == 100;
    } else {
      others.fetch_add(1);
    }
  });
  EXPECT_TRUE(waited) << "the other worker did only " << others << " of 100 tasks while one task was waiting";
}

TEST(ThreadPool, ManyTinyCalls) {
  ThreadPool pool(3);
  int64_t total = 0;
  std::vector<int64_t> per_index(4);
  for (int round = 0; round < 5000; ++round) {
    pool.ParallelFor(4, [&](int64_t i, int) { per_index[i] += i; });
  }
  for (int64_t x : per_index) total += x;
  EXPECT_EQ(total, 5000 * 6);
}

TEST(ThreadPool, WakesAfterSleeping) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the spin: workers are asleep
    std::vector<int> calls(16);
    pool.ParallelFor(16, [&](int64_t i, int) { ++calls[i]; });
    for (int c : calls) ASSERT_EQ(c, 1);
  }
}

TEST(ThreadPool, WorkerIndexesDoNotOverlap) {
  // A worker index is a licence to use scratch of that index: two tasks never hold the same one at once.
  ThreadPool pool(4);
  std::vector<int64_t> scratch(4);
  std::vector<int64_t> done(5000);
  pool.ParallelFor(5000, [&](int64_t i, int worker) {
    scratch[worker] = i;
    done[i] = scratch[worker];
  });
  for (int64_t i = 0; i < 5000; ++i) ASSERT_EQ(done[i], i);
}

TEST(ThreadPool, ManyPoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) pool.ParallelFor(3, [](int64_t, int) {});
  }
}

TEST(ThreadPool, DefaultIsWhatTheProcessMayUse) {
  EXPECT_GE(AvailableCpus(), 1);
  EXPECT_EQ(ThreadPool(0).threads(), AvailableCpus());
  EXPECT_EQ(ThreadPool(-3).threads(), AvailableCpus());
}

}  // namespace
}  // namespace fluvial
