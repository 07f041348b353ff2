// SPDX-License-Identifier: Apache-2.0
// KvPlan: what paged attention needs to know of a step - query lengths, context lengths and page tables. Built once per
// step on the host, uploaded once, shared by all layers whose caches use the same tables (design: plan, generation).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops::paged_attention {

/// One step's sequences. Sequence n has `lengths[n]` new tokens after `contexts[n]` cached ones; token position p lives
/// in page pages[n][p / page_size] at row p % page_size. Only the first ceil((context + length) / page_size) entries
/// matter; later ones are kept out of the plan. Empty sequences are legal (whatever their context).
struct KvSpec {
  std::vector<int64_t> lengths;
  std::vector<int64_t> contexts;
  std::vector<std::vector<int32_t>> pages;
};

/// Capacity of a plan's device buffers.
struct KvBounds {
  int32_t page_size = 16;
  int64_t max_tokens = 0;  ///< new tokens of all sequences
  int32_t max_sequences = 0;
  int64_t max_kv_length = 0;  ///< context + new tokens of one sequence
};

/// Device-side header: kernels read counts from here so that a captured graph may replay with fewer sequences.
struct KvHeader {
  int64_t tokens = 0;
  int64_t max_length = 0;
  int64_t max_kv_length = 0;
  int32_t sequences = 0;
  int32_t page_size = 0;
  int32_t table_pitch = 0;  ///< entries per row of the page table
  int32_t reserved = 0;
  uint64_t generation = 0;
};

class KvPlan {
 public:
  static constexpr int32_t kMinPageSize = 1;
  static constexpr int32_t kMaxPageSize = 1024;

  static Result<KvPlan> Create(Stream& stream, KvBounds bounds);

  /// A plan with just enough room for `spec`, filled.
  static Result<KvPlan> Make(Stream& stream, int32_t page_size, const KvSpec& spec);

  /// New contents; generation grows by one. Errors (negative lengths, beyond the bounds, too few or negative pages, a
  /// page that two sequences would write, a page written by one sequence and read by another, stream being captured)
  /// leave the plan as it was. Pages that are only read may be shared by any number of sequences.
  Status Refill(Stream& stream, const KvSpec& spec);

  uint64_t id() const { return id_; }
  uint64_t generation() const { return header_.generation; }
  const KvBounds& bounds() const { return bounds_; }
  int32_t page_size() const { return bounds_.page_size; }
  int64_t tokens() const { return header_.tokens; }
  int32_t sequences() const { return header_.sequences; }
  int64_t max_length() const { return header_.max_length; }
  int64_t max_kv_length() const { return header_.max_kv_length; }
  /// Largest page mentioned, -1 when none.
  int32_t max_page() const { return max_page_; }

  // Host side.
  std::span<const int64_t> offsets() const { return offsets_; }    ///< [N+1] first query row of each sequence
  std::span<const int64_t> contexts() const { return contexts_; }  ///< [N] tokens cached before this step
  /// Pages of sequence n, ceil((context + length) / page_size) of them.
  std::span<const int32_t> pages(int32_t n) const;

  // Device side (CPU plans: the same host memory), capacity-sized with stable addresses: header, int64 offsets [N+1],
  // int64 contexts [N], int32 page table [N, table_pitch] (unused entries -1).
  const KvHeader* device_header() const;
  const int64_t* device_offsets() const;
  const int64_t* device_contexts() const;
  const int32_t* device_page_table() const;

 private:
  KvPlan() = default;
  size_t OffsetOf(int part) const;

  uint64_t id_ = 0;
  KvBounds bounds_;
  KvHeader header_;
  int32_t max_page_ = -1;
  std::vector<int64_t> offsets_, contexts_;
  std::vector<int32_t> page_counts_;
  Buffer device_;
  std::vector<char> staging_;
};

}  // namespace fluvial::ops::paged_attention
