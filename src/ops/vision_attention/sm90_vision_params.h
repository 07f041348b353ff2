// SPDX-License-Identifier: Apache-2.0
// Internal to this room: what the host asks of the sm_90a kernels. Host code; nothing of CUDA in here.
#pragma once

#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {

/// Windows: sequences of at most this many tokens, one tile, no running softmax.
inline constexpr int64_t kWindowTokens = 64;

/// Queries that one CTA of the streaming kernel takes, 128 or 192, for sequences of these lengths on `sms` SMs.
int64_t ChooseQueries(int32_t d, int64_t tokens, int64_t sequences, int32_t heads, int64_t max_length, int sms);

/// Enqueues the call. `problem` must have passed the backend's check, `args` Validate.
Status LaunchCuda(Stream& stream, const Problem& problem, const Args& args);

}  // namespace fluvial::ops::vision_attention
