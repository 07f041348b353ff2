// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_attention/kv_plan.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/arena.h"

namespace fluvial::ops::paged_attention {
namespace {

enum Part { kHeader, kOffsets, kContexts, kTable, kParts };

uint64_t NextId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status Bad(const std::string& what) { return Status::InvalidArgument("kv plan: " + what); }

/// Pages that one sequence writes must not appear in any other sequence's table.
Status CheckWrittenPages(const KvSpec& spec, int64_t page_size) {
  std::unordered_map<int32_t, size_t> writer;
  const size_t count = spec.lengths.size();
  for (size_t n = 0; n < count; ++n) {
    if (spec.lengths[n] == 0) continue;
    const int64_t last = (spec.contexts[n] + spec.lengths[n] - 1) / page_size;
    for (int64_t i = spec.contexts[n] / page_size; i <= last; ++i) {
      const auto [it, inserted] = writer.emplace(spec.pages[n][i], n);
      if (!inserted) {
        return Bad("page " + std::to_string(spec.pages[n][i]) + " is written by sequences " +
                   std::to_string(it->second) + " and " + std::to_string(n) + ": give every sequence its own");
      }
    }
  }
  for (size_t n = 0; n < count; ++n) {
    if (spec.lengths[n] == 0) continue;
    for (int64_t i = 0; i < spec.contexts[n] / page_size; ++i) {
      const auto it = writer.find(spec.pages[n][i]);
      if (it != writer.end()) {
        return Bad("page " + std::to_string(spec.pages[n][i]) + " is read by sequence " + std::to_string(n) +
                   " while sequence " + std::to_string(it->second) + " writes it: copy the page first");
      }
    }
  }
  return Status::Ok();
}

}  // namespace

size_t KvPlan::OffsetOf(int part) const {
  const size_t n = static_cast<size_t>(bounds_.max_sequences);
  const size_t pitch = static_cast<size_t>(CeilDiv(bounds_.max_kv_length, bounds_.page_size));
  const size_t sizes[kParts] = {sizeof(KvHeader), (n + 1) * sizeof(int64_t), n * sizeof(int64_t),
                                n * pitch * sizeof(int32_t)};
  size_t at = 0;
  for (int i = 0; i < part; ++i) at += Arena::Aligned(sizes[i]);
  return at;
}

Result<KvPlan> KvPlan::Create(Stream& stream, KvBounds bounds) {
  if (bounds.page_size < kMinPageSize || bounds.page_size > kMaxPageSize) {
    return Bad("page size is " + std::to_string(bounds.page_size) + ", it must be " + std::to_string(kMinPageSize) +
               ".." + std::to_string(kMaxPageSize));
  }
  if (bounds.max_tokens < 0 || bounds.max_sequences < 0 || bounds.max_kv_length < 0) {
    return Bad("bounds must not be negative");
  }
  if (CeilDiv(bounds.max_kv_length, bounds.page_size) > INT32_MAX) {
    return Bad("max_kv_length " + std::to_string(bounds.max_kv_length) + " needs more than 2^31 pages");
  }
  KvPlan plan;
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

Result<KvPlan> KvPlan::Make(Stream& stream, int32_t page_size, const KvSpec& spec) {
  KvBounds bounds;
  bounds.page_size = page_size;
  bounds.max_sequences = static_cast<int32_t>(spec.lengths.size());
  for (size_t n = 0; n < spec.lengths.size(); ++n) {
    bounds.max_tokens += std::max<int64_t>(spec.lengths[n], 0);
    const int64_t context = n < spec.contexts.size() ? spec.contexts[n] : 0;
    bounds.max_kv_length = std::max(bounds.max_kv_length, context + spec.lengths[n]);
  }
  FLUVIAL_ASSIGN_OR_RETURN(KvPlan plan, Create(stream, bounds));
  FLUVIAL_RETURN_IF_ERROR(plan.Refill(stream, spec));
  return plan;
}

Status KvPlan::Refill(Stream& stream, const KvSpec& spec) {
  if (stream.capturing()) {
    return Bad("it cannot be refilled while its stream is being captured: refill it before");
  }
  const int64_t n = static_cast<int64_t>(spec.lengths.size());
  if (static_cast<int64_t>(spec.contexts.size()) != n || static_cast<int64_t>(spec.pages.size()) != n) {
    return Bad(std::to_string(n) + " lengths, " + std::to_string(spec.contexts.size()) + " contexts and " +
               std::to_string(spec.pages.size()) + " page tables: give one of each per sequence");
  }
  if (n > bounds_.max_sequences) {
    return Status::Resource("kv plan: " + std::to_string(n) + " sequences, but its capacity is " +
                            std::to_string(bounds_.max_sequences));
  }
  const int64_t page_size = bounds_.page_size;
  const int64_t pitch = CeilDiv(bounds_.max_kv_length, page_size);
  KvHeader header;
  std::vector<int64_t> offsets(static_cast<size_t>(n) + 1, 0);
  std::vector<int32_t> counts(static_cast<size_t>(n), 0);
  std::vector<int32_t> table(static_cast<size_t>(n * pitch), -1);
  int32_t max_page = -1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t length = spec.lengths[i], context = spec.contexts[i];
    const std::string name = "sequence " + std::to_string(i);
    if (length < 0 || context < 0) {
      return Bad(name + " has length " + std::to_string(length) + " and context " + std::to_string(context) +
                 ": neither may be negative");
    }
    if (length > bounds_.max_tokens || context > bounds_.max_kv_length || length + context > bounds_.max_kv_length) {
      return Status::Resource("kv plan: " + name + " has " + std::to_string(context) + " + " + std::to_string(length) +
                              " tokens, but the capacity is " + std::to_string(bounds_.max_kv_length) +
                              " per sequence and " + std::to_string(bounds_.max_tokens) + " new ones");
    }
    offsets[i + 1] = offsets[i] + length;
    header.max_length = std::max(header.max_length, length);
    if (length == 0) continue;  // an empty sequence reads and writes nothing
    header.max_kv_length = std::max(header.max_kv_length, length + context);
    counts[i] = static_cast<int32_t>(CeilDiv(context + length, page_size));
    if (static_cast<int64_t>(spec.pages[i].size()) < counts[i]) {
      return Bad(name + " has " + std::to_string(spec.pages[i].size()) + " pages, but " +
                 std::to_string(context + length) + " tokens need " + std::to_string(counts[i]) + " pages of " +
                 std::to_string(page_size));
    }
    for (int32_t j = 0; j < counts[i]; ++j) {
      const int32_t page = spec.pages[i][j];
      if (page < 0) return Bad(name + " has page " + std::to_string(page) + " at index " + std::to_string(j));
      max_page = std::max(max_page, page);
      table[i * pitch + j] = page;
    }
  }
  if (offsets[n] > bounds_.max_tokens) {
    return Status::Resource("kv plan: " + std::to_string(offsets[n]) + " new tokens, but the capacity is " +
                            std::to_string(bounds_.max_tokens));
  }
  FLUVIAL_RETURN_IF_ERROR(CheckWrittenPages(spec, page_size));

  header.tokens = offsets[n];
  header.sequences = static_cast<int32_t>(n);
  header.page_size = bounds_.page_size;
  header.table_pitch = static_cast<int32_t>(pitch);
  header.generation = header_.generation + 1;
  std::vector<char> staging(staging_.size());
  auto put = [&](int part, const void* data, size_t bytes) {
    if (bytes != 0) std::memcpy(staging.data() + OffsetOf(part), data, bytes);
  };
  put(kHeader, &header, sizeof(header));
  put(kOffsets, offsets.data(), offsets.size() * sizeof(int64_t));
  put(kContexts, spec.contexts.data(), spec.contexts.size() * sizeof(int64_t));
  put(kTable, table.data(), table.size() * sizeof(int32_t));
  if (device_.data() != nullptr) {
    FLUVIAL_RETURN_IF_ERROR(
        Copy(stream, device_.data(), DeviceKind::kCuda, staging.data(), DeviceKind::kCpu, staging.size()));
  }
  std::memcpy(staging_.data(), staging.data(), staging.size());  // keeps the addresses
  header_ = header;
  offsets_ = std::move(offsets);
  contexts_ = spec.contexts;
  page_counts_ = std::move(counts);
  max_page_ = max_page;
  return Status::Ok();
}

std::span<const int32_t> KvPlan::pages(int32_t n) const {
  const auto* table = reinterpret_cast<const int32_t*>(staging_.data() + OffsetOf(kTable));
  return {table + static_cast<int64_t>(n) * header_.table_pitch, static_cast<size_t>(page_counts_[n])};
}

namespace {
template <class T>
const T* At(const Buffer& device, const std::vector<char>& host, size_t offset) {
  const char* base = device.data() != nullptr ? static_cast<const char*>(device.data()) : host.data();
  return reinterpret_cast<const T*>(base + offset);
}
}  // namespace

const KvHeader* KvPlan::device_header() const { return At<KvHeader>(device_, staging_, OffsetOf(kHeader)); }
const int64_t* KvPlan::device_offsets() const { return At<int64_t>(device_, staging_, OffsetOf(kOffsets)); }
const int64_t* KvPlan::device_contexts() const { return At<int64_t>(device_, staging_, OffsetOf(kContexts)); }
const int32_t* KvPlan::device_page_table() const { return At<int32_t>(device_, staging_, OffsetOf(kTable)); }

}  // namespace fluvial::ops::paged_attention
