// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the vector kernels of the cpu body, dispatched at run time to the best Highway target.
//
// Arithmetic of one row (query, head), the same whatever the row's company, so that batches, splits and threads do not
// change bits. Keys are cut at absolute positions into tiles of kTile and spans of kSpan:
//   score   s_j = scale * (fma chain over the head dimension in rising order)
//   tile    m' = max(m, max_j s_j); p_j = exp(s_j - m'); l = l * exp(m - m') + (lane sums of p); acc = acc * exp(m -
//   m') then
//           fma chain over the tile's keys in rising order
//   span    starts from m = -inf, l = 0, acc = 0; finished spans are merged into the total in rising order
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ops/common/attention_tiles.h"

namespace fluvial::ops::paged_attention::internal {

using attention::kTile;
using attention::PaddedDim;
using attention::RoundedToPanels;
inline constexpr int64_t kSpan = 2048;    // keys that one task takes when a row's keys are shared among threads
inline constexpr int64_t kMaxRows = 128;  // rows (queries x heads of one group) that share a key tile

/// Running softmax of up to kMaxRows rows: m, l [rows], acc [rows][padded].
struct Partial {
  float* m = nullptr;
  float* l = nullptr;
  float* acc = nullptr;
  static constexpr int64_t Floats(int64_t rows, int64_t padded) { return rows * (padded + 2); }
  static Partial At(float* at, int64_t rows, int64_t padded) {
    return {at + rows * padded, at + rows * padded + rows, at};
  }
};

/// Scratch of one worker.
struct Scratch {
  float* q = nullptr;   ///< [rows][d_qk]
  float* kt = nullptr;  ///< d_qk * kTile: keys, transposed
  float* v = nullptr;   ///< kTile * RoundedToPanels(padded): values in fp32
  float* s = nullptr;   ///< [rows][kTile]
  Partial span, total;
  static constexpr int64_t Floats(int64_t rows, int64_t d_qk, int64_t padded) {
    return rows * d_qk + d_qk * kTile + kTile * RoundedToPanels(padded) + rows * kTile +
           2 * Partial::Floats(rows, padded) + 64;
  }
  static Scratch At(float* at, int64_t rows, int64_t d_qk, int64_t padded) {
    Scratch s;
    s.kt = at;
    s.v = s.kt + d_qk * kTile;
    s.s = s.v + kTile * RoundedToPanels(padded);
    s.span = Partial::At(s.s + rows * kTile, rows, padded);
    s.total = Partial::At(s.s + rows * kTile + Partial::Floats(rows, padded), rows, padded);
    s.q = s.s + rows * kTile + 2 * Partial::Floats(rows, padded);
    return s;
  }
};

/// Strides of a page cache for one head, in elements.
struct PageView {
  const void* data = nullptr;  ///< of the kv head
  int64_t page_stride = 0;
  int64_t row_stride = 0;
};

/// `queries` consecutive queries of one sequence times `heads` consecutive query heads of one kv head; row r is query
/// r / heads, head r % heads.
struct Block {
  int64_t queries = 0, heads = 0;
  int64_t position = 0;  ///< of the first query: it sees keys 0..position
  int64_t d_qk = 0, d_v = 0;
  int64_t page_size = 0;
  const int32_t* pages = nullptr;
  PageView k, v;
  DType kv = DType::kF32;
  float scale = 0;
  DType io = DType::kF32;
  const void* q = nullptr;  ///< first row, with its token and head strides in elements
  int64_t q_token = 0, q_head = 0;
  void* out = nullptr;
  int64_t out_token = 0, out_head = 0;
  float* lse = nullptr;  ///< null: not wanted
  int64_t lse_token = 0, lse_head = 0;

  int64_t rows() const { return queries * heads; }
  int64_t keys() const { return position + queries; }
};

/// Fills scratch.q.
void LoadQueries(const Block& block, const Scratch& scratch);
/// Softmax state of span `span` alone, into `to`.
void AttendSpan(const Block& block, int64_t span, const Scratch& scratch, const Partial& to);
/// total = empty.
void Clear(int64_t rows, int64_t padded, const Partial& total);
/// total = total followed by `next`.
void Merge(int64_t rows, int64_t padded, const Partial& total, const Partial& next);
/// out = acc / l and lse = m + ln l.
void Finish(const Block& block, const Partial& total);

/// n elements of one dtype to another, rounding to nearest even.
void ConvertRow(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n);

}  // namespace fluvial::ops::paged_attention::internal
