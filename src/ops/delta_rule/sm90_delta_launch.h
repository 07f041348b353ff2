// SPDX-License-Identifier: Apache-2.0
// Host entry points of the delta rule's CUDA kernels: fill the parameters, launch on the stream, report the launch.
#pragma once

#include "fluvial/status.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// sm90_kda_prefill.cu. The caller has checked the contract (cuda_backend.cc).
Status LaunchKdaPrefillChunk16(Stream& stream, const Problem& problem, const Args& args);

/// cuda_tokens.cu: the recurrence token by token, any contract, prefill and decode.
Status LaunchTokens(Stream& stream, const Problem& problem, const Args& args);

}  // namespace fluvial::ops::delta_rule
