// SPDX-License-Identifier: Apache-2.0
// One decoder layer of the Qwen3-Next and Qwen3.5 family: gated DeltaNet or gated full attention, then a dense or a
// mixture-of-experts feed-forward.
#pragma once

#include <string>
#include <vector>

#include "models/blocks.h"
#include "models/decoder.h"
#include "models/moe_block.h"
#include "weights/model_config.h"

namespace fluvial::models {

struct QwenDims {
  GdnDims gdn;
  AttentionDims attention;
  MoeDims moe;

  /// `io`: the type of the activations, to which a softmax router rounds its weights.
  QwenDims(const weights::ModelConfig& config, DType io);
};

struct QwenLayer {
  bool full_attention = false;
  bool sparse = false;    ///< mixture of experts
  TensorView input_norm;  ///< [H], zero-centred
  TensorView post_norm;   ///< [H], zero-centred
  GdnWeights gdn;
  AttentionWeights attention;
  MlpWeights mlp;
  MoeWeights moe;
};

struct QwenWeights {
  TensorView embed;  ///< [V, H]
  HeadWeights head;
  std::vector<QwenLayer> layers;
};

/// Takes layer `index` under `prefix` ("model.layers.3."). Qwen3-Next's projections of interleaved heads
/// (`in_proj_qkvz`, `in_proj_ba`) and the flat ones of Qwen3.5 are both accepted, whichever is there.
Status TakeQwenLayer(weights::WeightReader& reader, const weights::ModelConfig& config, const QwenDims& dims,
                     const std::string& prefix, int64_t index, DType io, WeightCopies& copies, QwenLayer& layer);

/// Takes everything that the text model needs, under `model.language_model.` or `model.` (text-only files). Multi-token
/// prediction and vision tensors may be left over.
Status TakeQwenWeights(weights::WeightReader& reader, const weights::ModelConfig& config, const QwenDims& dims,
                       DType io, WeightCopies& copies, QwenWeights& weights);

/// Takes the tensors of the multi-token prediction head, to count them: nothing runs it yet.
Status TakeQwenMtp(weights::WeightReader& reader, const weights::ModelConfig& config, const QwenDims& dims, DType io);

CacheSpec QwenCacheSpec(const weights::ModelConfig& config, const QwenDims& dims, DType io, const LoadOptions& options);

}  // namespace fluvial::models
