// SPDX-License-Identifier: Apache-2.0
#include "ops/common/bench_kit.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/bench_kit.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// 12 chains of `steps` FMAs; returns the operations done.
double FmaChains(int64_t steps, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  auto x0 = hn::Set(d, 1.0f), x1 = x0, x2 = x0, x3 = x0, x4 = x0, x5 = x0;
  auto x6 = x0, x7 = x0, x8 = x0, x9 = x0, xa = x0, xb = x0;
  for (int64_t i = 0; i < steps; ++i) {
    x0 = hn::MulAdd(x0, a, b);
    x1 = hn::MulAdd(x1, a, b);
    x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b);
    x4 = hn::MulAdd(x4, a, b);
    x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b);
    x7 = hn::MulAdd(x7, a, b);
    x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
    xa = hn::MulAdd(xa, a, b);
    xb = hn::MulAdd(xb, a, b);
  }
  const auto s = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(hn::Add(x4, x5), hn::Add(x6, x7)));
  *sink = hn::GetLane(hn::SumOfLanes(d, hn::Add(s, hn::Add(hn::Add(x8, x9), hn::Add(xa, xb)))));
  return 2.0 * 12 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(steps);
}

double SumFloats(const float* x, size_t n) {
  const hn::ScalableTag<float> d;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, x + i));
    s1 = hn::Add(s1, hn::LoadU(d, x + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, x + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, x + i + 3 * lanes));
  }
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))));
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops {

HWY_EXPORT(FmaChains);
HWY_EXPORT(SumFloats);

namespace {

double WallUs() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuUs() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

}  // namespace

Timing TimeRepeats(const std::function<void()>& run, int threads, int min_repeats, double min_seconds) {
  run();
  Timing t;
  const double start = WallUs();
  while (static_cast<int>(t.us.size()) < min_repeats || WallUs() - start < min_seconds * 1e6) {
    const double wall = WallUs(), cpu = CpuUs();
    run();
    t.us.push_back(WallUs() - wall);
    const double active = (CpuUs() - cpu) / threads;
    t.best_active_us = t.us.size() == 1 ? active : std::min(t.best_active_us, active);
  }
  std::vector<double> sorted = t.us;
  std::sort(sorted.begin(), sorted.end());
  t.best_us = sorted.front();
  t.median_us = sorted[sorted.size() / 2];
  return t;
}

Probe ProbeMachine(ThreadPool& pool) {
  Probe p;
  const int64_t threads = pool.threads();
  std::vector<float> sinks(static_cast<size_t>(threads) * 16);
  double operations = 0;
  const Timing fma = TimeRepeats(
      [&] {
        std::vector<double> done(static_cast<size_t>(threads), 0.0);
        pool.ParallelFor(threads,
                         [&](int64_t i, int) { done[i] = HWY_DYNAMIC_DISPATCH(FmaChains)(2000000, &sinks[i * 16]); });
        operations = 0;
        for (double d : done) operations += d;
      },
      pool.threads(), 5, 0);
  p.fma_gflops = operations / fma.best_us * 1e-3;

  constexpr size_t kFloats = size_t{32} << 20;  // 128 MiB
  std::vector<float> from(kFloats, 1.0f), to(kFloats, 2.0f);
  const size_t part = kFloats / static_cast<size_t>(threads);
  const Timing read = TimeRepeats(
      [&] {
        pool.ParallelFor(threads, [&](int64_t i, int) {
          sinks[i * 16] = static_cast<float>(HWY_DYNAMIC_DISPATCH(SumFloats)(from.data() + i * part, part));
        });
      },
      pool.threads(), 5, 0);
  p.read_gbs = static_cast<double>(kFloats) * 4 / read.best_us * 1e-3;
  const Timing copy = TimeRepeats(
      [&] {
        pool.ParallelFor(threads, [&](int64_t i, int) {
          std::memcpy(to.data() + i * part, from.data() + i * part, part * sizeof(float));
        });
      },
      pool.threads(), 5, 0);
  p.copy_gbs = static_cast<double>(kFloats) * 8 / copy.best_us * 1e-3;
  return p;
}

std::string Describe(const Probe& p, ThreadPool& pool) {
  char text[160];
  std::snprintf(text, sizeof(text), "probe: read %.1f GB/s, copy %.1f GB/s, fma %.1f GFLOP/s (%d threads)", p.read_gbs,
                p.copy_gbs, p.fma_gflops, pool.threads());
  return text;
}

}  // namespace fluvial::ops
#endif
