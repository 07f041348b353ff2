// SPDX-License-Identifier: Apache-2.0
// VisionLayout: what a vision tower derives from the grids of its pictures alone - the places of patches, the sequences
// of attention, the order of windows. Built once per call, shared by all blocks.
//
// Source: huggingface/transformers 5.24, vision_utils.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fluvial/vision.h"
#include "weights/model_config.h"

namespace fluvial::models {

struct VisionLayout {
  int64_t patches = 0;
  std::vector<int64_t> places;   ///< [2, patches]: row and column of each patch, in the tower's order
  std::vector<int64_t> frames;   ///< patches of each frame group: sequences of full attention
  std::vector<int64_t> windows;  ///< patches of each window; windowed towers only
  /// The tower's cell i (merge x merge patches, one feature) is cell cells[i] of the input; windowed towers only.
  std::vector<int32_t> cells;
};

VisionLayout MakeVisionLayout(const weights::VisionConfig& config, std::span<const VisionInput> items);

/// Where a patch row or column of a picture with `size` of them falls on a position table with `side`: two table rows
/// and the weight of the second, all in fp32 as transformers computes them (first and last patch on the table's ends).
struct TablePlace {
  int64_t low = 0;
  int64_t high = 0;
  float low_weight = 1;
  float high_weight = 0;
};
TablePlace PlaceOnTable(int64_t index, int64_t size, int64_t side);

}  // namespace fluvial::models
