// SPDX-License-Identifier: Apache-2.0
#include "models/vision_layout.h"

#include <algorithm>
#include <cmath>

namespace fluvial::models {
namespace {

/// Cells of one picture window by window: rows of windows, windows, rows of cells, cells.
void AddWindows(int64_t groups, int64_t rows, int64_t columns, int64_t side, int64_t unit, VisionLayout& out) {
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t base = static_cast<int64_t>(out.cells.size());  // earlier pictures and groups come first
    for (int64_t wr = 0; wr < rows; wr += side) {
      for (int64_t wc = 0; wc < columns; wc += side) {
        const int64_t last_row = std::min(rows, wr + side), last_column = std::min(columns, wc + side);
        for (int64_t r = wr; r < last_row; ++r) {
          for (int64_t c = wc; c < last_column; ++c) {
            out.cells.push_back(static_cast<int32_t>(base + r * columns + c));
          }
        }
        out.windows.push_back((last_row - wr) * (last_column - wc) * unit);
      }
    }
  }
}

}  // namespace

VisionLayout MakeVisionLayout(const weights::VisionConfig& config, std::span<const VisionInput> items) {
  VisionLayout out;
  const int64_t m = config.merge, unit = m * m;
  for (const VisionInput& item : items) out.patches += item.patches();
  std::vector<int64_t> rows, columns;  // in the input's order
  rows.reserve(static_cast<size_t>(out.patches));
  columns.reserve(static_cast<size_t>(out.patches));
  for (const VisionInput& item : items) {
    const auto [groups, h, w] = item.grid;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t cell = 0; cell < h * w / unit; ++cell) {
        for (int64_t i = 0; i < unit; ++i) {
          rows.push_back(cell / (w / m) * m + i / m);
          columns.push_back(cell % (w / m) * m + i % m);
        }
      }
      out.frames.push_back(h * w);
    }
    if (config.windowed) AddWindows(groups, h / m, w / m, config.window / m / config.patch, unit, out);
  }
  out.places.resize(static_cast<size_t>(2 * out.patches));
  for (int64_t i = 0; i < out.patches; ++i) {
    const int64_t from = config.windowed ? out.cells[static_cast<size_t>(i / unit)] * unit + i % unit : i;
    out.places[static_cast<size_t>(i)] = rows[static_cast<size_t>(from)];
    out.places[static_cast<size_t>(out.patches + i)] = columns[static_cast<size_t>(from)];
  }
  return out;
}

TablePlace PlaceOnTable(int64_t index, int64_t size, int64_t side) {
  const float at =
      static_cast<float>(index) * static_cast<float>(side - 1) / static_cast<float>(std::max<int64_t>(size - 1, 1));
  const float floor = std::floor(at);
  TablePlace out;
  out.low = std::clamp<int64_t>(static_cast<int64_t>(floor), 0, side - 1);
  out.high = std::clamp<int64_t>(static_cast<int64_t>(floor) + 1, 0, side - 1);
  out.low_weight = std::max(0.0f, 1 - std::fabs(at - floor));
  out.high_weight = std::max(0.0f, 1 - std::fabs(at - floor - 1));
  return out;
}

}  // namespace fluvial::models
