// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .safetensors file: either refused, or every tensor lies inside the file and touches its neighbours.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries = fluvial::weights::ParseSafetensorsHeader({data, size}, "fuzz");
  if (!entries.ok()) {
    FLUVIAL_CHECK(!entries.status().message().empty());
    return 0;
  }
  uint64_t at = entries->empty() ? size : entries->front().begin;
  for (const auto& e : *entries) {
    FLUVIAL_CHECK(e.begin == at && e.end >= e.begin && e.end <= size);
    uint64_t bytes = fluvial::SizeOf(e.dtype);
    for (const int64_t d : e.shape) bytes *= static_cast<uint64_t>(d);
    FLUVIAL_CHECK(bytes == e.end - e.begin);
    at = e.end;
  }
  FLUVIAL_CHECK(at == size);
  return 0;
}
