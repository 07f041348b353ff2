// SPDX-License-Identifier: Apache-2.0
#include "models/kda_model.h"

#include <algorithm>

namespace fluvial::models {
namespace {

using weights::LayerType;

/// [C, 1, W] or [C, W] as [C, W].
TensorView TakeConv(weights::WeightReader& reader, const std::string& name, int64_t channels, int64_t width) {
  const std::vector<int64_t>* shape = reader.ShapeOf(name);
  TensorView t = shape != nullptr && shape->size() == 2 ? reader.Take(name, {channels, width})
                                                        : reader.Take(name, {channels, 1, width});
  if (t.defined()) t = TensorView(t.data, t.dtype, {channels, width});
  return t;
}

}  // namespace

TensorView KdaModel::LoadConv(weights::WeightReader& reader, const std::string& prefix, bool in_fp32) {
  const int64_t inner = kda_.inner();
  std::vector<TensorView> parts;
  if (reader.Has(prefix + "conv1d.weight")) {
    parts.push_back(TakeConv(reader, prefix + "conv1d.weight", 3 * inner, kda_.width));
  } else {
    for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      parts.push_back(TakeConv(reader, prefix + name, inner, kda_.width));
    }
  }
  bool stored_in_fp32 = true;
  for (const TensorView& p : parts) {
    if (!p.defined()) return {};
    stored_in_fp32 = stored_in_fp32 && p.dtype == DType::kF32;
  }
  const DType dtype = in_fp32 || stored_in_fp32 ? DType::kF32 : io_;
  if (parts.size() == 1) return copies_.As(parts[0], dtype);
  std::vector<std::vector<uint64_t>> memory;
  memory.emplace_back((static_cast<size_t>(3 * inner * kda_.width) * SizeOf(dtype) + 7) / 8);
  const TensorView conv(memory[0].data(), dtype, {3 * inner, kda_.width});
  copies_.Keep(std::move(memory));
  int64_t at = 0;
  for (const TensorView& p : parts) {
    for (int64_t i = 0; i < p.elements(); ++i) {
      StoreFromDouble(conv.data, dtype, at++, LoadAsDouble(p.data, p.dtype, i));
    }
  }
  return conv;
}

void KdaModel::LoadKda(weights::WeightReader& reader, const std::string& p, bool conv_in_fp32, KdaWeights& w) {
  const int64_t h = config_.hidden, inner = kda_.inner(), d = kda_.dim, heads = kda_.heads;
  w.q = reader.Take(p + "q_proj.weight", {inner, h});
  w.k = reader.Take(p + "k_proj.weight", {inner, h});
  w.v = reader.Take(p + "v_proj.weight", {inner, h});
  w.conv = LoadConv(reader, p, conv_in_fp32);
  w.b = reader.Take(p + "b_proj.weight", {heads, h});
  w.g_a = reader.Take(p + "g_a_proj.weight", {d, h});
  w.g_b = reader.Take(p + "g_b_proj.weight", {inner, d});
  w.norm = reader.Take(p + "o_norm.weight", {d});
  w.out = reader.Take(p + "o_proj.weight", {h, inner});
  // Modules of transformers keep the decay gate's weights one level deeper.
  const std::string f = reader.Has(p + "forget_gate.A_log") ? p + "forget_gate." : p;
  w.f_a = reader.Take(f + "f_a_proj.weight", {d, h});
  w.f_b = reader.Take(f + "f_b_proj.weight", {inner, d});
  const std::vector<int64_t>* shape = reader.ShapeOf(f + "A_log");
  const TensorView a_log = shape != nullptr && shape->size() == 4 ? reader.Take(f + "A_log", {1, 1, heads, 1})
                                                                  : reader.Take(f + "A_log", {heads});
  w.a_log = copies_.As(a_log, DType::kF32);
  if (w.a_log.defined()) w.a_log = TensorView(w.a_log.data, DType::kF32, {heads});
  w.dt_bias = copies_.As(reader.Take(f + "dt_bias", {inner}), DType::kF32);
  if (w.dt_bias.defined()) w.dt_bias = TensorView(w.dt_bias.data, DType::kF32, {heads, d});
}

void KdaModel::LoadMla(weights::WeightReader& reader, const std::string& p, MlaWeights& w) {
  const int64_t h = config_.hidden, heads = mla_.heads, qk = int64_t{mla_.nope} + mla_.rope;
  if (mla_.query_rank > 0) {
    w.q_a = reader.Take(p + "q_a_proj.weight", {mla_.query_rank, h});
    w.q_a_norm = reader.Take(p + "q_a_layernorm.weight", {mla_.query_rank});
    w.q_b = reader.Take(p + "q_b_proj.weight", {heads * qk, mla_.query_rank});
  } else {
    w.q = reader.Take(p + "q_proj.weight", {heads * qk, h});
  }
  w.kv_a = reader.Take(p + "kv_a_proj_with_mqa.weight", {mla_.width(), h});
  w.kv_a_norm = reader.Take(p + "kv_a_layernorm.weight", {mla_.rank});
  w.kv_b = reader.Take(p + "kv_b_proj.weight", {heads * (int64_t{mla_.nope} + mla_.v), mla_.rank});
  w.o = reader.Take(p + "o_proj.weight", {h, heads * mla_.v});
}

Status KdaModel::LoadFeedForward(weights::WeightReader& reader, const std::string& prefix, const Naming& naming,
                                 KdaLayer& layer) {
  const auto limit = static_cast<float>(config_.swiglu_limit);
  const auto take_mlp = [&](const std::string& p, int64_t inter, MlpWeights& w) {
    w.gate = reader.Take(p + "gate_proj.weight", {inter, config_.hidden});
    w.up = reader.Take(p + "up_proj.weight", {inter, config_.hidden});
    w.down = reader.Take(p + "down_proj.weight", {config_.hidden, inter});
    w.limit = limit;
  };
  if (!layer.sparse) {
    // transformers saves the dense layers of Kimi under the experts' prefix, too.
    const std::string saved = prefix + naming.moe;
    take_mlp(reader.Has(saved + "gate_proj.weight") ? saved : prefix + "mlp.", config_.intermediate, layer.mlp);
    return Status::Ok();
  }
  const std::string p = reader.Has(prefix + "mlp.gate.weight") ? prefix + "mlp." : prefix + naming.moe;
  MoeWeights& w = layer.moe;
  w.router = reader.Take(p + "gate.weight", {moe_.router.experts, config_.hidden});
  w.router_bias = copies_.As(reader.Take(p + "gate.e_score_correction_bias", {moe_.router.experts}), DType::kF32);
  if (moe_.shared_inter > 0) take_mlp(p + "shared_experts.", moe_.shared_inter, w.shared);
  return TakeExperts(reader, p + "experts.", moe_, naming.experts, ops::moe::Layout::kOutputMajor, w);
}

Status KdaModel::LoadShared(weights::WeightReader& reader, const Naming& naming) {
  const weights::ModelConfig& c = config_;
  kda_.hidden = mla_.hidden = moe_.hidden = c.hidden;
  kda_.heads = static_cast<int32_t>(c.linear.key_heads);
  kda_.dim = static_cast<int32_t>(c.linear.key_dim);
  kda_.width = static_cast<int32_t>(c.linear.conv_kernel);
  if (c.linear.gate_lower_bound) kda_.lower_bound = static_cast<float>(*c.linear.gate_lower_bound);
  mla_.heads = static_cast<int32_t>(c.heads);
  mla_.nope = static_cast<int32_t>(c.latent.nope);
  mla_.rope = static_cast<int32_t>(c.latent.rope);
  mla_.v = static_cast<int32_t>(c.latent.v);
  mla_.rank = static_cast<int32_t>(c.latent.rank);
  mla_.query_rank = static_cast<int32_t>(c.latent.query_rank);
  mla_.norm_eps = static_cast<float>(c.latent.norm_eps);
  moe_.inter = c.moe.intermediate;
  moe_.shared_inter = c.moe.shared_intermediate;
  moe_.limit = static_cast<float>(c.swiglu_limit);
  moe_.router.scoring = ops::moe::Scoring::kSigmoid;
  moe_.router.experts = static_cast<int32_t>(c.moe.experts);
  moe_.router.per_token = static_cast<int32_t>(c.moe.per_token);
  moe_.router.groups = static_cast<int32_t>(c.moe.groups);
  moe_.router.groups_kept = static_cast<int32_t>(c.moe.groups_kept);
  moe_.router.renormalise = c.moe.renormalise;
  moe_.router.scale = static_cast<float>(c.moe.scale);

  embed_ = reader.Take(naming.root + "embed_tokens.weight", {c.vocab, c.hidden});
  head_.form = ops::norm::Form::kRms;
  head_.norm = reader.Take(naming.root + "norm.weight", {c.hidden});
  head_.lm_head = TakeHead(reader, c, embed_);
  reader.IgnoreSuffix(".rotary_emb.inv_freq");
  // Layers after the last one are multi-token prediction: known, not used.
  for (int64_t i = 0; i < c.mtp_layers; ++i) {
    reader.IgnorePrefix(naming.root + "layers." + std::to_string(c.layers + i) + ".");
  }

  layers_.resize(static_cast<size_t>(c.layers));
  bool any_sparse = false;
  for (size_t i = 0; i < layers_.size(); ++i) {
    KdaLayer& layer = layers_[i];
    const std::string prefix = naming.root + "layers." + std::to_string(i) + ".";
    layer.type = c.layer_types[i];
    layer.sparse = c.HasExperts(static_cast<int64_t>(i));
    if (layer.sparse && !any_sparse) FLUVIAL_RETURN_IF_ERROR(ops::moe::Validate(moe_.router));
    any_sparse = any_sparse || layer.sparse;
    layer.input_norm = reader.Take(prefix + "input_layernorm.weight", {c.hidden});
    layer.post_norm = reader.Take(prefix + "post_attention_layernorm.weight", {c.hidden});
    if (layer.type == LayerType::kFullAttention) {
      LoadMla(reader, prefix + "self_attn.", layer.mla);
    } else {
      LoadKda(reader, prefix + "self_attn.", naming.conv_in_fp32, layer.kda);
    }
    FLUVIAL_RETURN_IF_ERROR(LoadFeedForward(reader, prefix, naming, layer));
  }
  return Status::Ok();
}

Status KdaModel::FinishLoading(weights::WeightReader& reader, const LoadOptions& options) {
  FLUVIAL_RETURN_IF_ERROR(reader.Finish());
  copies_.Keep(reader.TakeAlignedCopies());
  parameters_ = CountParameters(checkpoint_);
  cache_spec_.kv = io_;
  cache_spec_.conv = options.conv_dtype.value_or(io_);
  cache_spec_.recurrent = options.recurrent_dtype.value_or(config_.linear.state_dtype);
  for (const KdaLayer& layer : layers_) {
    LayerCacheSpec spec;
    if (layer.type == LayerType::kFullAttention) {
      spec.kv_heads = 1;
      spec.d_qk = static_cast<int32_t>(mla_.width());
    } else {
      spec.conv_channels = static_cast<int32_t>(3 * kda_.inner());
      spec.conv_width = kda_.width;
      spec.value_heads = kda_.heads;
      spec.v = spec.k = kda_.dim;
    }
    cache_spec_.layers.push_back(spec);
  }
  return Status::Ok();
}

Result<size_t> KdaModel::MixerBytes(const Step& step, const KdaLayer& layer, int32_t selected) {
  if (layer.type == LayerType::kFullAttention) {
    return MlaBytes(operators_, step, mla_, layer.mla, io_, cache_spec_.kv, selected);
  }
  return KdaBytes(operators_, step, kda_, layer.kda, io_, cache_spec_.conv, cache_spec_.recurrent);
}

Result<size_t> KdaModel::FeedForwardBytes(const Step& step, const KdaLayer& layer) {
  return layer.sparse ? MoeBytes(operators_, step, moe_, layer.moe, io_) : MlpBytes(operators_, step, layer.mlp, io_);
}

Status KdaModel::FeedForward(const BlockContext& c, const KdaLayer& layer, const TensorView& x, const TensorView& y) {
  return layer.sparse ? Moe(c, moe_, layer.moe, x, y) : Mlp(c, layer.mlp, x, y);
}

Result<OpenedModel> OpenModel(const std::string& directory, const weights::ModelConfig& config,
                              const LoadOptions& options, Stream& stream) {
  if (stream.device().kind != DeviceKind::kCpu) {
    return Status::Refused(std::string(weights::Name(config.architecture)) +
                           " runs on the CPU only so far: use --device cpu");
  }
  FLUVIAL_ASSIGN_OR_RETURN(weights::Checkpoint checkpoint, weights::Checkpoint::Open(directory));
  FLUVIAL_ASSIGN_OR_RETURN(const DType io, ActivationType(options, config, checkpoint));
  FLUVIAL_ASSIGN_OR_RETURN(Operators operators, Operators::Create(stream.device(), options.backends));
  return OpenedModel{std::move(checkpoint), io, std::move(operators)};
}

}  // namespace fluvial::models
