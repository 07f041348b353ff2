// SPDX-License-Identifier: Apache-2.0
// Internal to this room: steps 1 to 4 of sampling.h on a copy of the logits.
#pragma once

#include "ops/sampling/sampling.h"

namespace fluvial::ops::sampling {

/// Mask, bans, penalties and bias, in place on scores[vocab].
void Process(const Row& row, int64_t vocab, float* scores);

/// Whether Process would change anything.
bool NeedsProcessing(const Row& row);

}  // namespace fluvial::ops::sampling
