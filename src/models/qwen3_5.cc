// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_5.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "models/qwen_layer.h"
#include "models/vision_tower.h"
#include "ops/elementwise/elementwise.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "weights/checkpoint.h"
#include "weights/weight_reader.h"

namespace fluvial::models {
namespace {

ops::rope::Spec RopeSpec(const weights::ModelConfig& c) {
  ops::rope::Spec spec;
  spec.dim = static_cast<int32_t>(c.rotary_dim());
  spec.theta = c.rope.theta;
  if (c.rope.mrope_section.size() == 3) {
    spec.kind = c.rope.mrope_interleaved ? ops::rope::Kind::kMropeInterleaved : ops::rope::Kind::kMropeChunked;
    for (size_t i = 0; i < 3; ++i) spec.sections[i] = static_cast<int32_t>(c.rope.mrope_section[i]);
  }
  return spec;
}

class Qwen3_5 : public Model {
 public:
  Qwen3_5(weights::Checkpoint checkpoint, weights::ModelConfig config, DType io, Operators operators)
      : checkpoint_(std::move(checkpoint)),
        config_(std::move(config)),
        io_(io),
        operators_(std::move(operators)),
        dims_(config_, io) {}

  Status Load(const LoadOptions& options);

  std::string_view architecture() const override { return weights::Name(config_.architecture); }
  DType dtype() const override { return io_; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t vision_width() const override { return config_.hidden; }
  int64_t max_positions() const override { return config_.max_positions; }
  int64_t parameters() const override { return parameters_; }
  uint64_t weight_bytes() const override { return checkpoint_.bytes(); }
  const CacheSpec& cache_spec() const override { return cache_spec_; }
  bool has_vision() const override { return tower_.has_value(); }
  const VisionRules* vision() const override { return tower_ ? &tower_->rules() : nullptr; }
  Result<size_t> EncodeBytes(std::span<const VisionInput> items) override {
    return tower_ ? tower_->WorkspaceBytes(operators_, items) : Model::EncodeBytes(items);
  }
  Status Encode(Stream& stream, std::span<const VisionInput> items, const TensorView& features, Arena& arena) override {
    return tower_ ? tower_->Encode(stream, operators_, items, features, arena)
                  : Model::Encode(stream, items, features, arena);
  }
  std::vector<OperatorUse> operators() const override { return operators_.uses(); }

  Result<size_t> WorkspaceBytes(const Step& step) override;
  Status Forward(Stream& stream, const Step& step, Arena& arena) override;

 private:
  /// Tensors of a whole step.
  struct StepScratch {
    TensorView hidden, normed, block, cos, sin;
  };

  StepScratch Take(Scratch& s, int64_t tokens) const;
  Result<size_t> LayerBytes(const Step& step, const QwenLayer& layer);

  weights::Checkpoint checkpoint_;
  weights::ModelConfig config_;
  DType io_;
  Operators operators_;
  CacheSpec cache_spec_;
  ops::rope::Spec rope_;
  QwenDims dims_;
  QwenWeights weights_;
  std::optional<VisionTower> tower_;
  WeightCopies copies_;
  int64_t parameters_ = 0;
};

Status Qwen3_5::Load(const LoadOptions& options) {
  const weights::ModelConfig& c = config_;
  rope_ = RopeSpec(c);
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Validate(rope_));

  if (c.moe.experts > 0) {
    if (const Status s = ops::moe::Validate(dims_.moe.router); !s.ok()) {
      return Status::UnusableModel(checkpoint_.directory() + "/config.json: " + s.message());
    }
  }
  weights::WeightReader reader(checkpoint_);
  // Files of the text-only class have the configuration but not the tower.
  if (c.vision.has_value() && reader.Has("model.visual.patch_embed.proj.weight")) {
    tower_.emplace(reader, "model.visual.", c, io_);
  }
  FLUVIAL_RETURN_IF_ERROR(TakeQwenWeights(reader, c, dims_, io_, copies_, weights_));
  FLUVIAL_RETURN_IF_ERROR(reader.Finish());
  copies_.Keep(reader.TakeAlignedCopies());
  parameters_ = CountParameters(checkpoint_);
  cache_spec_ = QwenCacheSpec(c, dims_, io_, options);
  return Status::Ok();
}

Qwen3_5::StepScratch Qwen3_5::Take(Scratch& s, int64_t tokens) const {
  StepScratch out;
  out.hidden = s.Take(io_, {tokens, config_.hidden});
  out.normed = s.Take(io_, {tokens, config_.hidden});
  out.block = s.Take(io_, {tokens, config_.hidden});
  out.cos = s.Take(DType::kF32, {tokens, rope_.dim / 2});
  out.sin = s.Take(DType::kF32, {tokens, rope_.dim / 2});
  return out;
}

Result<size_t> Qwen3_5::LayerBytes(const Step& step, const QwenLayer& layer) {
  size_t mixer = 0, ffn = 0;
  if (layer.full_attention) {
    FLUVIAL_ASSIGN_OR_RETURN(mixer,
                             AttentionBytes(operators_, step, dims_.attention, layer.attention, io_, cache_spec_.kv));
  } else {
    FLUVIAL_ASSIGN_OR_RETURN(
        mixer, GdnBytes(operators_, step, dims_.gdn, layer.gdn, io_, cache_spec_.conv, cache_spec_.recurrent));
  }
  if (layer.sparse) {
    FLUVIAL_ASSIGN_OR_RETURN(ffn, MoeBytes(operators_, step, dims_.moe, layer.moe, io_));
  } else {
    FLUVIAL_ASSIGN_OR_RETURN(ffn, MlpBytes(operators_, step, layer.mlp, io_));
  }
  return std::max(mixer, ffn);
}

Result<size_t> Qwen3_5::WorkspaceBytes(const Step& step) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.layers.size()));
  Scratch whole;
  Take(whole, step.tokens());
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, HeadBytes(operators_, step, weights_.head, io_));
  bool seen[2][2] = {};
  for (const QwenLayer& layer : weights_.layers) {
    // Layers of one kind have equal shapes.
    if (std::exchange(seen[layer.full_attention][layer.sparse], true)) continue;
    FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, LayerBytes(step, layer));
    most = std::max(most, bytes);
  }
  return whole.bytes() + most;
}

Status Qwen3_5::Forward(Stream& stream, const Step& step, Arena& arena) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.layers.size()));
  if (step.tokens() == 0) return Status::Ok();
  Scratch scratch(&arena);
  const StepScratch t = Take(scratch, step.tokens());
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const BlockContext c{stream, operators_, arena, step, io_, static_cast<float>(config_.norm_eps)};

  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(stream, weights_.embed, step.ids, t.hidden));
  FLUVIAL_RETURN_IF_ERROR(PlaceFeatures(stream, step, t.hidden));
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Tables(stream, rope_, step.positions, t.cos, t.sin));
  constexpr auto kForm = ops::norm::Form::kRmsZeroCentred;
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const QwenLayer& layer = weights_.layers[i];
    const LayerCache& cache = (*step.caches)[i];
    // The residual sum of the layer before happens inside this layer's first norm.
    FLUVIAL_RETURN_IF_ERROR(i == 0 ? Norm(c, kForm, layer.input_norm, t.hidden, {}, t.normed)
                                   : Norm(c, kForm, layer.input_norm, t.block, t.hidden, t.normed));
    if (step.observer != nullptr) (*step.observer)(static_cast<int>(i), t.hidden);
    FLUVIAL_RETURN_IF_ERROR(layer.full_attention
                                ? Attention(c, dims_.attention, layer.attention, cache, t.cos, t.sin, t.normed, t.block)
                                : Gdn(c, dims_.gdn, layer.gdn, cache, t.normed, t.block));
    FLUVIAL_RETURN_IF_ERROR(Norm(c, kForm, layer.post_norm, t.block, t.hidden, t.normed));
    FLUVIAL_RETURN_IF_ERROR(layer.sparse ? Moe(c, dims_.moe, layer.moe, t.normed, t.block)
                                         : Mlp(c, layer.mlp, t.normed, t.block));
  }
  if (!weights_.layers.empty()) FLUVIAL_RETURN_IF_ERROR(ops::elementwise::Add(stream, t.hidden, t.block, t.hidden));
  if (step.observer != nullptr) (*step.observer)(static_cast<int>(weights_.layers.size()), t.hidden);
  return Head(c, weights_.head, t.hidden);
}

}  // namespace

Result<Footprint> Qwen3_5Footprint(const weights::ModelConfig& config, const LoadOptions& options) {
  const DType io = options.dtype.value_or(config.dtype.value_or(DType::kBF16));
  const QwenDims dims(config, io);
  Footprint out;
  auto text = weights::WeightReader::Counting(), mtp = weights::WeightReader::Counting();
  QwenWeights weights;
  WeightCopies copies;
  FLUVIAL_RETURN_IF_ERROR(TakeQwenWeights(text, config, dims, io, copies, weights));
  FLUVIAL_RETURN_IF_ERROR(TakeQwenMtp(mtp, config, dims, io));
  out.parameters = text.asked_elements();
  out.mtp_parameters = mtp.asked_elements();
  out.cache = QwenCacheSpec(config, dims, io, options);
  return out;
}

Result<std::unique_ptr<Model>> LoadQwen3_5(const std::string& directory, weights::ModelConfig config,
                                           const LoadOptions& options, Stream& stream) {
  if (stream.device().kind != DeviceKind::kCpu) {
    return Status::Refused(std::string(weights::Name(config.architecture)) +
                           " runs on the CPU only so far: use --device cpu");
  }
  FLUVIAL_ASSIGN_OR_RETURN(weights::Checkpoint checkpoint, weights::Checkpoint::Open(directory));
  FLUVIAL_ASSIGN_OR_RETURN(const DType io, ActivationType(options, config, checkpoint));
  FLUVIAL_ASSIGN_OR_RETURN(Operators operators, Operators::Create(stream.device(), options.backends));
  auto model = std::make_unique<Qwen3_5>(std::move(checkpoint), std::move(config), io, std::move(operators));
  FLUVIAL_RETURN_IF_ERROR(model->Load(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace fluvial::models
