// SPDX-License-Identifier: Apache-2.0
// Weights of the Kimi Delta Attention models: what Kimi-Linear and GLM-5.3 share of loading and counting them, under
// the released names and those of transformers' modules.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "models/kda_blocks.h"
#include "models/moe_block.h"
#include "weights/model_config.h"
#include "weights/weight_reader.h"

namespace fluvial::models {

struct KdaModelDims {
  KdaDims kda;
  MlaDims mla;
  MoeDims moe;

  explicit KdaModelDims(const weights::ModelConfig& config);
};

/// A decoder layer without what only one family has.
struct KdaLayer {
  bool full_attention = false;       ///< latent attention; else KDA
  bool sparse = false;               ///< mixture of experts
  TensorView input_norm, post_norm;  ///< [H], plain
  KdaWeights kda;
  MlaWeights mla;
  MlpWeights mlp;
  MoeWeights moe;
};

/// How one family's files differ.
struct KdaNaming {
  std::string root;                  ///< "model." or "model.language_model."
  bool conv_in_fp32 = false;         ///< the convolution is computed in fp32 whatever type its weights are stored in
  std::string moe;                   ///< released prefix of expert layers; "mlp." is accepted too
  ExpertNames experts = kProjNames;  ///< of per-expert tensors
};

/// Layer `index` under `prefix` ("model.layers.3."). Errors of types only; what does not fit is the reader's to report.
Status TakeKdaLayer(weights::WeightReader& reader, const weights::ModelConfig& config, const KdaModelDims& dims,
                    const KdaNaming& naming, const std::string& prefix, int64_t index, DType io, WeightCopies& copies,
                    KdaLayer& layer);

struct KdaModelWeights {
  TensorView embed;  ///< [V, H]
  HeadWeights head;
  std::vector<KdaLayer> layers;
};

/// Embedding, head and all layers; layers of multi-token prediction may be left over.
Status TakeKdaModel(weights::WeightReader& reader, const weights::ModelConfig& config, const KdaModelDims& dims,
                    const KdaNaming& naming, DType io, WeightCopies& copies, KdaModelWeights& w);

/// Latent attention keeps one row per token; KDA a window and a state.
CacheSpec KdaCacheSpec(const weights::ModelConfig& config, const KdaModelDims& dims, DType io,
                       const LoadOptions& options);

/// Scratch of the mixer and of the feed-forward part of a layer; `selected` as MlaBytes.
Result<size_t> KdaMixerBytes(Operators& operators, const Step& step, const KdaModelDims& dims, const KdaLayer& layer,
                             const CacheSpec& cache, DType io, int32_t selected);
Result<size_t> KdaFeedForwardBytes(Operators& operators, const Step& step, const KdaModelDims& dims,
                                   const KdaLayer& layer, DType io);

/// y = experts(x), or MLP(x) in a dense layer.
Status KdaFeedForward(const BlockContext& c, const KdaModelDims& dims, const KdaLayer& layer, const TensorView& x,
                      const TensorView& y);

/// What comes before a model exists: CPU only, checkpoint opened, type of activations chosen.
struct OpenedModel {
  weights::Checkpoint checkpoint;
  DType io;
  Operators operators;
};
Result<OpenedModel> OpenModel(const std::string& directory, const weights::ModelConfig& config,
                              const LoadOptions& options, Stream& stream);

}  // namespace fluvial::models
