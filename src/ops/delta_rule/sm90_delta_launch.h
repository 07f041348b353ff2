// SPDX-License-Identifier: Apache-2.0
// Host entry points of the delta rule's CUDA kernels: fill the parameters, launch on the stream, report the launch.
#pragma once

#include "fluvial/status.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/delta_rule/sm90_delta_params.h"

namespace fluvial::ops::delta_rule {

/// sm90_chunk16_host.cu. The caller has checked the contract (cuda_backend.cc). parts: 0 = one CTA per sequence and
/// head; else the work is cut into so many equal parts, one CTA each, with a workspace of BalancedWorkspace bytes. All
/// parts must fit on the GPU at once for speed; correctness does not need it.
Status LaunchChunk16(Stream& stream, const Problem& problem, const Args& args, int64_t parts, Workspace workspace);

inline size_t BalancedWorkspace(int64_t parts) {
  return static_cast<size_t>(parts) * sm90::kBalancedCell + static_cast<size_t>(parts + 1) * sm90::kBalancedBoundary;
}

/// cuda_decode.cu: one token (or none) per sequence, k = 128, v a multiple of 32, 16-byte alignment.
Status LaunchDecode(Stream& stream, const Problem& problem, const Args& args);

/// cuda_tokens.cu: the recurrence token by token, any contract, prefill and decode.
Status LaunchTokens(Stream& stream, const Problem& problem, const Args& args);

}  // namespace fluvial::ops::delta_rule
