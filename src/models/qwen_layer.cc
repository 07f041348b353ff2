// SPDX-License-Identifier: Apache-2.0
#include "models/qwen_layer.h"

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

}  // namespace fluvial::models
