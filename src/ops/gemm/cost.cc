// SPDX-License-Identifier: Apache-2.0
// What a call costs, from bench_gemm's figures: the larger of the time to read the weights and the time to compute,
// plus a fixed part per call.
#include <algorithm>

#include "ops/gemm/backends.h"

namespace fluvial::ops::gemm {
namespace {

struct Rate {
  double gflops_per_thread = 0;  // M large
  double bytes_per_us = 0;       // weights streamed, whole machine
  double fixed_us = 0;
};

// Measured on AMD EPYC (Zen 5), 2 threads, 39 GB/s read bandwidth; README.md has the table. Other machines scale all
// rows alike as far as `auto` is concerned: only the ratios matter.
constexpr Rate kRates[] = {
    /* kCpuBf16    */ {350, 36000, 5},
    /* kCpuFp32    */ {180, 36000, 5},
    /* kOneDnnBf16 */ {80, 24000, 20},
    /* kOneDnnFp32 */ {140, 30000, 20},
    /* kReference  */ {0.5, 4000, 5},
};

}  // namespace

double CostUs(CostClass c, const Problem& p, const DeviceInfo& device) {
  const Rate& r = kRates[static_cast<int>(c)];
  const double threads = std::max(1, device.multiprocessors);
  const double compute = 2.0 * double(p.m) * double(p.n) * double(p.k) / (r.gflops_per_thread * threads * 1e3);
  const double stream = double(p.n) * double(p.k) * double(SizeOf(p.w)) / r.bytes_per_us;
  return r.fixed_us + std::max(compute, stream);
}

}  // namespace fluvial::ops::gemm
