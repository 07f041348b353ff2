// SPDX-License-Identifier: Apache-2.0
// GLM-5.3-Flash (`glm5_next`), text part: Kimi Delta Attention layers with a bounded gate and, every fourth, sparse
// latent attention whose indexer picks pools of tokens; residual streams (mHC) instead of a residual; sigmoid-routed
// experts with a clamped SwiGLU.
//
// Source of every formula and name: huggingface/transformers models/glm5_next (5.24), torch path; names of the released
// zai-org checkpoints. The vision tower's tensors are left alone.
#pragma once

#include <memory>
#include <string>

#include "models/footprint.h"
#include "models/model.h"
#include "weights/model_config.h"

namespace fluvial::models {

/// Loads `directory`, whose config.json gave `config`.
Result<std::unique_ptr<Model>> LoadGlm5Next(const std::string& directory, weights::ModelConfig config,
                                            const LoadOptions& options, Stream& stream);

/// What config.json alone tells; parameters and caches of the text model, multi-token prediction.
Result<Footprint> Glm5NextFootprint(const weights::ModelConfig& config, const LoadOptions& options);

}  // namespace fluvial::models
