// SPDX-License-Identifier: Apache-2.0
// What a model takes, from its config.json alone: parameters and caches. Counted by the same code that loads weights,
// so that the two cannot disagree.
#pragma once

#include <cstdint>

#include "models/model.h"
#include "weights/model_config.h"

namespace fluvial::models {

struct Footprint {
  int64_t parameters = 0;         ///< of the text model, embedding and head included (once when tied)
  int64_t active_parameters = 0;  ///< of these, without the experts that a token does not use
  int64_t mtp_parameters = 0;     ///< multi-token prediction, when config.json has it (Qwen3-Next: always)
  int64_t vision_parameters = 0;
  CacheSpec cache;  ///< for the types of `options`, config.json and the defaults, in this order

  int64_t all_parameters() const { return parameters + mtp_parameters + vision_parameters; }
};

/// Errors: kUnusableModel for an architecture whose footprint is not known.
Result<Footprint> FootprintOf(const weights::ModelConfig& config, const LoadOptions& options = {});

/// Parameters of a vision tower.
int64_t VisionParameters(const weights::VisionConfig& vision);

}  // namespace fluvial::models
