// SPDX-License-Identifier: Apache-2.0
// Internal to this room: what Kimi-Linear and GLM-5.3 share - loading of KDA, latent attention and expert layers under
// the released names and those of transformers' modules, embeddings and head, checks of a step.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "models/kda_blocks.h"
#include "models/model.h"
#include "models/moe_block.h"
#include "models/operators.h"
#include "weights/checkpoint.h"
#include "weights/model_config.h"
#include "weights/weight_reader.h"

namespace fluvial::models {

/// A decoder layer without what only one family has.
struct KdaLayer {
  weights::LayerType type = weights::LayerType::kLinearAttention;
  bool sparse = false;
  TensorView input_norm, post_norm;  ///< [H], plain
  KdaWeights kda;
  MlaWeights mla;
  MlpWeights mlp;
  MoeWeights moe;
};

class KdaModel : public Model {
 public:
  KdaModel(weights::Checkpoint checkpoint, weights::ModelConfig config, DType io, Operators operators)
      : checkpoint_(std::move(checkpoint)), config_(std::move(config)), io_(io), operators_(std::move(operators)) {}

  std::string_view architecture() const override { return weights::Name(config_.architecture); }
  DType dtype() const override { return io_; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t max_positions() const override { return config_.max_positions; }
  int64_t parameters() const override { return parameters_; }
  uint64_t weight_bytes() const override { return checkpoint_.bytes(); }
  const CacheSpec& cache_spec() const override { return cache_spec_; }
  bool has_vision() const override { return false; }
  std::vector<OperatorUse> operators() const override { return operators_.uses(); }

 protected:
  /// How one family's files differ.
  struct Naming {
    std::string root;           ///< "model." or "model.language_model."
    bool conv_in_fp32 = false;  ///< the convolution is computed in fp32 whatever type its weights are stored in
    std::string moe;            ///< released prefix of expert layers, "block_sparse_moe."; "mlp." is accepted too
    ExpertNames experts = kProjNames;  ///< of per-expert tensors
  };

  /// Fills dims, embeddings, head and the shared part of `layer_count` layers. Errors of types only; what does not fit
  /// is left to reader.Finish().
  Status LoadShared(weights::WeightReader& reader, const Naming& naming);
  /// Ends the loading: reports what did not fit, keeps copies, counts parameters, sets the cache spec.
  Status FinishLoading(weights::WeightReader& reader, const LoadOptions& options);

  /// Scratch of the mixer and of the feed-forward part of a layer.
  Result<size_t> MixerBytes(const Step& step, const KdaLayer& layer, int32_t selected);
  Result<size_t> FeedForwardBytes(const Step& step, const KdaLayer& layer);
  Status FeedForward(const BlockContext& c, const KdaLayer& layer, const TensorView& x, const TensorView& y);
  weights::Checkpoint checkpoint_;
  weights::ModelConfig config_;
  DType io_;
  Operators operators_;
  CacheSpec cache_spec_;
  KdaDims kda_;
  MlaDims mla_;
  MoeDims moe_;
  TensorView embed_;
  HeadWeights head_;
  std::vector<KdaLayer> layers_;
  WeightCopies copies_;
  int64_t parameters_ = 0;

 private:
  void LoadKda(weights::WeightReader& reader, const std::string& prefix, bool conv_in_fp32, KdaWeights& w);
  void LoadMla(weights::WeightReader& reader, const std::string& prefix, MlaWeights& w);
  Status LoadFeedForward(weights::WeightReader& reader, const std::string& prefix, const Naming& naming,
                         KdaLayer& layer);
  TensorView LoadConv(weights::WeightReader& reader, const std::string& prefix, bool in_fp32);
};

/// The parts of loading that come before a model exists: CPU only, checkpoint opened, type of activations chosen.
struct OpenedModel {
  weights::Checkpoint checkpoint;
  DType io;
  Operators operators;
};
Result<OpenedModel> OpenModel(const std::string& directory, const weights::ModelConfig& config,
                              const LoadOptions& options, Stream& stream);

}  // namespace fluvial::models
