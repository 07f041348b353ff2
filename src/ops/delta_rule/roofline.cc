// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/roofline.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "ops/delta_rule/cpu_simd.h"

namespace fluvial::ops::delta_rule {
namespace {

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Bytes read plus written by a copy that no cache holds; best of a few.
double MeasureCopy(ThreadPool& pool) {
  constexpr size_t kBytes = size_t{96} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = Seconds();
    pool.ParallelFor(64, [&](int64_t i, int) {
      std::memcpy(to.data() + i * (kBytes / 64), from.data() + i * (kBytes / 64), kBytes / 64);
    });
    best = std::max(best, 2.0 * kBytes / (Seconds() - start));
  }
  return best * 1e-6;
}

double MeasureMultiplyAdds(ThreadPool& pool) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<double> done(static_cast<size_t>(pool.threads()) * 8, 0);
    const double start = Seconds();
    pool.ParallelFor(pool.threads(), [&](int64_t i, int) { done[static_cast<size_t>(i) * 8] = SpinMultiplyAdds(); });
    double sum = 0;
    for (const double d : done) sum += d;
    best = std::max(best, sum / (Seconds() - start));
  }
  return best * 1e-6;
}

}  // namespace

Roofline RooflineOf(Stream& stream) {
  const DeviceInfo& device = stream.device();
  if (device.kind == DeviceKind::kCpu) {
    static const Roofline measured = {MeasureCopy(stream.pool()), MeasureMultiplyAdds(stream.pool()), "measured here"};
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
