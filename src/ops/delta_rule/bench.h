// SPDX-License-Identifier: Apache-2.0
// Timing of one backend on one problem, for `fluvial bench op` and bench_delta_rule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/common/measure.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// What the operator cannot do without: every input read once, every output written once, states read and written.
double MinimumBytes(const ProblemLine& line);

/// Multiply-adds of the recurrence itself: predict, write, output - 3 K V per token and value head. Chunked bodies do
/// more; the same count for all makes rates comparable.
double MultiplyAdds(const ProblemLine& line);

/// A peer, not a backend: the tuned token-by-token loop of bench_token_loop_simd.cc (prefill, CPU, v a multiple of 64).
extern const DeltaBackend kTokenLoopPeer;

using ops::Measurement;

/// Random inputs with long memory, one warm-up, then repeats until both `min_repeats` and `min_seconds` are reached.
/// On CUDA the time is between events on the stream.
Result<Measurement> Measure(Stream& stream, const DeltaBackend& backend, const ProblemLine& line, int min_repeats,
                            double min_seconds);

}  // namespace fluvial::ops::delta_rule
