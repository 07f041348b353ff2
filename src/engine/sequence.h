// SPDX-License-Identifier: Apache-2.0
// Sequence: one request on its way through the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "engine/planner.h"
#include "fluvial/engine.h"
#include "models/vision_plan.h"
#include "ops/sampling/sampling.h"

namespace fluvial::engine {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

struct Sequence : Task {
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

  models::VisionPlan vision;  ///< empty without images
  /// Per item of request.vision: encoded when a step needs it, given up after its last token.
  std::vector<Buffer> features;

  Completion completion;
  bool finished = false;
  bool started = false;
  Clock::time_point submitted;

  int64_t generated() const { return static_cast<int64_t>(completion.tokens.size()); }
};

}  // namespace fluvial::engine
