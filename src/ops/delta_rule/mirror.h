// SPDX-License-Identifier: Apache-2.0
// A rounding mirror of `cpu_bf16`: its chunks in fp64 with a rounding to bf16 exactly where the kernel has one. The
// bounds of verify allow every operand an error of 2^-8; against the mirror fp32 sums and rare ties are left, so that a
// wrong order, a missing or an extra rounding, or a small systematic error hiding below those bounds shows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// Tokens [begin, begin + length) of host tensors through value head `head` as one sequence of at least 8 tokens:
/// `state` [V, K] comes in and goes out, `out` receives [length, V] before the store. False, with neither of use, when
/// a chunk takes a form that is not mirrored (KDA decaying by more than e^-59 in 32 tokens, keys above 999).
bool MirrorBf16(const Problem& problem, const Args& args, int64_t begin, int64_t length, int64_t head,
                std::vector<double>* state, std::vector<double>* out);

}  // namespace fluvial::ops::delta_rule
