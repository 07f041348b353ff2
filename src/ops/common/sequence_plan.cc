// SPDX-License-Identifier: Apache-2.0
#include "ops/common/sequence_plan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/arena.h"

namespace fluvial::ops {
namespace {

// Parts of the device block, in order: header, offsets, read slots, write slots, order.
enum Part { kHeader, kOffsets, kRead, kWrite, kOrder, kParts };

// Far beyond any memory, far below the end of int64: strides times tokens stay representable.
constexpr int64_t kMaxTokens = int64_t{1} << 40;

uint64_t NextId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

Status CheckSlots(const std::vector<int32_t>& read, const std::vector<int32_t>& write) {
  std::unordered_map<int32_t, size_t> writer;
  for (size_t i = 0; i < write.size(); ++i) {
    if (write[i] < 0) continue;
    const auto [it, inserted] = writer.emplace(write[i], i);
    if (!inserted) {
      return Status::InvalidArgument("write slot " + std::to_string(write[i]) + " is given to sequences " +
                                     std::to_string(it->second) + " and " + std::to_string(i) +
                                     ": give every sequence its own");
    }
  }
  for (size_t i = 0; i < read.size(); ++i) {
    if (read[i] < 0) continue;
    const auto it = writer.find(read[i]);
    if (it != writer.end() && it->second != i) {
      return Status::InvalidArgument("slot " + std::to_string(read[i]) + " is read by sequence " + std::to_string(i) +
                                     " while sequence " + std::to_string(it->second) +
                                     " writes it: copy the state to another slot first");
    }
  }
  return Status::Ok();
}

}  // namespace

size_t SequencePlan::OffsetOf(int part) const {
  const size_t n = static_cast<size_t>(bounds_.max_sequences);
  const size_t sizes[kParts] = {sizeof(PlanHeader), (n + 1) * sizeof(int64_t), n * sizeof(int32_t), n * sizeof(int32_t),
                                n * sizeof(int32_t)};
  size_t at = 0;
  for (int i = 0; i < part; ++i) at += Arena::Aligned(sizes[i]);
  return at;
}

Result<SequencePlan> SequencePlan::Create(Stream& stream, PlanBounds bounds) {
  if (bounds.max_tokens < 0 || bounds.max_sequences < 0 || bounds.max_length < 0) {
    return Status::InvalidArgument("plan bounds must not be negative");
  }
  if (bounds.max_length == 0) bounds.max_length = bounds.max_tokens;
  SequencePlan plan;
  plan.id_ = NextId();
  plan.bounds_ = bounds;
  plan.offsets_ = {0};
  const size_t bytes = plan.OffsetOf(kParts);
  plan.staging_.resize(bytes);
  if (stream.device().kind == DeviceKind::kCuda) {
    FLUVIAL_ASSIGN_OR_RETURN(plan.device_, Buffer::Allocate(DeviceKind::kCuda, bytes, stream.device().index));
  }
  return plan;
}

Result<SequencePlan> SequencePlan::Make(Stream& stream, const SequenceSpec& spec) {
  PlanBounds bounds;
  bounds.max_sequences = static_cast<int32_t>(spec.lengths.size());
  for (int64_t n : spec.lengths) {
    // Refill refuses negative lengths; here they must only not disturb the sum, and the sum must not overflow.
    bounds.max_tokens = std::min(kMaxTokens, bounds.max_tokens + std::clamp<int64_t>(n, 0, kMaxTokens));
  }
  FLUVIAL_ASSIGN_OR_RETURN(SequencePlan plan, Create(stream, bounds));
  FLUVIAL_RETURN_IF_ERROR(plan.Refill(stream, spec));
  return plan;
}

Status SequencePlan::Refill(Stream& stream, const SequenceSpec& spec) {
  if (stream.capturing()) {
    return Status::InvalidArgument("a plan cannot be refilled while its stream is being captured: refill it before");
  }
  const int64_t n = static_cast<int64_t>(spec.lengths.size());
  if (n > bounds_.max_sequences) {
    return Status::Resource("plan: " + std::to_string(n) + " sequences, but its capacity is " +
                            std::to_string(bounds_.max_sequences));
  }
  for (const auto* slots : {&spec.read_slots, &spec.write_slots}) {
    if (!slots->empty() && static_cast<int64_t>(slots->size()) != n) {
      return Status::InvalidArgument("plan: " + std::to_string(slots->size()) + " slots for " + std::to_string(n) +
                                     " sequences: give one per sequence, or none");
    }
  }
  std::vector<int64_t> offsets(static_cast<size_t>(n) + 1, 0);
  int64_t longest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t length = spec.lengths[i];
    if (length < 0) {
      return Status::InvalidArgument("plan: sequence " + std::to_string(i) + " has negative length " +
                                     std::to_string(length));
    }
    if (length > kMaxTokens - offsets[i]) {
      return Status::InvalidArgument("plan: the lengths sum up to more than " + std::to_string(kMaxTokens) + " tokens");
    }
    offsets[i + 1] = offsets[i] + length;
    longest = std::max(longest, length);
  }
  if (offsets[n] > bounds_.max_tokens || longest > bounds_.max_length) {
    return Status::Resource("plan: " + std::to_string(offsets[n]) + " tokens, longest " + std::to_string(longest) +
                            ", but its capacity is " + std::to_string(bounds_.max_tokens) + " tokens, longest " +
                            std::to_string(bounds_.max_length));
  }
  std::vector<int32_t> read = spec.read_slots, write = spec.write_slots;
  for (auto* slots : {&read, &write}) {
    if (!slots->empty()) continue;
    slots->resize(n);
    std::iota(slots->begin(), slots->end(), 0);
  }
  FLUVIAL_RETURN_IF_ERROR(CheckSlots(read, write));

  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return spec.lengths[a] > spec.lengths[b]; });

  PlanHeader header;
  header.tokens = offsets[n];
  header.max_length = longest;
  header.sequences = static_cast<int32_t>(n);
  header.generation = header_.generation + 1;

  std::vector<char> staging(staging_.size());
  auto put = [&](int part, const void* data, size_t bytes) {
    if (bytes != 0) std::memcpy(staging.data() + OffsetOf(part), data, bytes);
  };
  put(kHeader, &header, sizeof(header));
  put(kOffsets, offsets.data(), offsets.size() * sizeof(int64_t));
  put(kRead, read.data(), read.size() * sizeof(int32_t));
  put(kWrite, write.data(), write.size() * sizeof(int32_t));
  put(kOrder, order.data(), order.size() * sizeof(int32_t));
  if (device_.data() != nullptr) {
    // One upload, staged from pageable memory: CUDA has read it when the call returns.
    FLUVIAL_RETURN_IF_ERROR(
        Copy(stream, device_.data(), DeviceKind::kCuda, staging.data(), DeviceKind::kCpu, staging.size()));
    staging_ = std::move(staging);
  } else {
    std::memcpy(staging_.data(), staging.data(), staging.size());  // keeps the addresses
  }
  header_ = header;
  offsets_ = std::move(offsets);
  read_slots_ = std::move(read);
  write_slots_ = std::move(write);
  order_ = std::move(order);
  max_slot_ = -1;
  for (int32_t s : read_slots_) max_slot_ = std::max(max_slot_, s);
  for (int32_t s : write_slots_) max_slot_ = std::max(max_slot_, s);
  return Status::Ok();
}

namespace {
template <class T>
const T* At(const Buffer& device, const std::vector<char>& host, size_t offset) {
  const char* base = device.data() != nullptr ? static_cast<const char*>(device.data()) : host.data();
  return reinterpret_cast<const T*>(base + offset);
}
}  // namespace

const PlanHeader* SequencePlan::device_header() const { return At<PlanHeader>(device_, staging_, OffsetOf(kHeader)); }
const int64_t* SequencePlan::device_offsets() const { return At<int64_t>(device_, staging_, OffsetOf(kOffsets)); }
const int32_t* SequencePlan::device_read_slots() const { return At<int32_t>(device_, staging_, OffsetOf(kRead)); }
const int32_t* SequencePlan::device_write_slots() const { return At<int32_t>(device_, staging_, OffsetOf(kWrite)); }
const int32_t* SequencePlan::device_order() const { return At<int32_t>(device_, staging_, OffsetOf(kOrder)); }

}  // namespace fluvial::ops
