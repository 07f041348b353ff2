// SPDX-License-Identifier: Apache-2.0
// Internal to this room: how the CPU bodies cut a call into blocks of queries, one task each, longest sequences first.
// The cut only decides who computes what: the arithmetic of a row depends on its own sequence alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {

/// Consecutive queries of one sequence and head, and all keys and values of that sequence and head.
struct Block {
  const void* q = nullptr;  ///< first row; rows are *_token elements apart
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;  ///< null: not wanted
  int64_t q_token = 0, k_token = 0, v_token = 0, out_token = 0, lse_token = 0;
  int64_t queries = 0, keys = 0;
  int64_t d = 0;
  float scale = 0;
  DType io = DType::kF32;
  /// The worker's next block is the same rows of the next head, d elements on: worth fetching ahead.
  bool next_head = false;
};

/// Heads of a short sequence that one task takes one after another: rows lie far apart in a fused buffer, so the next
/// head's are fetched while this one is computed.
inline constexpr int64_t kShort = 128, kHeadsPerTask = 4;

/// Bytes that RunBlocks needs with `scratch` bytes per thread.
inline size_t BlocksWorkspace(const Problem& p, int threads, size_t scratch) {
  return Arena::Aligned((static_cast<size_t>(p.sequences) + 1) * sizeof(int64_t)) +
         static_cast<size_t>(std::max(threads, 1)) * Arena::Aligned(scratch);
}

/// Calls body(block, scratch of the worker) for every block of at most `max_rows` queries, in parallel. Blocks of a
/// sequence are about equal and, but for the last, a multiple of `step` long.
template <class Body>
Status RunBlocks(Stream& stream, const Problem& p, const Args& a, Workspace workspace, int64_t max_rows, int64_t step,
                 size_t scratch, Body&& body) {
  const SequencePlan& plan = *a.plan;
  const int64_t sequences = plan.sequences();
  Arena arena(workspace.data, workspace.bytes);
  FLUVIAL_ASSIGN_OR_RETURN(void* table, arena.Take((static_cast<size_t>(sequences) + 1) * sizeof(int64_t)));
  const size_t pitch = Arena::Aligned(scratch);
  FLUVIAL_ASSIGN_OR_RETURN(void* scratches, arena.Take(static_cast<size_t>(stream.pool().threads()) * pitch));
  auto length_of = [&](int64_t n) { return plan.offsets()[n + 1] - plan.offsets()[n]; };
  auto blocks_of = [&](int64_t length) { return (length + max_rows - 1) / max_rows; };
  auto heads_of = [&](int64_t length) { return length <= kShort ? std::min<int64_t>(kHeadsPerTask, p.heads) : 1; };
  // Tasks before each sequence, in the plan's order: its heads one after another, so that a head's keys stay in cache.
  int64_t* before = static_cast<int64_t*>(table);
  before[0] = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t length = length_of(plan.order()[i]), group = heads_of(length);
    before[i + 1] = before[i] + blocks_of(length) * ((p.heads + group - 1) / group);
  }
  const RowStrides qs = StridesOf(p, a.q), ks = StridesOf(p, a.k), vs = StridesOf(p, a.v), os = StridesOf(p, a.out);
  const RowStrides ls = p.lse ? LseStridesOf(p, a.lse) : RowStrides{};
  const auto size = static_cast<int64_t>(SizeOf(p.io));
  stream.pool().ParallelFor(before[sequences], [&](int64_t task, int worker) {
    const int64_t i = std::upper_bound(before, before + sequences + 1, task) - before - 1;
    const int32_t n = plan.order()[i];
    const int64_t length = length_of(n), blocks = blocks_of(length), first = plan.offsets()[n];
    const int64_t group = heads_of(length), first_head = (task - before[i]) / blocks * group;
    const int64_t index = (task - before[i]) % blocks, end_head = std::min<int64_t>(first_head + group, p.heads);
    const int64_t rows = ((length + blocks - 1) / blocks + step - 1) / step * step;
    const int64_t query = index * rows;
    Block b;
    b.queries = std::min(rows, length - query);
    if (b.queries <= 0) return;  // rounding up to the step can leave the last block empty
    b.keys = length;
    b.d = p.d;
    b.scale = p.scale;
    b.io = p.io;
    auto at = [&](const TensorView& t, int64_t element) { return static_cast<char*>(t.data) + element * size; };
    b.q_token = qs.token;
    b.k_token = ks.token;
    b.v_token = vs.token;
    b.out_token = os.token;
    b.lse_token = ls.token;
    for (int64_t head = first_head; head < end_head; ++head) {
      b.q = at(a.q, qs.At(n, first, query, head));
      b.k = at(a.k, ks.At(n, first, 0, head));
      b.v = at(a.v, vs.At(n, first, 0, head));
      b.out = at(a.out, os.At(n, first, query, head));
      if (p.lse) b.lse = static_cast<float*>(a.lse.data) + ls.At(n, first, query, head);
      b.next_head = head + 1 < end_head && qs.head == p.d && ks.head == p.d && vs.head == p.d;
      body(b, static_cast<char*>(scratches) + static_cast<size_t>(worker) * pitch);
    }
  });
  return Status::Ok();
}

}  // namespace fluvial::ops::vision_attention
