// SPDX-License-Identifier: Apache-2.0
#include "weights/model_config.h"

#include <algorithm>
#include <span>

#include "weights/json_reader.h"
#include "weights/mapped_file.h"
#include "weights/model_config_kda.h"

namespace fluvial::weights {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

struct Known {
  std::string_view model_type;  // outer or text model_type
  std::string_view class_name;  // architectures[0]
  Architecture architecture;
};

// Text-only and multimodal classes share the text model.
constexpr Known kKnown[] = {
    {"qwen3_5_text", "Qwen3_5ForCausalLM", Architecture::kQwen3_5},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", Architecture::kQwen3_5},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", Architecture::kQwen3_5Moe},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", Architecture::kQwen3_5Moe},
    {"qwen3_next", "Qwen3NextForCausalLM", Architecture::kQwen3Next},
    {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", Architecture::kQwen2_5Vl},
    {"qwen3_vl", "Qwen3VLForConditionalGeneration", Architecture::kQwen3Vl},
    {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", Architecture::kQwen3VlMoe},
    {"kimi_linear", "KimiLinearForCausalLM", Architecture::kKimiLinear},
    {"glm5_next_text", "Glm5NextForCausalLM", Architecture::kGlm5Next},
    {"glm5_next", "Glm5NextForConditionalGeneration", Architecture::kGlm5Next},
};

Result<Architecture> FindArchitecture(const std::string& class_name, const std::string& model_type,
                                      const std::string& file) {
  // The class decides when both are given: a derived model may keep the model_type of its base.
  for (const Known& k : kKnown) {
    if (class_name.empty() ? k.model_type == model_type : k.class_name == class_name) return k.architecture;
  }
  std::string names;
  for (const Known& k : kKnown) names += (names.empty() ? "" : ", ") + std::string(k.class_name);
  return Status::UnusableModel(file + ": architecture '" + (class_name.empty() ? model_type : class_name) +
                               "' is not known; known are " + names);
}

Status Contradiction(const std::string& file, const std::string& what) {
  return Status::UnusableModel(file + ": " + what + "; correct the file or download it again");
}

Result<DType> ReadDType(const std::string& name, const char* key, const std::string& file) {
  Result<DType> dtype = ParseDType(name);
  if (dtype.ok()) return dtype;
  return Contradiction(file, "'" + std::string(key) + "': " + dtype.status().message());
}

Status ReadRope(const JsonObject& text, const std::string& file, double default_partial, RopeConfig& rope) {
  const JsonObject scaling = text.Object("rope_scaling"), parameters = text.Object("rope_parameters");
  rope.theta = text.Float("rope_theta", rope.theta);
  rope.partial_rotary_factor = text.Float("partial_rotary_factor", default_partial);
  for (const JsonObject* object : {&scaling, &parameters}) {
    rope.theta = object->Float("rope_theta", rope.theta);
    rope.partial_rotary_factor = object->Float("partial_rotary_factor", rope.partial_rotary_factor);
    if (object->Has("mrope_section")) rope.mrope_section = object->Ints("mrope_section");
    rope.mrope_interleaved = object->Bool("mrope_interleaved", rope.mrope_interleaved);
    const std::string type = object->String("rope_type", object->String("type", "default"));
    if (type != "default" && type != "mrope") {
      return Status::UnusableModel(file + ": rope_type '" + type +
                                   "' is not supported; only 'default' is: use a checkpoint without RoPE scaling");
    }
  }
  if (!(rope.theta > 0)) return Contradiction(file, "rope_theta must be positive");
  if (!(rope.partial_rotary_factor > 0 && rope.partial_rotary_factor <= 1)) {
    return Contradiction(file, "partial_rotary_factor must lie in (0, 1]");
  }
  if (!rope.mrope_section.empty()) {
    const bool good =
        rope.mrope_section.size() == 3 && std::all_of(rope.mrope_section.begin(), rope.mrope_section.end(),
                                                      [](int64_t n) { return n >= 0 && n <= 4096; });
    if (!good) return Contradiction(file, "mrope_section must hold three counts");
  }
  return Status::Ok();
}

bool IsVl(Architecture a) {
  return a == Architecture::kQwen2_5Vl || a == Architecture::kQwen3Vl || a == Architecture::kQwen3VlMoe;
}

Status ReadLayerTypes(const JsonObject& text, const std::string& file, ModelConfig& c) {
  if (IsVl(c.architecture)) {
    if (text.Bool("use_sliding_window", false)) {
      return Status::UnusableModel(file + ": use_sliding_window is not supported; use a checkpoint without it");
    }
    c.layer_types.assign(static_cast<size_t>(c.layers), LayerType::kFullAttention);
    return Status::Ok();
  }
  const std::vector<std::string> names = text.Strings("layer_types");
  const int64_t interval = text.Int("full_attention_interval", 4, 1, 1 << 20);
  if (names.empty()) {
    for (int64_t i = 0; i < c.layers; ++i) {
      c.layer_types.push_back((i + 1) % interval == 0 ? LayerType::kFullAttention : LayerType::kLinearAttention);
    }
    return Status::Ok();
  }
  if (static_cast<int64_t>(names.size()) != c.layers) {
    return Contradiction(file, "layer_types has " + std::to_string(names.size()) + " entries for " +
                                   std::to_string(c.layers) + " layers");
  }
  for (const std::string& name : names) {
    if (name == "full_attention") {
      c.layer_types.push_back(LayerType::kFullAttention);
    } else if (name == "linear_attention") {
      c.layer_types.push_back(LayerType::kLinearAttention);
    } else {
      return Status::UnusableModel(file + ": layer type '" + name +
                                   "' is not known; known are full_attention, linear_attention");
    }
  }
  return Status::Ok();
}

void ReadMoe(const JsonObject& text, const ModelConfig& c, MoeConfig& moe) {
  if (c.architecture == Architecture::kQwen3_5 || c.architecture == Architecture::kQwen3Vl ||
      c.architecture == Architecture::kQwen2_5Vl) {
    return;
  }
  if (c.architecture == Architecture::kQwen3VlMoe) {
    // The class defaults are far from any release: nothing is assumed but the rule of transformers.
    // transformers 5 saves the number of experts under its general name.
    moe.experts = text.Int("num_experts", text.Int("num_local_experts", 60, 0, 1 << 16), 0, 1 << 16);
    moe.per_token = text.Int("num_experts_per_tok", 4, 1, 1 << 10);
    moe.intermediate = text.Int("moe_intermediate_size", 1408, 1, 1 << 24);
    moe.sparse_step = text.Int("decoder_sparse_step", 1, 1, 1 << 20);
    moe.dense_layers = text.Ints("mlp_only_layers");
    return;
  }
  const bool next = c.architecture == Architecture::kQwen3Next;
  moe.experts = text.Int("num_experts", next ? 512 : 256, 0, 1 << 16);
  moe.per_token = text.Int("num_experts_per_tok", next ? 10 : 8, 1, 1 << 10);
  moe.intermediate = text.Int("moe_intermediate_size", 512, 1, 1 << 24);
  moe.shared_intermediate = text.Int("shared_expert_intermediate_size", 512, 0, 1 << 24);
  moe.renormalise = !next || text.Bool("norm_topk_prob", true);
  moe.sparse_step = next ? text.Int("decoder_sparse_step", 1, 1, 1 << 20) : 1;
  if (next) moe.dense_layers = text.Ints("mlp_only_layers");
}

Status ReadVision(const JsonObject& top, const std::string& file, ModelConfig& c) {
  const JsonObject v = top.Object("vision_config");
  const bool qwen2 = c.architecture == Architecture::kQwen2_5Vl;
  const bool qwen3 = c.architecture == Architecture::kQwen3Vl || c.architecture == Architecture::kQwen3VlMoe;
  VisionConfig vision;
  vision.windowed = qwen2;
  vision.depth = v.Int("depth", qwen2 ? 32 : 27, 0, 1 << 12);
  vision.hidden = v.Int("hidden_size", qwen2 ? 3584 : 1152, 1, 1 << 20);
  vision.intermediate = v.Int("intermediate_size", qwen2 ? 3420 : 4304, 1, 1 << 24);
  vision.heads = v.Int("num_heads", 16, 1, 1 << 12);
  vision.in_channels = v.Int("in_channels", v.Int("in_chans", 3, 1, 16), 1, 16);
  vision.patch = v.Int("patch_size", v.Int("spatial_patch_size", qwen2 ? 14 : 16, 1, 256), 1, 256);
  vision.temporal_patch = v.Int("temporal_patch_size", 2, 1, 16);
  vision.merge = v.Int("spatial_merge_size", 2, 1, 16);
  vision.out_hidden = v.Int("out_hidden_size", c.hidden, 1, 1 << 20);
  vision.positions = qwen2 ? 0 : v.Int("num_position_embeddings", 2304, 1, 1 << 24);
  vision.rope_theta = v.Object("rope_parameters").Float("rope_theta", 10000.0);
  if (qwen3)
    vision.deepstack =
        v.Has("deepstack_visual_indexes") ? v.Ints("deepstack_visual_indexes") : std::vector<int64_t>{8, 16, 24};
  if (qwen2) {
    vision.window = v.Int("window_size", 112, 1, 1 << 16);
    vision.full_blocks =
        v.Has("fullatt_block_indexes") ? v.Ints("fullatt_block_indexes") : std::vector<int64_t>{7, 15, 23, 31};
    vision.tokens_per_second = v.Float("tokens_per_second", 4);
  }
  const std::string act = v.String("hidden_act", qwen2 ? "silu" : "gelu_pytorch_tanh");
  if (act != (qwen2 ? "silu" : "gelu_pytorch_tanh")) {
    return Status::UnusableModel(file + ": vision_config.hidden_act '" + act + "' is not supported");
  }
  if (vision.out_hidden != c.hidden) {
    return Contradiction(file, "vision_config.out_hidden_size " + std::to_string(vision.out_hidden) +
                                   " is not the text model's hidden_size " + std::to_string(c.hidden));
  }
  if (vision.hidden % (4 * vision.heads) != 0) {
    return Contradiction(file, "vision_config.hidden_size is not a multiple of 4 * num_heads");
  }
  for (const auto* list : {&vision.deepstack, &vision.full_blocks}) {
    for (const int64_t block : *list) {
      if (block < 0 || block >= vision.depth)
        return Contradiction(file, "vision_config names a block beyond its depth");
    }
  }
  if (static_cast<int64_t>(vision.deepstack.size()) > c.layers) {
    return Contradiction(file, "deepstack_visual_indexes has more entries than the text model has layers");
  }
  c.vision = vision;
  const bool old = qwen2 || qwen3;  // vocabulary of Qwen2.5 and Qwen3
  c.image_token = top.Int("image_token_id", old ? 151655 : 248056);
  c.video_token = top.Int("video_token_id", old ? 151656 : 248057);
  c.vision_start_token = top.Int("vision_start_token_id", old ? 151652 : 248053);
  c.vision_end_token = top.Int("vision_end_token_id", old ? 151653 : 248054);
  return Status::Ok();
}

Status CheckShapes(const ModelConfig& c, const std::string& file) {
  const struct {
    const char* key;
    int64_t value;
  } needed[] = {{"vocab_size", c.vocab},
                {"hidden_size", c.hidden},
                {"intermediate_size", c.intermediate},
                {"num_hidden_layers", c.layers},
                {"num_attention_heads", c.heads}};
  for (const auto& n : needed) {
    if (n.value <= 0) return Contradiction(file, "'" + std::string(n.key) + "' is missing or 0");
  }
  if (c.heads % c.kv_heads != 0) {
    return Contradiction(file, "num_attention_heads " + std::to_string(c.heads) +
                                   " is not a multiple of num_key_value_heads " + std::to_string(c.kv_heads));
  }
  if (c.linear.value_heads % c.linear.key_heads != 0) {
    return Contradiction(file, "linear_num_value_heads " + std::to_string(c.linear.value_heads) +
                                   " is not a multiple of linear_num_key_heads " + std::to_string(c.linear.key_heads));
  }
  if (c.latent.rank == 0 && (c.rotary_dim() < 2 || c.rotary_dim() % 2 != 0)) {
    return Contradiction(file, "head_dim * partial_rotary_factor gives " + std::to_string(c.rotary_dim()) +
                                   " rotary dimensions; an even number of at least 2 is needed");
  }
  if (c.moe.experts > 0 && c.moe.per_token > c.moe.experts) {
    return Contradiction(file, "num_experts_per_tok " + std::to_string(c.moe.per_token) + " is more than the " +
                                   std::to_string(c.moe.experts) + " of num_experts");
  }
  // int64 products downstream stay far from overflow.
  if (c.vocab > (int64_t{1} << 28) || c.hidden > (1 << 20) || c.intermediate > (1 << 24) || c.heads > (1 << 14) ||
      c.head_dim > (1 << 14) || c.layers > (1 << 14)) {
    return Contradiction(file, "sizes are far beyond those of any model");
  }
  const auto d = [](int64_t x) { return static_cast<double>(x); };
  const double widths = 3 * d(c.intermediate) + d(c.moe.experts) * (3 * d(c.moe.intermediate) + 1) +
                        3 * d(c.moe.shared_intermediate) + 4 * d(c.heads) * d(c.head_dim) +
                        2 * d(c.linear.conv_channels()) + 2 * d(c.linear.value_heads) * d(c.linear.value_dim);
  if (d(c.layers + c.mtp_layers) * d(c.hidden) * widths > 0x1p58) {
    return Contradiction(file, "all parameters together are far beyond those of any model");
  }
  return Status::Ok();
}

}  // namespace

std::string_view Name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kQwen3_5:
      return "qwen3_5";
    case Architecture::kQwen3_5Moe:
      return "qwen3_5_moe";
    case Architecture::kQwen3Next:
      return "qwen3_next";
    case Architecture::kQwen2_5Vl:
      return "qwen2_5_vl";
    case Architecture::kQwen3Vl:
      return "qwen3_vl";
    case Architecture::kQwen3VlMoe:
      return "qwen3_vl_moe";
    case Architecture::kKimiLinear:
      return "kimi_linear";
    case Architecture::kGlm5Next:
      return "glm5_next";
  }
  return "unknown";
}

int64_t ModelConfig::CountLayers(LayerType type) const {
  return std::count(layer_types.begin(), layer_types.end(), type);
}

bool ModelConfig::HasExperts(int64_t i) const {
  if (moe.experts == 0 || (i + 1) % moe.sparse_step != 0) return false;
  return std::find(moe.dense_layers.begin(), moe.dense_layers.end(), i) == moe.dense_layers.end();
}

Result<ModelConfig> ParseModelConfig(const std::string& json, const std::string& file) {
  FLUVIAL_ASSIGN_OR_RETURN(const JsonObject top, JsonObject::Parse(json, file));
  ModelConfig c;
  c.model_type = top.String("model_type");
  const std::vector<std::string> classes = top.Strings("architectures");
  if (!classes.empty()) c.architecture_name = classes[0];
  if (c.architecture_name.empty() && c.model_type.empty()) {
    FLUVIAL_RETURN_IF_ERROR(top.status());
    return Status::UnusableModel(file + " names neither architectures nor model_type; give a checkpoint's config.json");
  }
  FLUVIAL_ASSIGN_OR_RETURN(c.architecture, FindArchitecture(c.architecture_name, c.model_type, file));
  if (c.architecture_name.empty()) c.architecture_name = c.model_type;

  const JsonObject text = top.Has("text_config") ? top.Object("text_config") : top;

  if (top.Has("quantization_config") || text.Has("quantization_config")) {
    return Status::UnusableModel(file +
                                 ": the checkpoint is quantised (quantization_config), which is not supported; "
                                 "use the bf16 checkpoint");
  }
  const bool kda = c.architecture == Architecture::kKimiLinear || c.architecture == Architecture::kGlm5Next;
  c.vocab = text.Int("vocab_size", 0);
  c.hidden = text.Int("hidden_size", 0);
  c.intermediate =
      text.Int("intermediate_size",
               c.architecture == Architecture::kQwen3_5Moe || c.architecture == Architecture::kQwen3Next ? 5632 : 0);
  c.layers = text.Int("num_hidden_layers", 0, 0, 1 << 14);
  c.heads = text.Int("num_attention_heads", 0);
  c.kv_heads = text.Int("num_key_value_heads", c.heads, 1);
  // The hybrid families have 256 as class default, not hidden / heads.
  const bool vl = IsVl(c.architecture);
  const int64_t head_dim = vl ? std::max<int64_t>(1, c.hidden / std::max<int64_t>(1, c.heads)) : 256;
  c.head_dim = text.Int("head_dim", head_dim, kda ? 0 : 1);
  c.max_positions = text.Int("max_position_embeddings", 32768, 1);
  c.norm_eps = text.Float("rms_norm_eps", text.Float("layer_norm_eps", text.Float("layer_norm_epsilon", 1e-6)));
  c.attention_bias = text.Bool("attention_bias", false);
  c.attention_output_gate = text.Bool("attn_output_gate", true);
  // The top level decides for multimodal files; the nested value may disagree.
  c.tied_embeddings = top.Bool("tie_word_embeddings", text.Bool("tie_word_embeddings", false));
  if (!c.attention_output_gate) {
    return Status::UnusableModel(file + ": attn_output_gate false is not supported; use a checkpoint with the gate");
  }
  const std::string dtype =
      text.String("dtype", text.String("torch_dtype", top.String("dtype", top.String("torch_dtype"))));
  if (!dtype.empty() && dtype != "auto") {
    FLUVIAL_ASSIGN_OR_RETURN(c.dtype, ReadDType(dtype, "dtype", file));
  }
  const std::string act = text.String("hidden_act", "silu"), gate = text.String("output_gate_type", "swish");
  if (act != "silu" && act != "swish") {
    return Status::UnusableModel(file + ": hidden_act '" + act + "' is not supported; only 'silu' is");
  }
  if (gate != "swish" && gate != "silu") {
    return Status::UnusableModel(file + ": output_gate_type '" + gate + "' is not supported; only 'swish' is");
  }
  LinearAttentionConfig& linear = c.linear;
  linear.key_heads = text.Int("linear_num_key_heads", 16, 1, 1 << 14);
  linear.value_heads = text.Int("linear_num_value_heads", 32, 1, 1 << 14);
  linear.key_dim = text.Int("linear_key_head_dim", 128, 1, 1 << 14);
  linear.value_dim = text.Int("linear_value_head_dim", 128, 1, 1 << 14);
  linear.conv_kernel = text.Int("linear_conv_kernel_dim", 4, 1, 64);
  FLUVIAL_ASSIGN_OR_RETURN(linear.state_dtype,
                           ReadDType(text.String("mamba_ssm_dtype", "float32"), "mamba_ssm_dtype", file));
  // Released Qwen3-Next has one such layer and no key that says so.
  const int64_t mtp_default = c.architecture == Architecture::kQwen3Next ? 1 : 0;
  c.mtp_layers = text.Int("mtp_num_hidden_layers", text.Int("num_nextn_predict_layers", mtp_default, 0, 64), 0, 64);
  c.eos_tokens = (text.Has("eos_token_id") ? text : top).IntOrInts("eos_token_id");

  if (kda) {
    FLUVIAL_RETURN_IF_ERROR(ReadKdaModel(text, file, c));
    if (top.Has("vision_config")) ReadGlmVision(top.Object("vision_config"), c);
    FLUVIAL_RETURN_IF_ERROR(top.status());
    FLUVIAL_RETURN_IF_ERROR(CheckShapes(c, file));
    return c;
  }
  FLUVIAL_RETURN_IF_ERROR(ReadRope(text, file, vl ? 1.0 : 0.25, c.rope));
  FLUVIAL_RETURN_IF_ERROR(ReadLayerTypes(text, file, c));
  ReadMoe(text, c, c.moe);
  FLUVIAL_RETURN_IF_ERROR(top.status());
  FLUVIAL_RETURN_IF_ERROR(CheckShapes(c, file));
  if (top.Has("vision_config")) FLUVIAL_RETURN_IF_ERROR(ReadVision(top, file, c));
  FLUVIAL_RETURN_IF_ERROR(top.status());
  if (!c.rope.mrope_section.empty()) {
    int64_t pairs = 0;
    for (const int64_t n : c.rope.mrope_section) pairs += n;
    if (pairs != c.rotary_dim() / 2) {
      return Contradiction(file, "mrope_section sums to " + std::to_string(pairs) + " instead of half of the " +
                                     std::to_string(c.rotary_dim()) + " rotary dimensions");
    }
  }
  return c;
}

Result<ModelConfig> ReadModelConfig(const std::string& directory) {
  const std::string file = directory + "/config.json";
  FLUVIAL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxConfigBytes));
  return ParseModelConfig(text, file);
}

}  // namespace fluvial::weights
