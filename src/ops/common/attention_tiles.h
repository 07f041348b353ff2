// SPDX-License-Identifier: Apache-2.0
// Sizes of the tiles that the CPU attention bodies share; the vector code is attention_tiles-inl.h.
#pragma once

#include <cstdint>

namespace fluvial::ops::attention {

inline constexpr int64_t kTile = 64;  ///< keys scored together

/// Row pitch of fp32 accumulators: the head dimension rounded up to every vector length in use.
inline constexpr int64_t PaddedDim(int64_t d) { return (d + 15) / 16 * 16; }

/// Room for whole panels of 32 columns.
inline constexpr int64_t RoundedToPanels(int64_t padded) { return (padded + 31) / 32 * 32; }

}  // namespace fluvial::ops::attention
