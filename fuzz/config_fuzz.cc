// SPDX-License-Identifier: Apache-2.0
// Any bytes as config.json and generation_config.json: a value or a Status, never an exception, and what is accepted
// is consistent.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "weights/generation_config.h"
#include "weights/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = fluvial::weights::ParseModelConfig(text, "fuzz");
  if (config.ok()) {
    FLUVIAL_CHECK(static_cast<int64_t>(config->layer_types.size()) == config->layers);
    FLUVIAL_CHECK(config->heads % config->kv_heads == 0);
  }
  (void)fluvial::weights::ParseGenerationConfig(text, "fuzz").ok();
  return 0;
}
