// SPDX-License-Identifier: Apache-2.0
// Internal to this room: config.json of the Kimi Delta Attention models, Kimi-Linear and GLM-5.3.
#pragma once

#include <string>

#include "weights/json_reader.h"
#include "weights/model_config.h"

namespace fluvial::weights {

/// Reads what these families have of their own from the text fields: layers, latent attention, experts, indexer,
/// residual streams. `c` holds the common fields already. Both spellings are read: the released one
/// (`linear_attn_config` with 1-based lists, `num_experts_per_token`, ...) and that of transformers (`layer_types`,
/// `linear_num_heads`, ...).
Status ReadKdaModel(const JsonObject& text, const std::string& file, ModelConfig& c);

/// `vision_config` of GLM-5.3.
void ReadGlmVision(const JsonObject& vision, ModelConfig& c);

}  // namespace fluvial::weights
