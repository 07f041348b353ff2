// SPDX-License-Identifier: Apache-2.0
#include "models/qwen_vl.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "models/moe_block.h"
#include "models/vision_tower.h"
#include "ops/elementwise/elementwise.h"
#include "ops/rope/rope.h"
#include "weights/checkpoint.h"
#include "weights/weight_reader.h"

namespace fluvial::models {
namespace {

constexpr ops::norm::Form kForm = ops::norm::Form::kRms;

struct Layer {
  bool sparse = false;    ///< mixture of experts
  TensorView input_norm;  ///< [H]
  TensorView post_norm;   ///< [H]
  AttentionWeights attention;
  MlpWeights mlp;
  MoeWeights moe;
};

/// What follows from config.json.
struct Dims {
  AttentionDims attention;
  MoeDims moe;

  /// `io`: the type of the activations, to which the router rounds its weights.
  Dims(const weights::ModelConfig& c, DType io) {
    attention.hidden = c.hidden;
    attention.hq = static_cast<int32_t>(c.heads);
    attention.hkv = static_cast<int32_t>(c.kv_heads);
    attention.d = static_cast<int32_t>(c.head_dim);
    attention.gate = false;
    attention.qk_norm = kForm;
    moe.hidden = c.hidden;
    moe.inter = c.moe.intermediate;
    moe.router.scoring = ops::moe::Scoring::kSoftmax;
    moe.router.experts = static_cast<int32_t>(c.moe.experts);
    moe.router.per_token = static_cast<int32_t>(c.moe.per_token);
    moe.router.renormalise = true;
    moe.router.weight_type = io;
  }

  CacheSpec Cache(size_t layers, DType io) const {
    CacheSpec out;
    LayerCacheSpec spec;
    spec.kv_heads = attention.hkv;
    spec.d_qk = spec.d_v = attention.d;
    out.kv = io;
    out.layers.assign(layers, spec);
    return out;
  }
};

struct TextWeights {
  TensorView embed;  ///< [V, H]
  HeadWeights head;
  std::vector<Layer> layers;
};

Status TakeLayer(weights::WeightReader& reader, const weights::ModelConfig& c, const Dims& dims,
                 const std::string& prefix, Layer& layer) {
  const int64_t h = c.hidden, d = c.head_dim, q = c.heads * d, kv = c.kv_heads * d;
  layer.input_norm = reader.Take(prefix + "input_layernorm.weight", {h});
  layer.post_norm = reader.Take(prefix + "post_attention_layernorm.weight", {h});
  const std::string p = prefix + "self_attn.";
  AttentionWeights& a = layer.attention;
  a.q = reader.Take(p + "q_proj.weight", {q, h});
  a.k = reader.Take(p + "k_proj.weight", {kv, h});
  a.v = reader.Take(p + "v_proj.weight", {kv, h});
  a.o = reader.Take(p + "o_proj.weight", {h, q});
  const bool qwen2 = c.architecture == weights::Architecture::kQwen2_5Vl;
  if (qwen2 || c.attention_bias) {
    a.q_bias = reader.Take(p + "q_proj.bias", {q});
    a.k_bias = reader.Take(p + "k_proj.bias", {kv});
    a.v_bias = reader.Take(p + "v_proj.bias", {kv});
  }
  if (!qwen2) {
    if (c.attention_bias) a.o_bias = reader.Take(p + "o_proj.bias", {h});
    a.q_norm = reader.Take(p + "q_norm.weight", {d});
    a.k_norm = reader.Take(p + "k_norm.weight", {d});
  }
  if (layer.sparse) {
    layer.moe.router = reader.Take(prefix + "mlp.gate.weight", {dims.moe.router.experts, h});
    // Released stacks are input-major, those saved by transformers 5 are not; the shape tells, but not of a square.
    return TakeExperts(reader, prefix + "mlp.experts.", dims.moe, kProjNames, ops::moe::Layout::kInputMajor, layer.moe);
  }
  layer.mlp.gate = reader.Take(prefix + "mlp.gate_proj.weight", {c.intermediate, h});
  layer.mlp.up = reader.Take(prefix + "mlp.up_proj.weight", {c.intermediate, h});
  layer.mlp.down = reader.Take(prefix + "mlp.down_proj.weight", {h, c.intermediate});
  return Status::Ok();
}

/// Takes everything that the text model needs.
Status TakeText(weights::WeightReader& reader, const weights::ModelConfig& c, const Dims& dims, TextWeights& w) {
  // Older files have the text model under "model." and the tower at the top.
  const bool nested = reader.Has("model.language_model.embed_tokens.weight");
  const std::string root = nested ? "model.language_model." : "model.";
  w.embed = reader.Take(root + "embed_tokens.weight", {c.vocab, c.hidden});
  w.head.form = kForm;
  w.head.norm = reader.Take(root + "norm.weight", {c.hidden});
  w.head.lm_head = TakeHead(reader, c, w.embed);
  reader.IgnoreSuffix(".rotary_emb.inv_freq");
  w.layers.resize(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i) {
    Layer& layer = w.layers[static_cast<size_t>(i)];
    layer.sparse = c.HasExperts(i);
    FLUVIAL_RETURN_IF_ERROR(TakeLayer(reader, c, dims, root + "layers." + std::to_string(i) + ".", layer));
  }
  return Status::Ok();
}

class QwenVl : public Model {
 public:
  QwenVl(weights::Checkpoint checkpoint, weights::ModelConfig config, DType io, Operators operators)
      : checkpoint_(std::move(checkpoint)),
        config_(std::move(config)),
        io_(io),
        operators_(std::move(operators)),
        dims_(config_, io) {}

  Status Load();

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
  int64_t vision_levels() const override { return tower_ ? tower_->levels() : 1; }
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

  weights::Checkpoint checkpoint_;
  weights::ModelConfig config_;
  DType io_;
  Operators operators_;
  CacheSpec cache_spec_;
  ops::rope::Spec rope_;
  Dims dims_;
  TextWeights weights_;
  std::optional<VisionTower> tower_;
  WeightCopies copies_;
  int64_t parameters_ = 0;
};

Status QwenVl::Load() {
  const weights::ModelConfig& c = config_;
  rope_.dim = static_cast<int32_t>(c.rotary_dim());
  rope_.theta = c.rope.theta;
  if (c.rope.mrope_section.size() == 3) {
    const bool interleaved = c.architecture != weights::Architecture::kQwen2_5Vl;
    rope_.kind = interleaved ? ops::rope::Kind::kMropeInterleaved : ops::rope::Kind::kMropeChunked;
    for (size_t i = 0; i < 3; ++i) rope_.sections[i] = static_cast<int32_t>(c.rope.mrope_section[i]);
  }
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Validate(rope_));
  weights::WeightReader reader(checkpoint_);
  FLUVIAL_RETURN_IF_ERROR(TakeText(reader, c, dims_, weights_));
  if (c.vision.has_value()) {
    const bool inside = reader.Has("model.visual.patch_embed.proj.weight");
    tower_.emplace(reader, inside ? "model.visual." : "visual.", c, io_);
  }
  FLUVIAL_RETURN_IF_ERROR(reader.Finish());
  copies_.Keep(reader.TakeAlignedCopies());
  parameters_ = CountParameters(checkpoint_);
  cache_spec_ = dims_.Cache(weights_.layers.size(), io_);
  return Status::Ok();
}

QwenVl::StepScratch QwenVl::Take(Scratch& s, int64_t tokens) const {
  StepScratch out;
  out.hidden = s.Take(io_, {tokens, config_.hidden});
  out.normed = s.Take(io_, {tokens, config_.hidden});
  out.block = s.Take(io_, {tokens, config_.hidden});
  out.cos = s.Take(DType::kF32, {tokens, rope_.dim / 2});
  out.sin = s.Take(DType::kF32, {tokens, rope_.dim / 2});
  return out;
}

Result<size_t> QwenVl::WorkspaceBytes(const Step& step) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.layers.size()));
  Scratch whole;
  Take(whole, step.tokens());
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, HeadBytes(operators_, step, weights_.head, io_));
  bool seen[2] = {};
  for (const Layer& layer : weights_.layers) {
    // Layers of one kind have equal shapes.
    if (std::exchange(seen[layer.sparse], true)) continue;
    FLUVIAL_ASSIGN_OR_RETURN(const size_t mixer,
                             AttentionBytes(operators_, step, dims_.attention, layer.attention, io_, cache_spec_.kv));
    size_t ffn = 0;
    if (layer.sparse) {
      FLUVIAL_ASSIGN_OR_RETURN(ffn, MoeBytes(operators_, step, dims_.moe, layer.moe, io_));
    } else {
      FLUVIAL_ASSIGN_OR_RETURN(ffn, MlpBytes(operators_, step, layer.mlp, io_));
    }
    most = std::max({most, mixer, ffn});
  }
  return whole.bytes() + most;
}

Status QwenVl::Forward(Stream& stream, const Step& step, Arena& arena) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step, weights_.layers.size()));
  if (step.tokens() == 0) return Status::Ok();
  Scratch scratch(&arena);
  const StepScratch t = Take(scratch, step.tokens());
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const BlockContext c{stream, operators_, arena, step, io_, static_cast<float>(config_.norm_eps)};

  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(stream, weights_.embed, step.ids, t.hidden));
  FLUVIAL_RETURN_IF_ERROR(PlaceFeatures(stream, step, t.hidden));
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Tables(stream, rope_, step.positions, t.cos, t.sin));
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const Layer& layer = weights_.layers[i];
    if (step.observer != nullptr) (*step.observer)(static_cast<int>(i), t.hidden);
    FLUVIAL_RETURN_IF_ERROR(Norm(c, kForm, layer.input_norm, t.hidden, {}, t.normed));
    FLUVIAL_RETURN_IF_ERROR(
        Attention(c, dims_.attention, layer.attention, (*step.caches)[i], t.cos, t.sin, t.normed, t.block));
    FLUVIAL_RETURN_IF_ERROR(Norm(c, kForm, layer.post_norm, t.block, t.hidden, t.normed));
    FLUVIAL_RETURN_IF_ERROR(layer.sparse ? Moe(c, dims_.moe, layer.moe, t.normed, t.block)
                                         : Mlp(c, layer.mlp, t.normed, t.block));
    FLUVIAL_RETURN_IF_ERROR(ops::elementwise::Add(stream, t.hidden, t.block, t.hidden));
    const int64_t level = static_cast<int64_t>(i) + 1;
    if (level < vision_levels()) FLUVIAL_RETURN_IF_ERROR(AddFeatures(stream, step, level, t.hidden));
  }
  if (step.observer != nullptr) (*step.observer)(static_cast<int>(weights_.layers.size()), t.hidden);
  return Head(c, weights_.head, t.hidden);
}

}  // namespace

Result<Footprint> QwenVlFootprint(const weights::ModelConfig& config, const LoadOptions& options) {
  const DType io = options.dtype.value_or(config.dtype.value_or(DType::kBF16));
  const Dims dims(config, io);
  auto reader = weights::WeightReader::Counting();
  TextWeights weights;
  FLUVIAL_RETURN_IF_ERROR(TakeText(reader, config, dims, weights));
  Footprint out;
  out.parameters = reader.asked_elements();
  out.cache = dims.Cache(weights.layers.size(), io);
  return out;
}

Result<std::unique_ptr<Model>> LoadQwenVl(const std::string& directory, weights::ModelConfig config,
                                          const LoadOptions& options, Stream& stream) {
  if (stream.device().kind != DeviceKind::kCpu) {
    return Status::Refused(std::string(weights::Name(config.architecture)) +
                           " runs on the CPU only so far: use --device cpu");
  }
  FLUVIAL_ASSIGN_OR_RETURN(weights::Checkpoint checkpoint, weights::Checkpoint::Open(directory));
  FLUVIAL_ASSIGN_OR_RETURN(const DType io, ActivationType(options, config, checkpoint));
  FLUVIAL_ASSIGN_OR_RETURN(Operators operators, Operators::Create(stream.device(), options.backends));
  auto model = std::make_unique<QwenVl>(std::move(checkpoint), std::move(config), io, std::move(operators));
  FLUVIAL_RETURN_IF_ERROR(model->Load());
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace fluvial::models
