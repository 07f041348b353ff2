// SPDX-License-Identifier: Apache-2.0
// Defaults are those of KimiLinearConfig and Glm5NextTextConfig (transformers 5.24).
#include "weights/model_config_kda.h"

#include <algorithm>

namespace fluvial::weights {
namespace {

constexpr int64_t kMaxCount = 1 << 16;
constexpr int64_t kMaxWidth = 1 << 24;

Status Contradiction(const std::string& file, const std::string& what) {
  return Status::UnusableModel(file + ": " + what + "; correct the file or download it again");
}

Status NotSupported(const std::string& file, const std::string& what) {
  return Status::UnusableModel(file + ": " + what + " is not supported; use a checkpoint without it");
}

/// Per layer "a" or "b" from a list of names; `names` maps spellings to the answer.
Status ReadKinds(const std::vector<std::string>& list, const char* key, const std::string& file, int64_t layers,
                 std::initializer_list<std::pair<std::string_view, bool>> names, std::vector<bool>& out) {
  if (static_cast<int64_t>(list.size()) != layers) {
    return Contradiction(file, std::string(key) + " has " + std::to_string(list.size()) + " entries for " +
                                   std::to_string(layers) + " layers");
  }
  out.clear();
  for (const std::string& name : list) {
    const auto* found = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == name; });
    if (found == names.end()) {
      std::string known;
      for (const auto& n : names) known += (known.empty() ? "" : ", ") + std::string(n.first);
      return Status::UnusableModel(file + ": " + key + " entry '" + name + "' is not known; known are " + known);
    }
    out.push_back(found->second);
  }
  return Status::Ok();
}

/// The two 1-based lists of the released Kimi files; together they must name every layer once.
Status ReadNumberedLayers(const JsonObject& linear, const std::string& file, ModelConfig& c) {
  std::vector<int> seen(static_cast<size_t>(c.layers), 0);
  c.layer_types.assign(static_cast<size_t>(c.layers), LayerType::kFullAttention);
  for (const auto& [key, type] : {std::pair{"kda_layers", LayerType::kLinearAttention},
                                  std::pair{"full_attn_layers", LayerType::kFullAttention}}) {
    for (const int64_t number : linear.Ints(key)) {
      if (number < 1 || number > c.layers) {
        return Contradiction(file, "linear_attn_config." + std::string(key) + " names layer " + std::to_string(number) +
                                       " of " + std::to_string(c.layers) + " (counted from 1)");
      }
      c.layer_types[static_cast<size_t>(number - 1)] = type;
      ++seen[static_cast<size_t>(number - 1)];
    }
  }
  if (!std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; })) {
    return Contradiction(file, "linear_attn_config.kda_layers and full_attn_layers must name every layer once");
  }
  return Status::Ok();
}

Status ReadLayers(const JsonObject& text, const std::string& file, ModelConfig& c) {
  const JsonObject linear = text.Object("linear_attn_config");
  const bool kimi = c.architecture == Architecture::kKimiLinear;
  if (text.Has("layer_types")) {
    std::vector<bool> is_linear;
    FLUVIAL_RETURN_IF_ERROR(ReadKinds(text.Strings("layer_types"), "layer_types", file, c.layers,
                                      {{"linear_attention", true},
                                       {"full_attention", false},
                                       {"indexed_attention", false},
                                       {"deepseek_sparse_attention", false}},
                                      is_linear));
    for (const bool l : is_linear) {
      c.layer_types.push_back(l ? LayerType::kLinearAttention : LayerType::kFullAttention);
    }
    return Status::Ok();
  }
  if (kimi && linear.Has("kda_layers") && linear.Has("full_attn_layers")) return ReadNumberedLayers(linear, file, c);
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool full = kimi ? i > 0 && i % 4 == 0 : i % 4 == 3;
    c.layer_types.push_back(full ? LayerType::kFullAttention : LayerType::kLinearAttention);
  }
  return Status::Ok();
}

Status ReadLinear(const JsonObject& text, const std::string& file, ModelConfig& c) {
  const JsonObject nested = text.Object("linear_attn_config");
  const bool kimi = c.architecture == Architecture::kKimiLinear;
  LinearAttentionConfig& l = c.linear;
  const int64_t heads = text.Int("linear_num_heads", kimi ? 32 : 64, 1, 1 << 14);
  l.key_heads = l.value_heads = nested.Int("num_heads", heads, 1, 1 << 14);
  const int64_t dim = text.Int("linear_head_dim", 128, 1, 1 << 14);
  l.key_dim = l.value_dim = nested.Int("head_dim", dim, 1, 1 << 14);
  const int64_t width = text.Int("linear_conv_kernel_dim", 4, 1, 64);
  l.conv_kernel = nested.Int("short_conv_kernel_size", width, 1, 64);
  l.state_dtype = DType::kF32;
  if (kimi) return Status::Ok();
  // An explicit null is "no bound", unless the nested safe_gate (default true) brings the bound back.
  double bound = -5.0;
  bool bounded = true;
  for (const auto& [object, key] : {std::pair{&text, "linear_lower_bound"}, std::pair{&nested, "gate_lower_bound"}}) {
    if (object->Has(key)) {
      bound = object->Float(key, bound);
      bounded = true;
    } else if (object->IsNull(key)) {
      bounded = false;
    }
  }
  if (!bounded && text.Has("linear_attn_config") && nested.Bool("safe_gate", true)) bounded = true;
  if (!bounded) return Status::Ok();
  if (!(bound >= -5.0 && bound < 0)) {
    return Contradiction(file, "the gate's lower bound is " + std::to_string(bound) + ", it must lie in [-5, 0)");
  }
  l.gate_lower_bound = bound;
  return Status::Ok();
}

Status ReadLatent(const JsonObject& text, const std::string& file, ModelConfig& c) {
  const bool kimi = c.architecture == Architecture::kKimiLinear;
  LatentAttentionConfig& a = c.latent;
  a.rank = text.Int("kv_lora_rank", 512, 1, kMaxWidth);
  a.query_rank = text.Int("q_lora_rank", kimi ? 0 : 1536, 0, kMaxWidth);
  a.nope = text.Int("qk_nope_head_dim", kimi ? 128 : 256, 1, 1 << 14);
  a.rope = text.Int("qk_rope_head_dim", kimi ? 64 : 0, 0, 1 << 14);
  a.v = text.Int("v_head_dim", kimi ? 128 : 256, 1, 1 << 14);
  // KimiLinearAttention does not pass the config's eps to the norms of its latents, Glm5NextTextAttention does.
  a.norm_eps = kimi ? 1e-6 : c.norm_eps;
  c.head_dim = a.qk();
  if (c.kv_heads != c.heads) {
    return Contradiction(file, "num_key_value_heads " + std::to_string(c.kv_heads) + " is not num_attention_heads " +
                                   std::to_string(c.heads));
  }
  if (kimi && !text.Bool("mla_use_nope", true)) return NotSupported(file, "position encoding (mla_use_nope false)");
  if (!kimi && a.rope != 0) return Contradiction(file, "qk_rope_head_dim is " + std::to_string(a.rope) + ", not 0");
  if (!kimi && a.query_rank == 0) return Contradiction(file, "q_lora_rank is missing");
  return Status::Ok();
}

Status ReadExperts(const JsonObject& text, const std::string& file, ModelConfig& c) {
  const bool kimi = c.architecture == Architecture::kKimiLinear;
  MoeConfig& m = c.moe;
  const auto either = [&](const char* first, const char* second, int64_t fallback, int64_t low, int64_t high) {
    return text.Int(first, text.Int(second, fallback, low, high), low, high);
  };
  m.sigmoid = true;
  m.experts = either(kimi ? "num_experts" : "n_routed_experts", "num_local_experts", kimi ? 256 : 288, 0, kMaxCount);
  m.per_token = either("num_experts_per_token", "num_experts_per_tok", 8, 1, 1 << 10);
  m.intermediate = text.Int("moe_intermediate_size", kimi ? 1024 : 2048, 1, kMaxWidth);
  m.shared_intermediate =
      m.intermediate * either(kimi ? "num_shared_experts" : "n_shared_experts", "n_shared_experts", 1, 0, 1 << 10);
  m.renormalise = text.Bool("moe_renormalize", text.Bool("norm_topk_prob", true));
  m.groups = either("num_expert_group", "n_group", 1, 1, kMaxCount);
  m.groups_kept = text.Int("topk_group", 1, 1, kMaxCount);
  m.scale = text.Float("routed_scaling_factor", kimi ? 2.446 : 2.5);
  const std::string scoring = text.String("moe_router_activation_func", text.String("scoring_func", "sigmoid"));
  if (scoring != "sigmoid") return NotSupported(file, "a router with " + scoring);
  if (m.experts > 0 && (m.experts % m.groups != 0 || m.groups_kept > m.groups || m.per_token > m.experts)) {
    return Contradiction(file, std::to_string(m.experts) + " experts in " + std::to_string(m.groups) + " groups, " +
                                   std::to_string(m.groups_kept) + " kept, do not give " + std::to_string(m.per_token) +
                                   " experts per token");
  }
  std::vector<bool> sparse;
  if (text.Has("mlp_layer_types")) {
    FLUVIAL_RETURN_IF_ERROR(ReadKinds(text.Strings("mlp_layer_types"), "mlp_layer_types", file, c.layers,
                                      {{"dense", false}, {"sparse", true}}, sparse));
  } else {
    const int64_t dense = kimi ? text.Int("first_k_dense_replace", 1, 0, kMaxCount) : 3;
    const int64_t step = kimi ? text.Int("moe_layer_freq", 1, 1, kMaxCount) : 1;
    for (int64_t i = 0; i < c.layers; ++i) sparse.push_back(i >= dense && i % step == 0);
  }
  for (size_t i = 0; i < sparse.size(); ++i) {
    if (!sparse[i]) m.dense_layers.push_back(static_cast<int64_t>(i));
  }
  return Status::Ok();
}

Status ReadIndexer(const JsonObject& text, const std::string& file, ModelConfig& c) {
  IndexerConfig& x = c.indexer;
  x.topk = text.Int("index_topk", 2048, 1, 1 << 20);
  x.heads = text.Int("index_n_heads", 32, 1, 1 << 14);
  x.dim = text.Int("index_head_dim", 128, 1, 1 << 14);
  x.pool = text.Int("index_kpool", 16, 1, 1 << 14);
  x.select_tail = text.Bool("index_kpool_always_select_tail", true);
  // Without the tail the first queries would see nothing at all.
  if (!x.select_tail) return NotSupported(file, "index_kpool_always_select_tail false");
  if (x.topk % x.pool != 0) {
    return Contradiction(
        file, "index_topk " + std::to_string(x.topk) + " is not a multiple of index_kpool " + std::to_string(x.pool));
  }
  const size_t layers = static_cast<size_t>(c.layers);
  if (text.Has("indexer_types")) {
    FLUVIAL_RETURN_IF_ERROR(ReadKinds(text.Strings("indexer_types"), "indexer_types", file, c.layers,
                                      {{"full", false}, {"shared", true}}, x.shared));
  } else if (const std::string pattern = text.String("index_topk_pattern"); !pattern.empty()) {
    if (pattern.size() != layers || pattern.find_first_not_of("FS") != std::string::npos) {
      return Contradiction(file, "index_topk_pattern must have one F or S per layer");
    }
    for (const char p : pattern) x.shared.push_back(p == 'S');
  } else {
    const int64_t frequency = std::max<int64_t>(1, text.Int("index_topk_freq", 1, 0, kMaxCount));
    const int64_t offset = text.Int("index_skip_topk_offset", 2, 0, kMaxCount);
    for (int64_t i = 0; i < c.layers; ++i) x.shared.push_back(std::max<int64_t>(i - offset + 1, 0) % frequency != 0);
  }
  bool found = false;  // a layer whose selection can be shared
  for (size_t i = 0; i < layers; ++i) {
    if (c.layer_types[i] != LayerType::kFullAttention) continue;
    if (x.shared[i] && !found) {
      return Contradiction(file, "layer " + std::to_string(i) +
                                     " shares the selection of a layer before it, but there "
                                     "is none with an indexer");
    }
    found = found || !x.shared[i];
  }
  c.hyper.streams = text.Int("hc_mult", 4, 1, 64);
  c.hyper.eps = text.Float("hc_eps", 1e-6);
  c.hyper.iterations = text.Int("hc_sinkhorn_iters", 20, 1, 1000);
  c.swiglu_limit = text.Float("swiglu_limit", 10.0);
  if (!(c.swiglu_limit > 0)) return Contradiction(file, "swiglu_limit must be positive");
  return Status::Ok();
}

}  // namespace

Status ReadKdaModel(const JsonObject& text, const std::string& file, ModelConfig& c) {
  const bool kimi = c.architecture == Architecture::kKimiLinear;
  c.max_positions = text.Int("model_max_length", text.Int("max_position_embeddings", 1048576, 1), 1);
  c.norm_eps = text.Float("rms_norm_eps", 1e-5);
  c.attention_output_gate = false;
  if (c.attention_bias) return NotSupported(file, "attention_bias");
  FLUVIAL_RETURN_IF_ERROR(ReadLayers(text, file, c));
  FLUVIAL_RETURN_IF_ERROR(ReadLinear(text, file, c));
  FLUVIAL_RETURN_IF_ERROR(ReadLatent(text, file, c));
  FLUVIAL_RETURN_IF_ERROR(ReadExperts(text, file, c));
  if (!kimi) FLUVIAL_RETURN_IF_ERROR(ReadIndexer(text, file, c));
  return text.status();
}

void ReadGlmVision(const JsonObject& v, ModelConfig& c) {
  GlmVisionConfig vision;
  vision.depth = v.Int("depth", 24, 0, 1 << 12);
  vision.hidden = v.Int("hidden_size", 1024, 1, 1 << 20);
  vision.intermediate = v.Int("intermediate_size", 4096, 1, kMaxWidth);
  vision.heads = v.Int("num_heads", 16, 1, 1 << 12);
  vision.in_channels = v.Int("in_channels", 3, 1, 16);
  vision.patch = v.Int("patch_size", 14, 1, 256);
  vision.temporal_patch = v.Int("temporal_patch_size", 2, 1, 16);
  vision.merge = v.Int("spatial_merge_size", 2, 1, 16);
  vision.out_hidden = v.Int("out_hidden_size", 1536, 1, 1 << 20);
  vision.projection = v.Int("projection_intermediate_size", 10240, 1, kMaxWidth);
  c.glm_vision = vision;
}

}  // namespace fluvial::weights
