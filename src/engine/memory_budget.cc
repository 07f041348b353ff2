// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_budget.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace fluvial::engine {
namespace {

/// Snapshots of a model without recurrent state cost nothing but numbers.
constexpr int32_t kFreeSnapshots = 4096;
constexpr int32_t kMostSnapshots = 65535;

std::string Count(int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string Describe(const MemoryRequest& r, uint64_t pages, uint64_t snapshots) {
  std::string out = "weights " + FormatBytes(r.weights) + " + KV cache " + FormatBytes(pages * r.page_bytes) + " (" +
                    Count(static_cast<int64_t>(pages) * r.page_size, "token") + ") + states " +
                    FormatBytes((static_cast<uint64_t>(r.sequences) + 1) * r.slot_bytes) + " (" +
                    Count(r.sequences, "request") + ")";
  if (r.prefix_caching) {
    out += " + snapshots " + FormatBytes(snapshots * r.slot_bytes) + " (" + std::to_string(snapshots) + ")";
  }
  return out + " + workspace " + FormatBytes(r.workspace);
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  char text[32];
  if (b >= 1024.0 * 1024 * 1024) {
    std::snprintf(text, sizeof(text), "%.2f GiB", b / (1024.0 * 1024 * 1024));
  } else if (b >= 1024.0 * 1024) {
    std::snprintf(text, sizeof(text), "%.1f MiB", b / (1024.0 * 1024));
  } else {
    std::snprintf(text, sizeof(text), "%.1f KiB", b / 1024.0);
  }
  return text;
}

Result<MemoryBudget> PlanMemory(const MemoryRequest& r) {
  const auto pages_for = [&](int64_t tokens) { return (tokens + r.page_size - 1) / r.page_size; };
  uint64_t snapshots = 0;
  if (r.prefix_caching) {
    if (r.slot_bytes == 0) {
      snapshots = kFreeSnapshots;
    } else if (r.prefix_cache_bytes > 0) {
      snapshots = std::min<uint64_t>(r.prefix_cache_bytes / r.slot_bytes, kMostSnapshots);
      if (snapshots == 0) {
        return Status::InvalidArgument("prefix_cache_bytes is " + FormatBytes(r.prefix_cache_bytes) +
                                       ", but one snapshot of this model's states takes " + FormatBytes(r.slot_bytes) +
                                       ": raise it");
      }
    } else {
      snapshots = static_cast<uint64_t>(std::clamp(4 * r.sequences, 16, kMostSnapshots));
    }
  }
  const uint64_t fixed = r.weights + r.workspace + (static_cast<uint64_t>(r.sequences) + 1) * r.slot_bytes;
  const uint64_t left = r.limit > fixed ? r.limit - fixed : 0;
  if (r.limit > 0 && r.prefix_cache_bytes == 0 && r.slot_bytes > 0 && snapshots > 0) {
    snapshots = std::clamp<uint64_t>(left / 4 / r.slot_bytes, 1, snapshots);
  }
  // Without a wish: room for everybody, and where that is too much, what the limit leaves, but one longest sequence.
  const int64_t least = pages_for(r.max_model_len);
  int64_t pages = pages_for(r.kv_cache_tokens);
  if (r.kv_cache_tokens == 0) {
    pages = least * r.sequences;
    if (r.limit > 0 && r.page_bytes > 0) {
      const uint64_t snapshot_bytes = snapshots * r.slot_bytes;
      const uint64_t room = left > snapshot_bytes ? (left - snapshot_bytes) / r.page_bytes : 0;
      pages = std::max(least, std::min(pages, static_cast<int64_t>(std::min<uint64_t>(room, INT32_MAX))));
    }
  }
  if (pages > INT32_MAX) {
    return Status::InvalidArgument("the KV cache would have more than 2^31 pages: lower kv_cache_tokens");
  }
  const uint64_t total = fixed + snapshots * r.slot_bytes + static_cast<uint64_t>(pages) * r.page_bytes;
  const std::string parts = Describe(r, static_cast<uint64_t>(pages), snapshots);
  if (r.limit > 0 && total > r.limit) {
    return Status::Resource("the model needs " + FormatBytes(total) + " (" + parts + "), but the limit is " +
                            FormatBytes(r.limit) + " (" + r.limit_source +
                            "): lower max_model_len, max_num_seqs, kv_cache_tokens or max_num_batched_tokens, or raise "
                            "memory_limit");
  }
  MemoryBudget budget;
  budget.pages = static_cast<int32_t>(pages);
  budget.snapshots = static_cast<int32_t>(snapshots);
  budget.text = "memory: " + parts + " = " + FormatBytes(total);
  if (r.limit > 0) budget.text += " of " + FormatBytes(r.limit) + " (" + r.limit_source + ")";
  return budget;
}

uint64_t DeviceMemoryLimit(const DeviceInfo& device) {
  uint64_t limit = device.memory_bytes;
  if (device.kind != DeviceKind::kCpu) return limit;
  // Version 2 says "max" where there is no limit; version 1 a number beyond any memory.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    uint64_t bytes = 0;
    if (file >> bytes && bytes > 0 && (limit == 0 || bytes < limit)) limit = bytes;
  }
  return limit;
}

}  // namespace fluvial::engine
