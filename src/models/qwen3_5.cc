// SPDX-License-Identifier: Apache-2.0
#include "models/qwen3_5.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "models/blocks.h"
#include "models/vision_tower.h"
#include "ops/elementwise/elementwise.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "weights/checkpoint.h"
#include "weights/weight_reader.h"

namespace fluvial::models {
namespace {

using weights::LayerType;

struct Layer {
  LayerType type = LayerType::kLinearAttention;
  TensorView input_norm;  ///< [H], zero-centred
  TensorView post_norm;   ///< [H], zero-centred
  GdnWeights gdn;
  AttentionWeights attention;
  MlpWeights mlp;
};

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
      : checkpoint_(std::move(checkpoint)), config_(std::move(config)), io_(io), operators_(std::move(operators)) {}

  Status Load(const LoadOptions& options);

  std::string_view architecture() const override { return weights::Name(config_.architecture); }
  DType dtype() const override { return io_; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t hidden() const override { return config_.hidden; }
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
  /// Tensors of the head.
  struct HeadScratch {
    TensorView rows, logits;
  };

  StepScratch Take(Scratch& s, int64_t tokens) const;
  HeadScratch TakeHead(Scratch& s, int64_t rows) const;
  Status CheckStep(const Step& step) const;
  Status LoadLayer(weights::WeightReader& reader, const std::string& prefix, Layer& layer);
  /// A copy of a small weight in another type.
  Result<TensorView> Converted(const TensorView& weight, DType dtype);
  /// y = norm(x), or y = norm(residual <- residual + x).
  Status Norm(Stream& stream, const TensorView& weight, const TensorView& x, const TensorView& residual,
              const TensorView& y) const;
  Status Head(const BlockContext& c, const TensorView& hidden);

  weights::Checkpoint checkpoint_;
  weights::ModelConfig config_;
  DType io_;
  Operators operators_;
  CacheSpec cache_spec_;
  ops::rope::Spec rope_;
  GdnDims gdn_;
  AttentionDims attention_;
  TensorView embed_;
  TensorView final_norm_;
  TensorView head_;
  std::vector<Layer> layers_;
  std::optional<VisionTower> tower_;
  std::vector<std::vector<uint64_t>> copies_;
  int64_t parameters_ = 0;
};

Result<TensorView> Qwen3_5::Converted(const TensorView& weight, DType dtype) {
  if (!weight.defined() || weight.dtype == dtype) return weight;
  const size_t bytes = static_cast<size_t>(weight.elements()) * SizeOf(dtype);
  copies_.emplace_back((bytes + 7) / 8);
  TensorView out = weight;
  out.data = copies_.back().data();
  out.dtype = dtype;
  for (int64_t i = 0; i < weight.elements(); ++i) {
    StoreFromDouble(out.data, dtype, i, LoadAsDouble(weight.data, weight.dtype, i));
  }
  return out;
}

Status Qwen3_5::LoadLayer(weights::WeightReader& reader, const std::string& prefix, Layer& layer) {
  const int64_t h = config_.hidden, inter = config_.intermediate, d = config_.head_dim;
  layer.input_norm = reader.Take(prefix + "input_layernorm.weight", {h});
  layer.post_norm = reader.Take(prefix + "post_attention_layernorm.weight", {h});
  layer.mlp.gate = reader.Take(prefix + "mlp.gate_proj.weight", {inter, h});
  layer.mlp.up = reader.Take(prefix + "mlp.up_proj.weight", {inter, h});
  layer.mlp.down = reader.Take(prefix + "mlp.down_proj.weight", {h, inter});
  if (layer.type == LayerType::kFullAttention) {
    const std::string p = prefix + "self_attn.";
    AttentionWeights& a = layer.attention;
    const int64_t q = 2 * config_.heads * d, kv = config_.kv_heads * d;
    a.q = reader.Take(p + "q_proj.weight", {q, h});
    a.k = reader.Take(p + "k_proj.weight", {kv, h});
    a.v = reader.Take(p + "v_proj.weight", {kv, h});
    a.o = reader.Take(p + "o_proj.weight", {h, config_.heads * d});
    a.q_norm = reader.Take(p + "q_norm.weight", {d});
    a.k_norm = reader.Take(p + "k_norm.weight", {d});
    if (config_.attention_bias) {
      a.q_bias = reader.Take(p + "q_proj.bias", {q});
      a.k_bias = reader.Take(p + "k_proj.bias", {kv});
      a.v_bias = reader.Take(p + "v_proj.bias", {kv});
      a.o_bias = reader.Take(p + "o_proj.bias", {h});
    }
    return Status::Ok();
  }
  const std::string p = prefix + "linear_attn.";
  GdnWeights& g = layer.gdn;
  g.in_qkv = reader.Take(p + "in_proj_qkv.weight", {gdn_.channels(), h});
  g.in_z = reader.Take(p + "in_proj_z.weight", {gdn_.value_dim(), h});
  g.in_b = reader.Take(p + "in_proj_b.weight", {gdn_.hv, h});
  g.in_a = reader.Take(p + "in_proj_a.weight", {gdn_.hv, h});
  g.norm = reader.Take(p + "norm.weight", {gdn_.v});
  g.out = reader.Take(p + "out_proj.weight", {h, gdn_.value_dim()});
  const TensorView conv = reader.Take(p + "conv1d.weight", {gdn_.channels(), 1, gdn_.width});
  FLUVIAL_ASSIGN_OR_RETURN(g.conv, Converted(conv, io_));
  if (g.conv.defined()) g.conv = TensorView(g.conv.data, io_, {gdn_.channels(), gdn_.width});
  FLUVIAL_ASSIGN_OR_RETURN(g.a_log, Converted(reader.Take(p + "A_log", {gdn_.hv}), DType::kF32));
  FLUVIAL_ASSIGN_OR_RETURN(g.dt_bias, Converted(reader.Take(p + "dt_bias", {gdn_.hv}), DType::kF32));
  return Status::Ok();
}

Status Qwen3_5::Load(const LoadOptions& options) {
  const weights::ModelConfig& c = config_;
  const auto& l = c.linear;
  gdn_ = {c.hidden,
          static_cast<int32_t>(l.key_heads),
          static_cast<int32_t>(l.value_heads),
          static_cast<int32_t>(l.key_dim),
          static_cast<int32_t>(l.value_dim),
          static_cast<int32_t>(l.conv_kernel)};
  attention_ = {c.hidden, static_cast<int32_t>(c.heads), static_cast<int32_t>(c.kv_heads),
                static_cast<int32_t>(c.head_dim)};
  rope_ = RopeSpec(c);
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Validate(rope_));

  weights::WeightReader reader(checkpoint_);
  // Files of the text-only class drop "language_model.".
  const std::string nested = "model.language_model.";
  const std::string root = reader.Has(nested + "embed_tokens.weight") ? nested : "model.";
  embed_ = reader.Take(root + "embed_tokens.weight", {c.vocab, c.hidden});
  final_norm_ = reader.Take(root + "norm.weight", {c.hidden});
  if (c.tied_embeddings) {
    head_ = embed_;
    if (reader.Has("lm_head.weight"))
      LogWarning(checkpoint_.directory() + ": lm_head.weight is not used, the head is tied");
    reader.IgnorePrefix("lm_head.");
  } else {
    head_ = reader.Take("lm_head.weight", {c.vocab, c.hidden});
  }
  reader.IgnorePrefix("mtp.");
  if (c.vision.has_value() && root == nested) {
    tower_.emplace(reader, "model.visual.", c, io_);
  } else {
    reader.IgnorePrefix("model.visual.");
  }
  reader.IgnoreSuffix(".rotary_emb.inv_freq");

  layers_.resize(static_cast<size_t>(c.layers));
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].type = c.layer_types[i];
    FLUVIAL_RETURN_IF_ERROR(LoadLayer(reader, root + "layers." + std::to_string(i) + ".", layers_[i]));
  }
  FLUVIAL_RETURN_IF_ERROR(reader.Finish());
  for (auto& copy : reader.TakeAlignedCopies()) copies_.push_back(std::move(copy));
  for (const weights::CheckpointTensor& t : checkpoint_.tensors()) {
    int64_t n = 1;
    for (const int64_t d : t.entry.shape) n *= d;
    parameters_ += n;
  }

  cache_spec_.kv = io_;
  cache_spec_.conv = options.conv_dtype.value_or(io_);
  cache_spec_.recurrent = options.recurrent_dtype.value_or(l.state_dtype);
  for (const Layer& layer : layers_) {
    LayerCacheSpec spec;
    if (layer.type == LayerType::kFullAttention) {
      spec.kv_heads = attention_.hkv;
      spec.d_qk = spec.d_v = attention_.d;
    } else {
      spec.conv_channels = static_cast<int32_t>(gdn_.channels());
      spec.conv_width = gdn_.width;
      spec.value_heads = gdn_.hv;
      spec.v = gdn_.v;
      spec.k = gdn_.k;
    }
    cache_spec_.layers.push_back(spec);
  }
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

Qwen3_5::HeadScratch Qwen3_5::TakeHead(Scratch& s, int64_t rows) const {
  HeadScratch out;
  out.rows = s.Take(io_, {rows, config_.hidden});
  if (io_ != DType::kF32) out.logits = s.Take(io_, {rows, config_.vocab});
  return out;
}

Status Qwen3_5::CheckStep(const Step& step) const {
  const int64_t decode = step.decode == nullptr ? 0 : step.decode->tokens();
  const int64_t prefill = step.prefill == nullptr ? 0 : step.prefill->tokens();
  if (step.kv == nullptr || step.caches == nullptr || step.caches->size() != layers_.size()) {
    return Status::InvalidArgument("a step needs a KV plan and one cache per layer");
  }
  if (decode + prefill != step.tokens() || step.kv->tokens() != step.tokens()) {
    return Status::InvalidArgument("a step of " + std::to_string(step.tokens()) + " tokens has plans for " +
                                   std::to_string(decode) + " + " + std::to_string(prefill) + " and " +
                                   std::to_string(step.kv->tokens()));
  }
  if (step.decode != nullptr && step.decode->max_length() > 1) {
    return Status::InvalidArgument("decode sequences of a step have one token each");
  }
  return Status::Ok();
}

Result<size_t> Qwen3_5::WorkspaceBytes(const Step& step) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step));
  Scratch whole, head;
  Take(whole, step.tokens());
  TakeHead(head, step.rows());
  size_t most = 0;
  bool seen_linear = false, seen_full = false;
  for (const Layer& layer : layers_) {
    // Layers of one kind have equal shapes.
    bool& seen = layer.type == LayerType::kFullAttention ? seen_full : seen_linear;
    if (seen) continue;
    seen = true;
    size_t mixer = 0;
    if (layer.type == LayerType::kFullAttention) {
      FLUVIAL_ASSIGN_OR_RETURN(mixer,
                               AttentionBytes(operators_, step, attention_, layer.attention, io_, cache_spec_.kv));
    } else {
      FLUVIAL_ASSIGN_OR_RETURN(
          mixer, GdnBytes(operators_, step, gdn_, layer.gdn, io_, cache_spec_.conv, cache_spec_.recurrent));
    }
    FLUVIAL_ASSIGN_OR_RETURN(const size_t mlp, MlpBytes(operators_, step, layer.mlp, io_));
    most = std::max({most, mixer, mlp});
  }
  if (step.rows() > 0) {
    FLUVIAL_ASSIGN_OR_RETURN(const size_t linear, operators_.LinearBytes(LinearProblem(step.rows(), head_, io_)));
    most = std::max(most, head.bytes() + Arena::Aligned(linear));
  }
  return whole.bytes() + most;
}

Status Qwen3_5::Norm(Stream& stream, const TensorView& weight, const TensorView& x, const TensorView& residual,
                     const TensorView& y) const {
  ops::norm::Args args;
  args.form = ops::norm::Form::kRmsZeroCentred;
  args.eps = static_cast<float>(config_.norm_eps);
  args.x = x;
  args.weight = weight;
  args.residual = residual;
  args.y = y;
  return ops::norm::Run(stream, args);
}

Status Qwen3_5::Head(const BlockContext& c, const TensorView& hidden) {
  const int64_t rows = c.step.rows();
  if (rows == 0) return Status::Ok();
  Scratch scratch(&c.arena);
  HeadScratch t = TakeHead(scratch, rows);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(c.stream, hidden, c.step.logit_rows, t.rows));
  FLUVIAL_RETURN_IF_ERROR(Norm(c.stream, final_norm_, t.rows, {}, t.rows));
  // Logits are rounded to the model's type, then widened for the sampler.
  const TensorView logits = io_ == DType::kF32 ? c.step.logits : t.logits;
  FLUVIAL_RETURN_IF_ERROR(c.operators.Linear(c.stream, t.rows, head_, {}, logits, c.arena));
  if (io_ == DType::kF32) return Status::Ok();
  return ops::elementwise::Cast(c.stream, logits, c.step.logits);
}

Status Qwen3_5::Forward(Stream& stream, const Step& step, Arena& arena) {
  FLUVIAL_RETURN_IF_ERROR(CheckStep(step));
  if (step.tokens() == 0) return Status::Ok();
  Scratch scratch(&arena);
  const StepScratch t = Take(scratch, step.tokens());
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const BlockContext c{stream, operators_, arena, step, io_, static_cast<float>(config_.norm_eps)};

  FLUVIAL_RETURN_IF_ERROR(ops::elementwise::GatherRows(stream, embed_, step.ids, t.hidden));
  FLUVIAL_RETURN_IF_ERROR(PlaceFeatures(stream, step, t.hidden));
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Tables(stream, rope_, step.positions, t.cos, t.sin));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const LayerCache& cache = (*step.caches)[i];
    // The residual sum of the layer before happens inside this layer's first norm.
    FLUVIAL_RETURN_IF_ERROR(i == 0 ? Norm(stream, layer.input_norm, t.hidden, {}, t.normed)
                                   : Norm(stream, layer.input_norm, t.block, t.hidden, t.normed));
    if (step.observer != nullptr) (*step.observer)(static_cast<int>(i), t.hidden);
    FLUVIAL_RETURN_IF_ERROR(layer.type == LayerType::kFullAttention
                                ? Attention(c, attention_, layer.attention, cache, t.cos, t.sin, t.normed, t.block)
                                : Gdn(c, gdn_, layer.gdn, cache, t.normed, t.block));
    FLUVIAL_RETURN_IF_ERROR(Norm(stream, layer.post_norm, t.block, t.hidden, t.normed));
    FLUVIAL_RETURN_IF_ERROR(Mlp(c, layer.mlp, t.normed, t.block));
  }
  if (!layers_.empty()) FLUVIAL_RETURN_IF_ERROR(ops::elementwise::Add(stream, t.hidden, t.block, t.hidden));
  if (step.observer != nullptr) (*step.observer)(static_cast<int>(layers_.size()), t.hidden);
  return Head(c, t.hidden);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadQwen3_5(const std::string& directory, weights::ModelConfig config,
                                           const LoadOptions& options, Stream& stream) {
  if (stream.device().kind != DeviceKind::kCpu) {
    return Status::Refused(std::string(weights::Name(config.architecture)) +
                           " runs on the CPU only so far: use --device cpu");
  }
  FLUVIAL_ASSIGN_OR_RETURN(weights::Checkpoint checkpoint, weights::Checkpoint::Open(directory));
  DType io = options.dtype.value_or(config.dtype.value_or(DType::kBF16));
  if (!options.dtype && !config.dtype && !checkpoint.tensors().empty()) io = checkpoint.tensors()[0].entry.dtype;
  if (io != DType::kF32 && io != DType::kBF16 && io != DType::kF16) {
    return Status::InvalidArgument("a model cannot run in " + std::string(Name(io)) +
                                   ": use --dtype float32, bfloat16 or float16");
  }
  FLUVIAL_ASSIGN_OR_RETURN(Operators operators, Operators::Create(stream.device(), options.backends));
  auto model = std::make_unique<Qwen3_5>(std::move(checkpoint), std::move(config), io, std::move(operators));
  FLUVIAL_RETURN_IF_ERROR(model->Load(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace fluvial::models
