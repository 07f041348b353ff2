// SPDX-License-Identifier: Apache-2.0
// What a call costs, from bench_gemm's figures: the larger of the time to read the weights and the time to compute,
// plus a fixed part per call.
#include <algorithm>

#include "ops/gemm/backends.h"

namespace fluvial::ops::gemm {
namespace {

struct Rate {
  double gflops_per_thread = 0;  // many rows
  double gbytes_per_thread = 0;  // weights streamed, few rows
  double fixed_us = 0;           // waking threads, checks
};

// Measured on AMD EPYC (Zen 5), one thread; README.md has the table. Other machines scale all rows alike as far as
// `auto` is concerned: only the ratios matter. oneDNN's fixed part counts that its OpenMP threads and our pool take the
// cores from each other for some time after every change from one to the other.
constexpr Rate kRates[] = {
    /* kCpuBf16    */ {450, 30, 3},
    /* kCpuFp32    */ {230, 28, 3},
    /* kOneDnnBf16 */ {445, 14, 60},
    /* kOneDnnFp32 */ {225, 16, 60},
    /* kReference  */ {0.5, 1, 3},
};
// oneDNN with weights in its own layout.
constexpr double kPackedStream = 2.5, kPackedCompute = 1.07;
// Threads beyond this add nothing to the memory's rate.
constexpr double kStreamThreads = 8;

}  // namespace

double CostUs(CostClass c, const Problem& p, const DeviceInfo& device) {
  const Rate& r = kRates[static_cast<int>(c)];
  const double threads = std::max(1, device.multiprocessors);
  const double work = 2.0 * double(p.m) * double(p.n) * double(p.k) / (p.packed ? kPackedCompute : 1);
  const double bytes = double(p.n) * double(p.k) * double(SizeOf(p.w)) / (p.packed ? kPackedStream : 1);
  const double compute = work / (r.gflops_per_thread * threads * 1e3);
  const double stream = bytes / (r.gbytes_per_thread * std::min(threads, kStreamThreads) * 1e3);
  return r.fixed_us + std::max(compute, stream);
}

}  // namespace fluvial::ops::gemm
