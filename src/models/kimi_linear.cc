// SPDX-License-Identifier: Apache-2.0
#include "models/kimi_linear.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "models/kda_layer.h"
#include "models/operators.h"
#include "ops/elementwise/elementwise.h"

namespace fluvial::models {
namespace {

constexpr auto kRms = ops::norm::Form::kRms;

KdaNaming Naming() {
  KdaNaming naming;
  naming.root = "model.";
  naming.moe = "block_sparse_moe.";
  naming.experts = {"w1", "w3", "w2"};
  return naming;
}

class KimiLinear : public Model {
 public:
  KimiLinear(OpenedModel opened, weights::ModelConfig config)
      : checkpoint_(std::move(opened.checkpoint)),
        config_(std::move(config)),
        io_(opened.io),
        operators_(std::move(opened.operators)),
        dims_(config_) {}

  Status Load(const LoadOptions& options) {
    weights::WeightReader reader(checkpoint_);
    FLUVIAL_RETURN_IF_ERROR(TakeKdaModel(reader, config_, dims_, Naming(), io_, copies_, weights_));
    FLUVIAL_RETURN_IF_ERROR(reader.Finish());
    copies_.Keep(reader.TakeAlignedCopies());
    parameters_ = CountParameters(checkpoint_);
    cache_spec_ = KdaCacheSpec(config_, dims_, io_, options);
    return Status::Ok();
  }

  std::string_view architecture() const override { return weights::Name(config_.architecture); }
  DType dtype() const override { return io_; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t max_positions() const override { return config_.max_positions; }
  int64_t parameters() const override { return parameters_; }
  uint64_t weight_bytes() const override { return checkpoint_.bytes(); }
  const CacheSpec& cache_spec() const override { return cache_spec_; }
  bool has_vision() const override { return false; }
  std::vector<OperatorUse> operators() const override { return operators_.uses(); }

  Result<size_t> WorkspaceBytes(const Step& step) override;
  Status Forward(Stream& stream, const Step& step, Arena& arena) override;

 private:
  /// Tensors of a whole step.
  struct StepScratch {
    TensorView hidden, normed, block;
  };
  StepScratch Take(Scratch& s, int64_t tokens) const {
    return {s.Take(io_, {tokens, config_.hidden}), s.Take(io_, {tokens, config_.hidden}),
            s.Take(io_, {tokens, config_.hidden})};
  }

  weights::Checkpoint checkpoint_;
  weights::ModelConfig config_;
  DType io_;
  Operators operators_;
  CacheSpec cache_spec_;
  KdaModelDims dims_;
  KdaModelWeights weights_;
  WeightCopies copies_;
  int64_t parameters_ = 0;
};

Result<size_t> KimiLinear::WorkspaceBytes(const Step& step) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.layers.size()));
  Scratch whole;
  Take(whole, step.tokens());
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, HeadBytes(operators_, step, weights_.head, io_));
  // Layers of one kind have equal shapes.
  bool seen_mixer[2] = {}, seen_mlp[2] = {};
  for (const KdaLayer& layer : weights_.layers) {
    if (!std::exchange(seen_mixer[layer.full_attention], true)) {
      FLUVIAL_ASSIGN_OR_RETURN(const size_t mixer, KdaMixerBytes(operators_, step, dims_, layer, cache_spec_, io_, 0));
      most = std::max(most, mixer);
    }
    if (!std::exchange(seen_mlp[layer.sparse], true)) {
      FLUVIAL_ASSIGN_OR_RETURN(const size_t mlp, KdaFeedForwardBytes(operators_, step, dims_, layer, io_));
      most = std::max(most, mlp);
    }
  }
  return whole.bytes() + most;
}

Status KimiLinear::Forward(Stream& stream, const Step& step, Arena& arena) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.layers.size()));
  if (step.tokens() == 0) return Status::Ok();
  Scratch scratch(&arena);
  const StepScratch t = Take(scratch, step.tokens());
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const BlockContext c{stream, operators_, arena, step, io_, static_cast<float>(config_.norm_eps)};

  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(stream, weights_.embed, step.ids, t.hidden));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const KdaLayer& layer = weights_.layers[i];
    const LayerCache& cache = (*step.caches)[i];
    // The residual sum of the layer before happens inside this layer's first norm.
    FLUVIAL_RETURN_IF_ERROR(i == 0 ? Norm(c, kRms, layer.input_norm, t.hidden, {}, t.normed)
                                   : Norm(c, kRms, layer.input_norm, t.block, t.hidden, t.normed));
    if (step.observer != nullptr) (*step.observer)(static_cast<int>(i), t.hidden);
    FLUVIAL_RETURN_IF_ERROR(layer.full_attention
                                ? Mla(c, dims_.mla, layer.mla, cache, t.normed, t.normed, nullptr, t.block)
                                : Kda(c, dims_.kda, layer.kda, cache, t.normed, t.block));
    FLUVIAL_RETURN_IF_ERROR(Norm(c, kRms, layer.post_norm, t.block, t.hidden, t.normed));
    FLUVIAL_RETURN_IF_ERROR(KdaFeedForward(c, dims_, layer, t.normed, t.block));
  }
  if (!weights_.layers.empty()) FLUVIAL_RETURN_IF_ERROR(ops::elementwise::Add(stream, t.hidden, t.block, t.hidden));
  if (step.observer != nullptr) (*step.observer)(static_cast<int>(weights_.layers.size()), t.hidden);
  return Head(c, weights_.head, t.hidden);
}

}  // namespace

Result<Footprint> KimiLinearFootprint(const weights::ModelConfig& config, const LoadOptions& options) {
  const DType io = options.dtype.value_or(config.dtype.value_or(DType::kBF16));
  const KdaModelDims dims(config);
  auto reader = weights::WeightReader::Counting();
  KdaModelWeights counted;
  WeightCopies copies;
  FLUVIAL_RETURN_IF_ERROR(TakeKdaModel(reader, config, dims, Naming(), io, copies, counted));
  Footprint out;
  out.parameters = reader.asked_elements();
  out.cache = KdaCacheSpec(config, dims, io, options);
  return out;
}

Result<std::unique_ptr<Model>> LoadKimiLinear(const std::string& directory, weights::ModelConfig config,
                                              const LoadOptions& options, Stream& stream) {
  FLUVIAL_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(directory, config, options, stream));
  auto model = std::make_unique<KimiLinear>(std::move(opened), std::move(config));
  FLUVIAL_RETURN_IF_ERROR(model->Load(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace fluvial::models
