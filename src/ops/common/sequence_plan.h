// SPDX-License-Identifier: Apache-2.0
// SequencePlan: what depends on the lengths of a step's sequences but not on data - offsets, slots,
// longest-first order. Built once per step on the host, uploaded once, shared by all layers (design 2.3).
//
// Caches derived from a plan key on (plan id, generation): the generation changes with every Refill, so
// refilled offsets can never meet stale metadata, whatever their address.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops {

/// One step's sequences. Slots index the state pool; negative = read zeros / do not write. Empty slot vectors
/// mean slot i for sequence i (reads and writes).
struct SequenceSpec {
  std::vector<int64_t> lengths;
  std::vector<int32_t> read_slots;
  std::vector<int32_t> write_slots;
};

/// Capacity of a plan's device buffers. Refills beyond it are refused; CUDA graph capture needs it.
struct PlanBounds {
  int64_t max_tokens = 0;
  int32_t max_sequences = 0;
  int64_t max_length = 0;  ///< longest single sequence; 0 = max_tokens
};

/// Device-side header of a plan: kernels read counts from here, so that replays of a captured graph may carry
/// fewer sequences than the capacity they were captured with.
struct PlanHeader {
  int64_t tokens = 0;
  int64_t max_length = 0;
  int32_t sequences = 0;
  int32_t reserved = 0;
  uint64_t generation = 0;
};

class SequencePlan {
 public:
  /// Buffers on the stream's device for up to `bounds`. Nothing is uploaded yet.
  static Result<SequencePlan> Create(Stream& stream, PlanBounds bounds);

  /// A plan with just enough room for `spec`, filled.
  static Result<SequencePlan> Make(Stream& stream, const SequenceSpec& spec);

  /// New contents; generation grows by one. Errors (lengths negative, beyond the bounds, slot counts wrong,
  /// duplicate write slots, a slot written by one sequence and read by another, stream being captured) leave
  /// the plan as it was.
  Status Refill(Stream& stream, const SequenceSpec& spec);

  uint64_t id() const { return id_; }
  uint64_t generation() const { return header_.generation; }
  const PlanBounds& bounds() const { return bounds_; }
  int64_t tokens() const { return header_.tokens; }
  int32_t sequences() const { return header_.sequences; }
  int64_t max_length() const { return header_.max_length; }
  /// Largest slot mentioned, -1 when none.
  int32_t max_slot() const { return max_slot_; }

  // Host side.
  std::span<const int64_t> offsets() const { return offsets_; }  ///< [N+1]
  std::span<const int32_t> read_slots() const { return read_slots_; }
  std::span<const int32_t> write_slots() const { return write_slots_; }
  std::span<const int32_t> order() const { return order_; }  ///< longest first, stable

  // Device side (CPU plans: the same host memory). Capacity-sized buffers with stable addresses.
  const PlanHeader* device_header() const;
  const int64_t* device_offsets() const;
  const int32_t* device_read_slots() const;
  const int32_t* device_write_slots() const;
  const int32_t* device_order() const;

 private:
  SequencePlan() = default;
  size_t OffsetOf(int part) const;

  uint64_t id_ = 0;
  PlanBounds bounds_;
  PlanHeader header_;
  int32_t max_slot_ = -1;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> read_slots_, write_slots_, order_;
  Buffer device_;
  std::vector<char> staging_;
};

}  // namespace fluvial::ops
