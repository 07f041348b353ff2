// SPDX-License-Identifier: Apache-2.0
#include "models/kda_layer.h"

#include <utility>

namespace fluvial::models {
namespace {

using weights::ModelConfig;
using weights::WeightReader;

/// [C, 1, W] or [C, W] as [C, W].
TensorView TakeConv(weights::WeightReader& reader, const std::string& name, int64_t channels, int64_t width) {
  const std::vector<int64_t>* shape = reader.ShapeOf(name);
  TensorView t = shape != nullptr && shape->size() == 2 ? reader.Take(name, {channels, width})
                                                        : reader.Take(name, {channels, 1, width});
  if (t.defined()) t = TensorView(t.data, t.dtype, {channels, width});
  return t;
}

TensorView LoadConv(WeightReader& reader, const KdaDims& d, const std::string& prefix, bool in_fp32, DType io,
                    WeightCopies& copies) {
  const int64_t inner = d.inner();
  std::vector<TensorView> parts;
  if (reader.Has(prefix + "conv1d.weight")) {
    parts.push_back(TakeConv(reader, prefix + "conv1d.weight", 3 * inner, d.width));
  } else {
    for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      parts.push_back(TakeConv(reader, prefix + name, inner, d.width));
    }
  }
  bool stored_in_fp32 = true;
  for (const TensorView& p : parts) {
    if (!p.defined()) return {};
    stored_in_fp32 = stored_in_fp32 && p.dtype == DType::kF32;
  }
  const DType dtype = in_fp32 || stored_in_fp32 ? DType::kF32 : io;
  if (parts.size() == 1) return copies.As(parts[0], dtype);
  std::vector<std::vector<uint64_t>> memory;
  memory.emplace_back((static_cast<size_t>(3 * inner * d.width) * SizeOf(dtype) + 7) / 8);
  const TensorView conv(memory[0].data(), dtype, {3 * inner, d.width});
  copies.Keep(std::move(memory));
  int64_t at = 0;
  for (const TensorView& p : parts) {
    for (int64_t i = 0; i < p.elements(); ++i) {
      StoreFromDouble(conv.data, dtype, at++, LoadAsDouble(p.data, p.dtype, i));
    }
  }
  return conv;
}

void LoadKda(WeightReader& reader, const KdaDims& dims, const std::string& p, bool conv_in_fp32, DType io,
             WeightCopies& copies, KdaWeights& w) {
  const int64_t h = dims.hidden, inner = dims.inner(), d = dims.dim, heads = dims.heads;
  w.q = reader.Take(p + "q_proj.weight", {inner, h});
  w.k = reader.Take(p + "k_proj.weight", {inner, h});
  w.v = reader.Take(p + "v_proj.weight", {inner, h});
  w.conv = LoadConv(reader, dims, p, conv_in_fp32, io, copies);
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
  w.a_log = copies.As(a_log, DType::kF32);
  if (w.a_log.defined()) w.a_log = TensorView(w.a_log.data, DType::kF32, {heads});
  w.dt_bias = copies.As(reader.Take(f + "dt_bias", {inner}), DType::kF32);
  if (w.dt_bias.defined()) w.dt_bias = TensorView(w.dt_bias.data, DType::kF32, {heads, d});
}

void LoadMla(WeightReader& reader, const MlaDims& d, const std::string& p, MlaWeights& w) {
  const int64_t h = d.hidden, heads = d.heads, qk = int64_t{d.nope} + d.rope;
  if (d.query_rank > 0) {
    w.q_a = reader.Take(p + "q_a_proj.weight", {d.query_rank, h});
    w.q_a_norm = reader.Take(p + "q_a_layernorm.weight", {d.query_rank});
    w.q_b = reader.Take(p + "q_b_proj.weight", {heads * qk, d.query_rank});
  } else {
    w.q = reader.Take(p + "q_proj.weight", {heads * qk, h});
  }
  w.kv_a = reader.Take(p + "kv_a_proj_with_mqa.weight", {d.width(), h});
  w.kv_a_norm = reader.Take(p + "kv_a_layernorm.weight", {d.rank});
  w.kv_b = reader.Take(p + "kv_b_proj.weight", {heads * (int64_t{d.nope} + d.v), d.rank});
  w.o = reader.Take(p + "o_proj.weight", {h, heads * d.v});
}

Status LoadFeedForward(WeightReader& reader, const ModelConfig& c, const MoeDims& moe, const std::string& prefix,
                       const KdaNaming& naming, WeightCopies& copies, KdaLayer& layer) {
  const auto limit = static_cast<float>(c.swiglu_limit);
  const auto take_mlp = [&](const std::string& p, int64_t inter, MlpWeights& w) {
    w.gate = reader.Take(p + "gate_proj.weight", {inter, c.hidden});
    w.up = reader.Take(p + "up_proj.weight", {inter, c.hidden});
    w.down = reader.Take(p + "down_proj.weight", {c.hidden, inter});
    w.limit = limit;
  };
  if (!layer.sparse) {
    // transformers saves the dense layers of Kimi under the experts' prefix, too.
    const std::string saved = prefix + naming.moe;
    take_mlp(reader.Has(saved + "gate_proj.weight") ? saved : prefix + "mlp.", c.intermediate, layer.mlp);
    return Status::Ok();
  }
  const std::string p = reader.Has(prefix + "mlp.gate.weight") ? prefix + "mlp." : prefix + naming.moe;
  MoeWeights& w = layer.moe;
  w.router = reader.Take(p + "gate.weight", {moe.router.experts, c.hidden});
  w.router_bias = copies.As(reader.Take(p + "gate.e_score_correction_bias", {moe.router.experts}), DType::kF32);
  if (moe.shared_inter > 0) take_mlp(p + "shared_experts.", moe.shared_inter, w.shared);
  return TakeExperts(reader, p + "experts.", moe, naming.experts, ops::moe::Layout::kOutputMajor, w);
}

}  // namespace

KdaModelDims::KdaModelDims(const ModelConfig& c) {
  kda.hidden = mla.hidden = moe.hidden = c.hidden;
  kda.heads = static_cast<int32_t>(c.linear.key_heads);
  kda.dim = static_cast<int32_t>(c.linear.key_dim);
  kda.width = static_cast<int32_t>(c.linear.conv_kernel);
  if (c.linear.gate_lower_bound) kda.lower_bound = static_cast<float>(*c.linear.gate_lower_bound);
  mla.heads = static_cast<int32_t>(c.heads);
  mla.nope = static_cast<int32_t>(c.latent.nope);
  mla.rope = static_cast<int32_t>(c.latent.rope);
  mla.v = static_cast<int32_t>(c.latent.v);
  mla.rank = static_cast<int32_t>(c.latent.rank);
  mla.query_rank = static_cast<int32_t>(c.latent.query_rank);
  mla.norm_eps = static_cast<float>(c.latent.norm_eps);
  moe.inter = c.moe.intermediate;
  moe.shared_inter = c.moe.shared_intermediate;
  moe.limit = static_cast<float>(c.swiglu_limit);
  moe.router.scoring = ops::moe::Scoring::kSigmoid;
  moe.router.experts = static_cast<int32_t>(c.moe.experts);
  moe.router.per_token = static_cast<int32_t>(c.moe.per_token);
  moe.router.groups = static_cast<int32_t>(c.moe.groups);
  moe.router.groups_kept = static_cast<int32_t>(c.moe.groups_kept);
  moe.router.renormalise = c.moe.renormalise;
  moe.router.scale = static_cast<float>(c.moe.scale);
}

Status TakeKdaLayer(WeightReader& reader, const ModelConfig& c, const KdaModelDims& d, const KdaNaming& naming,
                    const std::string& prefix, int64_t index, DType io, WeightCopies& copies, KdaLayer& layer) {
  layer.full_attention = c.layer_types[static_cast<size_t>(index)] == weights::LayerType::kFullAttention;
  layer.sparse = c.HasExperts(index);
  layer.input_norm = reader.Take(prefix + "input_layernorm.weight", {c.hidden});
  layer.post_norm = reader.Take(prefix + "post_attention_layernorm.weight", {c.hidden});
  if (layer.full_attention) {
    LoadMla(reader, d.mla, prefix + "self_attn.", layer.mla);
  } else {
    LoadKda(reader, d.kda, prefix + "self_attn.", naming.conv_in_fp32, io, copies, layer.kda);
  }
  return LoadFeedForward(reader, c, d.moe, prefix, naming, copies, layer);
}

Status TakeKdaModel(WeightReader& reader, const ModelConfig& c, const KdaModelDims& d, const KdaNaming& naming,
                    DType io, WeightCopies& copies, KdaModelWeights& w) {
  w.embed = reader.Take(naming.root + "embed_tokens.weight", {c.vocab, c.hidden});
  w.head.form = ops::norm::Form::kRms;
  w.head.norm = reader.Take(naming.root + "norm.weight", {c.hidden});
  w.head.lm_head = TakeHead(reader, c, w.embed);
  reader.IgnoreSuffix(".rotary_emb.inv_freq");
  // Layers after the last one are multi-token prediction: known, not used.
  for (int64_t i = 0; i < c.mtp_layers; ++i) {
    reader.IgnorePrefix(naming.root + "layers." + std::to_string(c.layers + i) + ".");
  }
  w.layers.resize(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i) {
    if (c.HasExperts(i)) FLUVIAL_RETURN_IF_ERROR(ops::moe::Validate(d.moe.router));
    FLUVIAL_RETURN_IF_ERROR(TakeKdaLayer(reader, c, d, naming, naming.root + "layers." + std::to_string(i) + ".", i, io,
                                         copies, w.layers[static_cast<size_t>(i)]));
  }
  return Status::Ok();
}

CacheSpec KdaCacheSpec(const ModelConfig& c, const KdaModelDims& d, DType io, const LoadOptions& options) {
  CacheSpec cache;
  cache.kv = io;
  cache.conv = options.conv_dtype.value_or(io);
  cache.recurrent = options.recurrent_dtype.value_or(c.linear.state_dtype);
  for (const weights::LayerType type : c.layer_types) {
    LayerCacheSpec spec;
    if (type == weights::LayerType::kFullAttention) {
      spec.kv_heads = 1;
      spec.d_qk = static_cast<int32_t>(d.mla.width());
    } else {
      spec.conv_channels = static_cast<int32_t>(3 * d.kda.inner());
      spec.conv_width = d.kda.width;
      spec.value_heads = d.kda.heads;
      spec.v = spec.k = d.kda.dim;
    }
    cache.layers.push_back(spec);
  }
  return cache;
}

Result<size_t> KdaMixerBytes(Operators& operators, const Step& step, const KdaModelDims& d, const KdaLayer& layer,
                             const CacheSpec& cache, DType io, int32_t selected) {
  if (layer.full_attention) return MlaBytes(operators, step, d.mla, layer.mla, io, cache.kv, selected);
  return KdaBytes(operators, step, d.kda, layer.kda, io, cache.conv, cache.recurrent);
}

Result<size_t> KdaFeedForwardBytes(Operators& operators, const Step& step, const KdaModelDims& d, const KdaLayer& layer,
                                   DType io) {
  return layer.sparse ? MoeBytes(operators, step, d.moe, layer.moe, io) : MlpBytes(operators, step, layer.mlp, io);
}

Status KdaFeedForward(const BlockContext& c, const KdaModelDims& d, const KdaLayer& layer, const TensorView& x,
                      const TensorView& y) {
  return layer.sparse ? Moe(c, d.moe, layer.moe, x, y) : Mlp(c, layer.mlp, x, y);
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
