// SPDX-License-Identifier: Apache-2.0
// Sequence: one request on its way through the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "fluvial/engine.h"
#include "models/vision_plan.h"
#include "ops/sampling/sampling.h"

namespace fluvial::engine {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Sequence {
  uint64_t id = 0;
  Request request;
  TokenCallback on_token;
  DoneCallback on_done;

  ops::sampling::Params params;
  ops::sampling::TokenHistory history;  ///< kept only when a penalty needs it
  bool penalties = false;
  std::vector<int32_t> stops;  ///< ids that end the request: the model's (unless ignored) and its own
  int64_t max_tokens = 0;      ///< after the cut to max_model_len
  std::vector<uint32_t> mask;  ///< of the constraint, when there is one

  std::vector<int32_t> ids;  ///< prompt, then what was drawn
  int64_t done = 0;          ///< tokens that the caches hold
  int32_t slot = -1;         ///< state slot; -1 while waiting
  std::vector<int32_t> pages;

  models::VisionPlan vision;  ///< empty without images
  std::vector<Buffer>
      features;  ///< per item of request.vision: encoded when a step needs it, given up after its last row

  Completion completion;
  bool finished = false;
  Clock::time_point submitted, started;

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t generated() const { return static_cast<int64_t>(completion.tokens.size()); }
  int64_t pending() const { return static_cast<int64_t>(ids.size()) - done; }
  /// One token after a finished prompt: a decode row.
  bool decoding() const { return done >= prompt_tokens(); }
};

}  // namespace fluvial::engine
