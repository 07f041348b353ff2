// SPDX-License-Identifier: Apache-2.0
// Qwen2.5-VL (`qwen2_5_vl`) and Qwen3-VL (`qwen3_vl`, `qwen3_vl_moe`): plain decoders with grouped-query attention and
// a vision tower. Qwen2.5-VL has biases in q, k and v and chunked three-axis positions; Qwen3-VL normalises q and k per
// head, interleaves the axes and adds DeepStack features after its first layers; the MoE form has no shared expert.
//
// Source of every formula and name: huggingface/transformers 5.24, models/qwen2_5_vl, qwen3_vl and qwen3_vl_moe.
#pragma once

#include <memory>
#include <string>

#include "models/footprint.h"
#include "models/model.h"
#include "weights/model_config.h"

namespace fluvial::models {

/// Loads `directory`, whose config.json gave `config`.
Result<std::unique_ptr<Model>> LoadQwenVl(const std::string& directory, weights::ModelConfig config,
                                          const LoadOptions& options, Stream& stream);

/// What config.json alone tells of the text model.
Result<Footprint> QwenVlFootprint(const weights::ModelConfig& config, const LoadOptions& options);

}  // namespace fluvial::models
