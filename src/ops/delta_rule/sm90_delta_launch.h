// SPDX-License-Identifier: Apache-2.0
// Host entry points of the delta rule's CUDA kernels: fill the parameters, launch on the stream, report the launch.
#pragma once

#include "fluvial/status.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// sm90_chunk16_kda.cu. The caller has checked the contract (cuda_backend.cc). segment_tokens: 0 = one CTA per
/// sequence and head; else a multiple of 16, and a workspace of SegmentsWorkspace bytes.
Status LaunchChunk16(Stream& stream, const Problem& problem, const Args& args, int64_t segment_tokens,
                     Workspace workspace);

/// b and M of every segment and head, two 128 x 128 fp32 matrices; after them one int32 each.
inline size_t SegmentsMatrices(int64_t segments, int64_t heads) {
  return static_cast<size_t>(segments * heads) * 2 * 128 * 128 * sizeof(float);
}
inline size_t SegmentsWorkspace(int64_t segments, int64_t heads) {
  return SegmentsMatrices(segments, heads) + static_cast<size_t>(segments * heads) * sizeof(int32_t);
}

/// cuda_decode.cu: one token (or none) per sequence, k = 128, v a multiple of 32, 16-byte alignment.
Status LaunchDecode(Stream& stream, const Problem& problem, const Args& args);

/// cuda_tokens.cu: the recurrence token by token, any contract, prefill and decode.
Status LaunchTokens(Stream& stream, const Problem& problem, const Args& args);

}  // namespace fluvial::ops::delta_rule
