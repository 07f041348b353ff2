// SPDX-License-Identifier: Apache-2.0
#include "models/qwen_layer.h"

#include <algorithm>

namespace fluvial::models {
namespace {

using weights::ModelConfig;
using weights::WeightReader;

void TakeAttention(WeightReader& reader, const ModelConfig& c, const std::string& p, AttentionWeights& a) {
  const int64_t h = c.hidden, d = c.head_dim, q = 2 * c.heads * d, kv = c.kv_heads * d;
  a.q = reader.Take(p + "q_proj.weight", {q, h});
  a.k = reader.Take(p + "k_proj.weight", {kv, h});
  a.v = reader.Take(p + "v_proj.weight", {kv, h});
  a.o = reader.Take(p + "o_proj.weight", {h, c.heads * d});
  a.q_norm = reader.Take(p + "q_norm.weight", {d});
  a.k_norm = reader.Take(p + "k_norm.weight", {d});
  if (!c.attention_bias) return;
  a.q_bias = reader.Take(p + "q_proj.bias", {q});
  a.k_bias = reader.Take(p + "k_proj.bias", {kv});
  a.v_bias = reader.Take(p + "v_proj.bias", {kv});
  a.o_bias = reader.Take(p + "o_proj.bias", {h});
}

void TakeGdn(WeightReader& reader, const ModelConfig& c, const GdnDims& d, const std::string& p, DType io,
             WeightCopies& copies, GdnWeights& g) {
  const int64_t h = c.hidden;
  if (reader.Has(p + "in_proj_qkvz.weight") || reader.Has(p + "in_proj_ba.weight")) {
    g.in_qkvz = reader.Take(p + "in_proj_qkvz.weight", {d.channels() + d.value_dim(), h});
    g.in_ba = reader.Take(p + "in_proj_ba.weight", {int64_t{2} * d.hv, h});
  } else {
    g.in_qkv = reader.Take(p + "in_proj_qkv.weight", {d.channels(), h});
    g.in_z = reader.Take(p + "in_proj_z.weight", {d.value_dim(), h});
    g.in_b = reader.Take(p + "in_proj_b.weight", {d.hv, h});
    g.in_a = reader.Take(p + "in_proj_a.weight", {d.hv, h});
  }
  g.norm = reader.Take(p + "norm.weight", {d.v});
  g.out = reader.Take(p + "out_proj.weight", {h, d.value_dim()});
  g.conv = copies.As(reader.Take(p + "conv1d.weight", {d.channels(), 1, d.width}), io);
  if (g.conv.defined()) g.conv = TensorView(g.conv.data, io, {d.channels(), d.width});
  g.a_log = copies.As(reader.Take(p + "A_log", {d.hv}), DType::kF32);
  g.dt_bias = copies.As(reader.Take(p + "dt_bias", {d.hv}), DType::kF32);
}

void TakeMlp(WeightReader& reader, const std::string& p, int64_t hidden, int64_t inter, MlpWeights& m) {
  m.gate = reader.Take(p + "gate_proj.weight", {inter, hidden});
  m.up = reader.Take(p + "up_proj.weight", {inter, hidden});
  m.down = reader.Take(p + "down_proj.weight", {hidden, inter});
}

Status TakeMoe(WeightReader& reader, const MoeDims& d, const std::string& p, MoeWeights& m) {
  m.router = reader.Take(p + "gate.weight", {d.router.experts, d.hidden});
  if (d.shared_inter > 0) {
    TakeMlp(reader, p + "shared_expert.", d.hidden, d.shared_inter, m.shared);
    m.shared_gate = reader.Take(p + "shared_expert_gate.weight", {1, d.hidden});
  }
  // Released and saved stacks of this family are output-major.
  return TakeExperts(reader, p + "experts.", d, kProjNames, ops::moe::Layout::kOutputMajor, m);
}

}  // namespace

QwenDims::QwenDims(const ModelConfig& c, DType io) {
  const auto& l = c.linear;
  gdn = {c.hidden,
         static_cast<int32_t>(l.key_heads),
         static_cast<int32_t>(l.value_heads),
         static_cast<int32_t>(l.key_dim),
         static_cast<int32_t>(l.value_dim),
         static_cast<int32_t>(l.conv_kernel)};
  attention = {c.hidden, static_cast<int32_t>(c.heads), static_cast<int32_t>(c.kv_heads),
               static_cast<int32_t>(c.head_dim)};
  moe.hidden = c.hidden;
  moe.inter = c.moe.intermediate;
  moe.shared_inter = c.moe.shared_intermediate;
  moe.router.scoring = ops::moe::Scoring::kSoftmax;
  moe.router.experts = static_cast<int32_t>(c.moe.experts);
  moe.router.per_token = static_cast<int32_t>(c.moe.per_token);
  moe.router.renormalise = c.moe.renormalise;
  moe.router.weight_type = io;
}

Status TakeQwenLayer(WeightReader& reader, const ModelConfig& c, const QwenDims& d, const std::string& prefix,
                     int64_t index, DType io, WeightCopies& copies, QwenLayer& layer) {
  layer.full_attention = c.layer_types[static_cast<size_t>(index)] == weights::LayerType::kFullAttention;
  layer.sparse = c.HasExperts(index);
  layer.input_norm = reader.Take(prefix + "input_layernorm.weight", {c.hidden});
  layer.post_norm = reader.Take(prefix + "post_attention_layernorm.weight", {c.hidden});
  if (layer.full_attention) {
    TakeAttention(reader, c, prefix + "self_attn.", layer.attention);
  } else {
    TakeGdn(reader, c, d.gdn, prefix + "linear_attn.", io, copies, layer.gdn);
  }
  if (layer.sparse) return TakeMoe(reader, d.moe, prefix + "mlp.", layer.moe);
  TakeMlp(reader, prefix + "mlp.", c.hidden, c.intermediate, layer.mlp);
  return Status::Ok();
}

Status TakeQwenWeights(WeightReader& reader, const ModelConfig& c, const QwenDims& d, DType io, WeightCopies& copies,
                       QwenWeights& w) {
  // Files of the text-only class drop "language_model.".
  const std::string nested = "model.language_model.";
  const std::string root = reader.Has(nested + "embed_tokens.weight") ? nested : "model.";
  w.embed = reader.Take(root + "embed_tokens.weight", {c.vocab, c.hidden});
  w.head.norm = reader.Take(root + "norm.weight", {c.hidden});
  w.head.lm_head = TakeHead(reader, c, w.embed);
  reader.IgnorePrefix("mtp.");
  reader.IgnorePrefix("model.visual.");
  reader.IgnorePrefix("visual.");
  reader.IgnoreSuffix(".rotary_emb.inv_freq");
  w.layers.resize(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i) {
    FLUVIAL_RETURN_IF_ERROR(TakeQwenLayer(reader, c, d, root + "layers." + std::to_string(i) + ".", i, io, copies,
                                          w.layers[static_cast<size_t>(i)]));
  }
  return Status::Ok();
}

Status TakeQwenMtp(WeightReader& reader, const ModelConfig& c, const QwenDims& d, DType io) {
  const auto full = std::find(c.layer_types.begin(), c.layer_types.end(), weights::LayerType::kFullAttention);
  if (c.mtp_layers == 0 || full == c.layer_types.end()) return Status::Ok();
  reader.Take("mtp.pre_fc_norm_embedding.weight", {c.hidden});
  reader.Take("mtp.pre_fc_norm_hidden.weight", {c.hidden});
  reader.Take("mtp.fc.weight", {c.hidden, 2 * c.hidden});
  reader.Take("mtp.norm.weight", {c.hidden});
  for (int64_t i = 0; i < c.mtp_layers; ++i) {
    // Layers like the full-attention ones of the model.
    QwenLayer layer;
    WeightCopies copies;
    FLUVIAL_RETURN_IF_ERROR(TakeQwenLayer(reader, c, d, "mtp.layers." + std::to_string(i) + ".",
                                          full - c.layer_types.begin(), io, copies, layer));
  }
  return Status::Ok();
}

CacheSpec QwenCacheSpec(const ModelConfig& c, const QwenDims& d, DType io, const LoadOptions& options) {
  CacheSpec out;
  out.kv = io;
  out.conv = options.conv_dtype.value_or(io);
  out.recurrent = options.recurrent_dtype.value_or(c.linear.state_dtype);
  for (const weights::LayerType type : c.layer_types) {
    LayerCacheSpec spec;
    if (type == weights::LayerType::kFullAttention) {
      spec.kv_heads = d.attention.hkv;
      spec.d_qk = spec.d_v = d.attention.d;
    } else {
      spec.conv_channels = static_cast<int32_t>(d.gdn.channels());
      spec.conv_width = d.gdn.width;
      spec.value_heads = d.gdn.hv;
      spec.v = d.gdn.v;
      spec.k = d.gdn.k;
    }
    out.layers.push_back(spec);
  }
  return out;
}

}  // namespace fluvial::models
