// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/roofline.h"

#include <time.h>

#include <algorithm>
#include <vector>

#include "ops/delta_rule/cpu_simd.h"

namespace fluvial::ops::delta_rule {
namespace {

// CPU time: what other programs take does not count, for floors as for kernels.
double ThreadSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Runs `part(i)` for each thread and gives the CPU time of the slowest.
template <class Part>
double Busy(ThreadPool& pool, Part part) {
  std::vector<double> seconds(static_cast<size_t>(pool.threads()) * 8, 0);
  pool.ParallelFor(pool.threads(), [&](int64_t i, int) {
    const double start = ThreadSeconds();
    part(i);
    seconds[static_cast<size_t>(i) * 8] = ThreadSeconds() - start;
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

// Bytes read plus written by an update in place that no cache holds, as decode updates states; best of a few.
double MeasureMemory(ThreadPool& pool) {
  constexpr int64_t kFloats = int64_t{64} << 20;
  const auto buffer = Buffer::Allocate(DeviceKind::kCpu, kFloats * sizeof(float));
  if (!buffer.ok()) return 1e4;  // 10 GB/s: a floor that no one believes, instead of none
  auto* x = static_cast<float*>(buffer->data());
  const int64_t part = kFloats / pool.threads();
  pool.ParallelFor(pool.threads(), [&](int64_t i, int) { std::fill(x + i * part, x + (i + 1) * part, 1.0f); });
  double best = 0;
  for (int repeat = 0; repeat < 7; ++repeat) {
    const double seconds = Busy(pool, [&](int64_t i) { UpdateInPlace(x + i * part, part); });
    best = std::max(best, 2.0 * sizeof(float) * static_cast<double>(part * pool.threads()) / seconds);
  }
  return best * 1e-6;
}

double MeasureMultiplyAdds(ThreadPool& pool) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<double> done(static_cast<size_t>(pool.threads()) * 8, 0);
    const double seconds = Busy(pool, [&](int64_t i) { done[static_cast<size_t>(i) * 8] = SpinMultiplyAdds(); });
    double sum = 0;
    for (const double d : done) sum += d;
    best = std::max(best, sum / seconds);
  }
  return best * 1e-6;
}

}  // namespace

Roofline RooflineOf(Stream& stream) {
  const DeviceInfo& device = stream.device();
  if (device.kind == DeviceKind::kCpu) {
    static const Roofline measured = {MeasureMemory(stream.pool()), MeasureMultiplyAdds(stream.pool()),
                                      "measured here"};
    return measured;
  }
  // HBM bandwidth and dense bf16 rate of one representative board: H200, B200, B300, RTX PRO 6000.
  if (device.sm_major == 9) return {4.8e6, 989e6 / 2, "public figures of an H200"};
  if (device.sm_major == 10) return {8.0e6, 2250e6 / 2, "public figures of a B200"};
  return {1.79e6, 500e6 / 2, "public figures of an RTX PRO 6000"};
}

double FloorUs(const Roofline& r, double bytes, double multiply_adds) {
  return std::max(bytes / r.bytes_per_us, multiply_adds / r.multiply_adds_per_us);
}

}  // namespace fluvial::ops::delta_rule
