// SPDX-License-Identifier: Apache-2.0
// Shorthands for tests of the engine over the golden checkpoints.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fluvial/engine.h"
#include "models/model_testkit.h"

namespace fluvial::engine::testing {

inline EngineOptions Options(const std::string& checkpoint = "qwen3_5/text") {
  EngineOptions o;
  o.model = models::testing::GoldenDirectory(checkpoint);
  o.device = "cpu";
  o.threads = 2;
  o.max_model_len = 512;
  return o;
}

inline std::unique_ptr<Engine> Loaded(const EngineOptions& options = Options()) {
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

inline Request Greedy(const std::vector<int32_t>& prompt, int64_t max_tokens = 64) {
  Request r;
  r.prompt = prompt;
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.ignore_eos = true;
  return r;
}

inline std::vector<int32_t> Ids(const Completion& c) {
  std::vector<int32_t> out;
  for (const Token& t : c.tokens) out.push_back(t.id);
  return out;
}

/// The fp32 golden checkpoint with NaN for the embedding of one id (its hidden size is 64).
inline models::testing::AlteredCheckpoint::Change NotANumber(int32_t id) {
  return [id](std::vector<models::testing::RawTensor>& tensors) {
    constexpr size_t kRow = 64 * sizeof(float);
    for (auto& t : tensors) {
      if (t.name != "model.embed_tokens.weight") continue;
      t.bytes.replace(static_cast<size_t>(id) * kRow, kRow, std::string(kRow, '\xff'));
    }
  };
}

}  // namespace fluvial::engine::testing
