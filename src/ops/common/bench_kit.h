// SPDX-License-Identifier: Apache-2.0
// What the CPU benchmarks of the operator rooms share: repeated timing, and what this machine can do at best.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace fluvial::ops {

struct Timing {
  std::vector<double> us;  ///< wall time of each repeat, in order
  double best_us = 0;
  double median_us = 0;
  /// Best CPU time of the process over `threads`: what the work took while it ran, on a machine shared with others.
  double best_active_us = 0;
};

/// One warm-up, then repeats until both bounds are reached.
Timing TimeRepeats(const std::function<void()>& run, int threads, int min_repeats, double min_seconds);

/// Measured in this process with the same pool, so that ratios compare like with like.
struct Probe {
  double read_gbs = 0;    ///< summing a buffer far larger than the caches
  double copy_gbs = 0;    ///< bytes read plus bytes written of a copy of such a buffer
  double fma_gflops = 0;  ///< independent fp32 FMA chains in registers, 2 per FMA and lane
};
Probe ProbeMachine(ThreadPool& pool);

/// "probe: read 14.1 GB/s, copy 20.3 GB/s, fma 130.0 GFLOP/s (2 threads, AVX3)".
std::string Describe(const Probe& probe, ThreadPool& pool);

}  // namespace fluvial::ops
