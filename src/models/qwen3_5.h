// SPDX-License-Identifier: Apache-2.0
// Qwen3.5 dense (`qwen3_5`): Gated DeltaNet layers and, every fourth, gated full attention; SwiGLU; zero-centred norms.
//
// Source of every formula and name: huggingface/transformers models/qwen3_5 (5.17 to 5.24), torch path.
#pragma once

#include <memory>
#include <string>

#include "models/footprint.h"
#include "models/model.h"
#include "weights/model_config.h"

namespace fluvial::models {

/// Loads `directory`, whose config.json gave `config`.
Result<std::unique_ptr<Model>> LoadQwen3_5(const std::string& directory, weights::ModelConfig config,
                                           const LoadOptions& options, Stream& stream);

/// What config.json alone tells; parameters and caches of the text model, the head for multi-token prediction.
Result<Footprint> Qwen3_5Footprint(const weights::ModelConfig& config, const LoadOptions& options);

}  // namespace fluvial::models
