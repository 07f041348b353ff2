// SPDX-License-Identifier: Apache-2.0
// Windows against transformers (tests/golden/vision/windows.txt, tools/golden/make_vision.py); plans of prompts.
#include "models/vision_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "models/vision_plan.h"

namespace fluvial::models {
namespace {

VisionInput Item(int64_t groups, int64_t rows, int64_t columns, bool video = false) {
  VisionInput item;
  item.kind = video ? VisionInput::Kind::kVideo : VisionInput::Kind::kImage;
  item.grid = {groups, rows, columns};
  item.pixels = std::make_shared<const std::vector<float>>(static_cast<size_t>(item.patches()));
  return item;
}

std::vector<int64_t> Numbers(std::ifstream& in, const std::string& name) {
  std::string line, first;
  std::getline(in, line);
  std::istringstream fields(line);
  fields >> first;
  EXPECT_EQ(first, name);
  std::vector<int64_t> out;
  for (int64_t n = 0; fields >> n;) out.push_back(n);
  return out;
}

TEST(VisionLayout, WindowsAreTransformers) {
  weights::VisionConfig config;
  config.windowed = true;
  config.patch = 14;
  std::ifstream in(std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/vision/windows.txt");
  ASSERT_TRUE(in.good());
  int seen = 0;
  while (in.peek() == 'g') {
    const auto grids = Numbers(in, "grids"), cells = Numbers(in, "cells"), lengths = Numbers(in, "lengths");
    std::vector<VisionInput> items;
    for (size_t i = 0; i < grids.size(); i += 3) items.push_back(Item(grids[i], grids[i + 1], grids[i + 2]));
    const VisionLayout layout = MakeVisionLayout(config, items);
    EXPECT_EQ(std::vector<int64_t>(layout.cells.begin(), layout.cells.end()), cells) << seen;
    EXPECT_EQ(layout.windows, lengths) << seen;
    ++seen;
  }
  EXPECT_EQ(seen, 8);
}

/// Windows of every shape up to 20 x 20 cells: a permutation, whose windows hold their own cells alone.
TEST(VisionLayout, WindowsOfAllShapes) {
  weights::VisionConfig config;
  config.windowed = true;
  config.patch = 14;
  for (int64_t rows = 1; rows <= 20; ++rows) {
    for (int64_t columns = 1; columns <= 20; ++columns) {
      const std::vector<VisionInput> items = {Item(1, 2 * rows, 2 * columns)};
      const VisionLayout layout = MakeVisionLayout(config, items);
      std::vector<int32_t> sorted = layout.cells;
      std::sort(sorted.begin(), sorted.end());
      for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int32_t>(i));
      size_t at = 0;
      for (const int64_t length : layout.windows) {
        ASSERT_GT(length, 0);
        const int64_t first = layout.cells[at];
        for (int64_t i = 0; i < length / 4; ++i, ++at) {
          ASSERT_EQ(layout.cells[at] / columns / 4, first / columns / 4) << rows << " x " << columns;
          ASSERT_EQ(layout.cells[at] % columns / 4, first % columns / 4) << rows << " x " << columns;
        }
      }
      ASSERT_EQ(at, layout.cells.size());
    }
  }
}

TEST(VisionLayout, FramesArePlacedInBlocks) {
  const std::vector<VisionInput> items = {Item(2, 2, 4, true), Item(1, 4, 2)};
  const VisionLayout layout = MakeVisionLayout({}, items);
  EXPECT_EQ(layout.frames, (std::vector<int64_t>{8, 8, 8}));
  const std::vector<int64_t> rows = {0, 0, 1, 1, 0, 0, 1, 1}, columns = {0, 1, 0, 1, 2, 3, 2, 3};
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(layout.places[i], rows[i % 8]) << i;
    EXPECT_EQ(layout.places[24 + i], columns[i % 8]) << i;
  }
  EXPECT_EQ(layout.places[16 + 5], 2);
  EXPECT_EQ(layout.places[24 + 16 + 5], 1);
}

TEST(VisionLayout, TableEndsFallOnFirstAndLastPatch) {
  for (const int64_t size : {2, 4, 6, 40, 64}) {
    EXPECT_EQ(PlaceOnTable(0, size, 48).low, 0);
    EXPECT_EQ(PlaceOnTable(0, size, 48).low_weight, 1);
    const TablePlace last = PlaceOnTable(size - 1, size, 48);
    EXPECT_EQ(last.low, 47);
    EXPECT_EQ(last.low_weight, 1);
    EXPECT_EQ(last.high, 47);
  }
  EXPECT_EQ(PlaceOnTable(0, 1, 48).low, 0);  // a picture of one row
  const TablePlace middle = PlaceOnTable(1, 3, 48);
  EXPECT_EQ(middle.low, 23);
  EXPECT_FLOAT_EQ(middle.high_weight, 0.5f);
}

VisionRules Rules() {
  VisionRules rules;
  rules.image_token = 1000;
  rules.video_token = 1001;
  rules.patch_values = 1;
  return rules;
}

TEST(VisionPlan, PositionsByHand) {
  // Two words, a picture of 2 x 3 tokens, one word, a video of two frame groups with a word between them.
  const std::vector<int32_t> ids = {7, 8, 1000, 1000, 1000, 1000, 1000, 1000, 9, 1001, 5, 1001, 6};
  const std::vector<VisionInput> items = {Item(1, 4, 6), Item(2, 2, 2, true)};
  const auto plan = PlanVision(Rules(), ids, items);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->positions, (std::vector<int64_t>{0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 9,  //
                                                   0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9,  //
                                                   0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(plan->delta, 10 - 13);
  ASSERT_EQ(plan->runs.size(), 3u);
  EXPECT_EQ(plan->runs[2].begin, 11);
  EXPECT_EQ(plan->runs[2].item, 1u);
  EXPECT_EQ(plan->runs[2].first, 1);
  EXPECT_NE(CacheKey(items[1], plan->runs[1]), CacheKey(items[1], plan->runs[2]));
}

TEST(VisionPlan, TimeOfWholeVideos) {
  VisionRules rules = Rules();
  rules.split_frames = false;
  rules.tokens_per_second = 2;
  std::vector<VisionInput> items = {Item(3, 2, 2, true)};
  items[0].seconds_per_group = 0.8;  // 1.6 tokens a group: 0, 1, 3
  const auto plan = PlanVision(rules, std::vector<int32_t>{4, 1001, 1001, 1001, 4}, items);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((std::vector<int64_t>{plan->positions.begin(), plan->positions.begin() + 5}),
            (std::vector<int64_t>{0, 1, 2, 4, 2}));
  EXPECT_EQ(plan->delta, 0);  // the largest position is the video's
}

TEST(VisionPlan, NeighboursWithoutTextBetween) {
  const std::vector<VisionInput> items = {Item(1, 2, 2), Item(1, 2, 4)};
  const auto plan = PlanVision(Rules(), std::vector<int32_t>{1000, 1000, 1000}, items);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->runs.size(), 2u);
}

TEST(VisionPlan, MisfitsAreErrors) {
  const std::vector<VisionInput> one = {Item(1, 4, 4)};
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{1, 2},
                                          {1000, 1000, 1000},
                                          {1000, 1000, 7, 1000, 1000},
                                          {1000, 1000, 1000, 1000, 1000},
                                          {1001, 1001, 1001, 1001}}) {
    const auto plan = PlanVision(Rules(), ids, one);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace fluvial::models
