// SPDX-License-Identifier: Apache-2.0
#include "models/vision_plan.h"

#include <algorithm>
#include <cstring>

namespace fluvial::models {
namespace {

std::string ItemName(const VisionInput& input, size_t index) {
  return (input.kind == VisionInput::Kind::kVideo ? "video " : "image ") + std::to_string(index + 1);
}

}  // namespace

Status CheckVisionInput(const VisionRules& rules, const VisionInput& input, size_t index) {
  const auto& g = input.grid;
  const std::string name = ItemName(input, index);
  const std::string grid = std::to_string(g[0]) + " x " + std::to_string(g[1]) + " x " + std::to_string(g[2]);
  constexpr int64_t kMost = 1 << 20;
  if (std::any_of(g.begin(), g.end(), [](int64_t n) { return n < 1 || n > kMost; }) || g[1] % rules.merge != 0 ||
      g[2] % rules.merge != 0 || (input.kind == VisionInput::Kind::kImage && g[0] != 1)) {
    return Status::InvalidArgument(name + " has a grid of " + grid +
                                   " patches: rows and columns must be multiples of " + std::to_string(rules.merge) +
                                   ", and an image has one frame group");
  }
  const int64_t values = input.pixels == nullptr ? 0 : static_cast<int64_t>(input.pixels->size());
  if (input.patches() > (int64_t{1} << 40) / rules.patch_values || values != input.patches() * rules.patch_values) {
    return Status::InvalidArgument(name + " has " + std::to_string(values) + " pixel values, but its grid of " + grid +
                                   " patches needs " + std::to_string(rules.patch_values) + " each");
  }
  return Status::Ok();
}

Result<VisionPlan> PlanVision(const VisionRules& rules, std::span<const int32_t> ids,
                              std::span<const VisionInput> items) {
  VisionPlan plan;
  const int64_t n = static_cast<int64_t>(ids.size()), m = rules.merge;
  for (size_t i = 0; i < items.size(); ++i) FLUVIAL_RETURN_IF_ERROR(CheckVisionInput(rules, items[i], i));
  plan.positions.resize(static_cast<size_t>(3 * n));
  int64_t *const time = plan.positions.data(), *const height = time + n, *const width = height + n;

  int64_t position = 0, largest = -1;
  size_t item = 0;
  int64_t group = 0;  // frame groups of `item` that are placed
  for (int64_t i = 0; i < n;) {
    const bool image = ids[static_cast<size_t>(i)] == rules.image_token;
    const bool video = ids[static_cast<size_t>(i)] == rules.video_token;
    if (!image && !video) {
      time[i] = height[i] = width[i] = position++;
      largest = std::max(largest, time[i]);
      ++i;
      continue;
    }
    const auto wrong = [&](const std::string& what) {
      return Status::InvalidArgument("token " + std::to_string(i) + " of the prompt is a placeholder of " +
                                     (video ? "a video" : "an image") + ", but " + what +
                                     ": the prompt needs one run of placeholders per item, in their order");
    };
    if (item == items.size()) return wrong("there are only " + std::to_string(items.size()) + " images and videos");
    const VisionInput& input = items[item];
    if ((input.kind == VisionInput::Kind::kVideo) != video) return wrong(ItemName(input, item) + " is next");
    const int64_t groups = video && rules.split_frames ? 1 : input.grid[0];
    const int64_t rows = input.grid[1] / m, columns = input.grid[2] / m;
    const int64_t count = groups * rows * columns;
    const int32_t id = ids[static_cast<size_t>(i)];
    int64_t there = 0;
    while (there < count && i + there < n && ids[static_cast<size_t>(i + there)] == id) ++there;
    if (there < count) {
      return wrong(ItemName(input, item) + " needs " + std::to_string(count) + " in a row and has " +
                   std::to_string(there));
    }
    const float interval =
        video && !rules.split_frames ? static_cast<float>(rules.tokens_per_second * input.seconds_per_group) : 1.0f;
    plan.runs.push_back({i, count, item, group * rows * columns});
    for (int64_t a = 0; a < groups; ++a) {
      for (int64_t b = 0; b < rows; ++b) {
        for (int64_t c = 0; c < columns; ++c, ++i) {
          time[i] = position + static_cast<int64_t>(static_cast<float>(a) * interval);
          height[i] = position + b;
          width[i] = position + c;
          largest = std::max({largest, time[i], height[i], width[i]});
        }
      }
    }
    position += std::max(rows, columns);
    group += groups;
    if (group == input.grid[0]) {
      ++item;
      group = 0;
    }
  }
  if (item < items.size() || group > 0) {
    return Status::InvalidArgument("the prompt has placeholders for " + std::to_string(item) +
                                   " images and videos, but " + std::to_string(items.size()) +
                                   " were given: write one run of placeholders per item");
  }
  plan.delta = largest + 1 - n;
  return plan;
}

std::string CacheKey(const VisionInput& input, const VisionPlan::Run& run) {
  std::string key(sizeof(input.hash) + sizeof(run.first), '\0');
  std::memcpy(key.data(), input.hash.data(), sizeof(input.hash));
  std::memcpy(key.data() + sizeof(input.hash), &run.first, sizeof(run.first));
  return key;
}

}  // namespace fluvial::models
