// SPDX-License-Identifier: Apache-2.0
#include "models/kimi_linear.h"

#include <algorithm>
#include <utility>

#include "models/kda_model.h"
#include "ops/elementwise/elementwise.h"

namespace fluvial::models {
namespace {

using weights::LayerType;

constexpr auto kRms = ops::norm::Form::kRms;

class KimiLinear : public KdaModel {
 public:
  using KdaModel::KdaModel;

  Status Load(const LoadOptions& options) {
    weights::WeightReader reader(checkpoint_);
    Naming naming;
    naming.root = "model.";
    naming.moe = "block_sparse_moe.";
    naming.experts = {"w1", "w3", "w2"};
    FLUVIAL_RETURN_IF_ERROR(LoadShared(reader, naming));
    return FinishLoading(reader, options);
  }

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
};

Result<size_t> KimiLinear::WorkspaceBytes(const Step& step) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, layers_.size()));
  Scratch whole;
  Take(whole, step.tokens());
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, HeadBytes(operators_, step, head_, io_));
  // Layers of one kind have equal shapes.
  bool seen_mixer[2] = {}, seen_mlp[2] = {};
  for (const KdaLayer& layer : layers_) {
    if (!std::exchange(seen_mixer[layer.type == LayerType::kFullAttention], true)) {
      FLUVIAL_ASSIGN_OR_RETURN(const size_t mixer, MixerBytes(step, layer, 0));
      most = std::max(most, mixer);
    }
    if (!std::exchange(seen_mlp[layer.sparse], true)) {
      FLUVIAL_ASSIGN_OR_RETURN(const size_t mlp, FeedForwardBytes(step, layer));
      most = std::max(most, mlp);
    }
  }
  return whole.bytes() + most;
}

Status KimiLinear::Forward(Stream& stream, const Step& step, Arena& arena) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, layers_.size()));
  if (step.tokens() == 0) return Status::Ok();
  Scratch scratch(&arena);
  const StepScratch t = Take(scratch, step.tokens());
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const BlockContext c{stream, operators_, arena, step, io_, static_cast<float>(config_.norm_eps)};

  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(stream, embed_, step.ids, t.hidden));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const KdaLayer& layer = layers_[i];
    const LayerCache& cache = (*step.caches)[i];
    // The residual sum of the layer before happens inside this layer's first norm.
    FLUVIAL_RETURN_IF_ERROR(i == 0 ? Norm(c, kRms, layer.input_norm, t.hidden, {}, t.normed)
                                   : Norm(c, kRms, layer.input_norm, t.block, t.hidden, t.normed));
    if (step.observer != nullptr) (*step.observer)(static_cast<int>(i), t.hidden);
    FLUVIAL_RETURN_IF_ERROR(layer.type == LayerType::kFullAttention
                                ? Mla(c, mla_, layer.mla, cache, t.normed, t.normed, nullptr, t.block)
                                : Kda(c, kda_, layer.kda, cache, t.normed, t.block));
    FLUVIAL_RETURN_IF_ERROR(Norm(c, kRms, layer.post_norm, t.block, t.hidden, t.normed));
    FLUVIAL_RETURN_IF_ERROR(FeedForward(c, layer, t.normed, t.block));
  }
  if (!layers_.empty()) FLUVIAL_RETURN_IF_ERROR(ops::elementwise::Add(stream, t.hidden, t.block, t.hidden));
  if (step.observer != nullptr) (*step.observer)(static_cast<int>(layers_.size()), t.hidden);
  return Head(c, head_, t.hidden);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadKimiLinear(const std::string& directory, weights::ModelConfig config,
                                              const LoadOptions& options, Stream& stream) {
  FLUVIAL_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(directory, config, options, stream));
  auto model = std::make_unique<KimiLinear>(std::move(opened.checkpoint), std::move(config), opened.io,
                                            std::move(opened.operators));
  FLUVIAL_RETURN_IF_ERROR(model->Load(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace fluvial::models
