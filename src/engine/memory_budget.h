// SPDX-License-Identifier: Apache-2.0
// MemoryBudget: what a loaded model takes, part by part, against what there is - decided before anything is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::engine {

struct MemoryRequest {
  uint64_t weights = 0;
  uint64_t workspace = 0;     ///< scratch and logits of the largest step
  uint64_t page_bytes = 0;    ///< keys and values of one page, all layers
  uint64_t slot_bytes = 0;    ///< states of one sequence, all layers
  int32_t page_size = 0;      ///< tokens
  int64_t max_model_len = 0;  ///< longest sequence: the least that the pages must hold
  int32_t sequences = 0;
  int64_t kv_cache_tokens = 0;  ///< 0: room for `sequences` of max_model_len, or what the limit leaves
  bool prefix_caching = false;
  uint64_t prefix_cache_bytes = 0;  ///< 0: 4 snapshots per sequence, at least 16, at most a quarter of what is left
  uint64_t limit = 0;               ///< 0: unknown, nothing is refused
  std::string limit_source;         ///< "this machine's memory", "--memory-limit"
};

struct MemoryBudget {
  int32_t pages = 0;
  int32_t snapshots = 0;
  std::string text;  ///< one line with every part
};

/// kResource with all numbers and what to lower when the parts exceed the limit; kInvalidArgument when
/// prefix_cache_bytes cannot hold one snapshot or the pages exceed 2^31.
Result<MemoryBudget> PlanMemory(const MemoryRequest& request);

/// Bytes that this process may use on `device`: the device's memory, on a CPU also the control group's limit. 0:
/// unknown.
uint64_t DeviceMemoryLimit(const DeviceInfo& device);

/// "1.50 GiB", "3.2 MiB".
std::string FormatBytes(uint64_t bytes);

}  // namespace fluvial::engine
