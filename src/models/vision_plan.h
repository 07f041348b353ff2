// SPDX-License-Identifier: Apache-2.0
// VisionPlan: where the tokens of a prompt with pictures stand on the three axes of mRoPE, and which of them are
// replaced by which features of the vision tower.
//
// Source: huggingface/transformers 5.24, get_rope_index of models/qwen2_5_vl, qwen3_vl and qwen3_5. Text advances all
// three axes together; a picture of h x w patches (m x m of them per token) that begins at position p gives token (a,
// b, c) the place (p + int(a * interval), p + b, p + c), and what follows begins at p + max(h, w)/m. Every frame group
// of a Qwen3 video is a picture of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fluvial/status.h"
#include "fluvial/vision.h"

namespace fluvial::models {

/// What a model's config says about its placeholders.
struct VisionRules {
  int32_t image_token = -1;
  int32_t video_token = -1;
  int64_t merge = 2;             ///< m
  int64_t patch_values = 0;      ///< numbers of one patch: channels * temporal_patch * patch * patch
  bool split_frames = true;      ///< Qwen3-VL, Qwen3.5: one run of placeholders per frame group
  double tokens_per_second = 0;  ///< interval = this * seconds_per_group, in fp32; videos without split_frames

  int64_t Tokens(const VisionInput& input) const { return input.patches() / (merge * merge); }
};

struct VisionPlan {
  /// Placeholders begin .. begin+count-1 of the prompt take features first .. of an item.
  struct Run {
    int64_t begin = 0;
    int64_t count = 0;
    size_t item = 0;
    int64_t first = 0;
  };
  std::vector<int64_t> positions;  ///< [3, prompt]: time, height, width
  int64_t delta = 0;               ///< token i >= prompt stands at i + delta on all axes
  std::vector<Run> runs;           ///< in order of begin

  bool empty() const { return runs.empty(); }
};

/// kInvalidArgument naming item, numbers and rule when an input contradicts itself or the rules.
Status CheckVisionInput(const VisionRules& rules, const VisionInput& input, size_t index);

/// `items` in the order of their placeholders in `ids`. kInvalidArgument, with both counts, when the placeholders do
/// not fit the items.
Result<VisionPlan> PlanVision(const VisionRules& rules, std::span<const int32_t> ids,
                              std::span<const VisionInput> items);

/// Stands for the content behind a run in cache keys: hash of the item, and where in it the run begins.
std::string CacheKey(const VisionInput& input, const VisionPlan::Run& run);

}  // namespace fluvial::models
