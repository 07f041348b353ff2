// SPDX-License-Identifier: Apache-2.0
// Internal to the room: transposition of a piece of an input-major weight, dispatched to the best instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fluvial::ops::moe {

/// out[j * out_pitch + i] = in[i * in_pitch + j] for i < rows, j < columns; elements of `size` bytes, 2 or 4. Pitches
/// count elements.
void Turn(const void* in, int64_t in_pitch, int64_t rows, int64_t columns, size_t size, void* out, int64_t out_pitch);

}  // namespace fluvial::ops::moe
