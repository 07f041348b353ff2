// SPDX-License-Identifier: Apache-2.0
// VisionInput: a picture or a video as a vision tower reads it. fluvial_vision makes them from files
// (vision/processor.h); the engine takes them with a request.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace fluvial {

struct VisionInput {
  enum class Kind : uint8_t { kImage, kVideo };

  Kind kind = Kind::kImage;
  /// Patches: frame groups, rows, columns. An image has one frame group.
  std::array<int64_t, 3> grid{};
  /// fp32 [grid product, channels * temporal_patch * patch * patch], normalised. Order of rows: frame group, block row,
  /// block column, row in block, column in block; of a row: channel, frame, y, x.
  std::shared_ptr<const std::vector<float>> pixels;
  /// Time between frame groups; videos only, and only Qwen2.5-VL places tokens by it.
  double seconds_per_group = 1.0;
  /// 128-bit hash of grid and pixels (vision::ContentHash). Part of every cache key that covers the item's tokens, so
  /// two pictures behind equal token ids never share cached states. Zero: the engine computes it.
  std::array<uint64_t, 2> hash{};

  int64_t patches() const { return grid[0] * grid[1] * grid[2]; }
};

}  // namespace fluvial
