// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear (`kimi_linear`): Kimi Delta Attention layers with a softplus gate and, in between, latent attention
// without position encoding; sigmoid-routed experts with shared ones, dense in the first layer.
//
// Source of every formula and name: huggingface/transformers models/kimi_linear (5.24), torch path; names of the
// released moonshotai checkpoints.
#pragma once

#include <memory>
#include <string>

#include "models/footprint.h"
#include "models/model.h"
#include "weights/model_config.h"

namespace fluvial::models {

/// Loads `directory`, whose config.json gave `config`.
Result<std::unique_ptr<Model>> LoadKimiLinear(const std::string& directory, weights::ModelConfig config,
                                              const LoadOptions& options, Stream& stream);

/// What config.json alone tells; parameters and caches of the text model.
Result<Footprint> KimiLinearFootprint(const weights::ModelConfig& config, const LoadOptions& options);

}  // namespace fluvial::models
