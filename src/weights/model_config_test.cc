// SPDX-License-Identifier: Apache-2.0
#include "weights/model_config.h"

#include <gtest/gtest.h>

#include "weights/generation_config.h"

namespace fluvial::weights {
namespace {

constexpr const char* kNewSpelling = R"({
  "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": true,
  "image_token_id": 248056, "dtype": "bfloat16",
  "text_config": {"model_type": "qwen3_5_text", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-05,
    "tie_word_embeddings": false, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "eos_token_id": 7, "mamba_ssm_dtype": "float32",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": true}},
  "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}})";

/// One substitution in a text; the needle must be there.
std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string Error(const std::string& text) {
  const auto c = ParseModelConfig(text, "config.json");
  if (c.ok()) return "(accepted)";
  EXPECT_EQ(c.status().code(), Code::kUnusableModel) << c.status().message();
  EXPECT_TRUE(c.status().message().starts_with("config.json")) << c.status().message();
  return c.status().message();
}

#define EXPECT_REFUSED(text, part) EXPECT_NE(Error(text).find(part), std::string::npos) << Error(text)

/// As released: text fields at the top, old names.
constexpr const char* kQwen2_5Vl = R"({
  "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_size": 3584,
  "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
  "vocab_size": 152064, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "max_position_embeddings": 128000,
  "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 28, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "image_token_id": 151655, "video_token_id": 151656, "eos_token_id": 151645,
  "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
  "vision_config": {"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
    "in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
    "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2}})";

constexpr const char* kQwen3Vl = R"({
  "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 151655,
  "tie_word_embeddings": true,
  "text_config": {"attention_bias": false, "dtype": "bfloat16", "head_dim": 128, "hidden_size": 2048,
    "intermediate_size": 6144, "max_position_embeddings": 262144, "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 5000000, "vocab_size": 151936,
    "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}},
  "vision_config": {"deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 1024, "in_channels": 3, "intermediate_size": 4096, "num_heads": 16, "num_position_embeddings": 2304,
    "out_hidden_size": 2048, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}})";

TEST(ModelConfig, VisionLanguageModels) {
  const auto old = ParseModelConfig(kQwen2_5Vl, "config.json");
  ASSERT_TRUE(old.ok()) << old.status().message();
  EXPECT_EQ(old->architecture, Architecture::kQwen2_5Vl);
  EXPECT_EQ(old->head_dim, 128);
  EXPECT_EQ(old->rotary_dim(), 128);
  EXPECT_EQ(old->CountLayers(LayerType::kFullAttention), 28);
  EXPECT_EQ(old->rope.mrope_section, (std::vector<int64_t>{16, 24, 24}));
  EXPECT_EQ(old->moe.experts, 0);
  ASSERT_TRUE(old->vision.has_value());
  EXPECT_TRUE(old->vision->windowed);
  EXPECT_EQ(old->vision->full_blocks, (std::vector<int64_t>{7, 15, 23, 31}));
  EXPECT_EQ(old->vision->tokens_per_second, 2);
  EXPECT_EQ(old->vision->positions, 0);

  const auto c = ParseModelConfig(kQwen3Vl, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kQwen3Vl);
  EXPECT_FALSE(c->vision->windowed);
  EXPECT_EQ(c->vision->deepstack, (std::vector<int64_t>{5, 11, 17}));
  EXPECT_EQ(c->video_token, 151656);
  EXPECT_TRUE(c->tied_embeddings);

  EXPECT_REFUSED(With(kQwen2_5Vl, "\"use_sliding_window\": false", "\"use_sliding_window\": true"), "sliding_window");
  EXPECT_REFUSED(With(kQwen2_5Vl, "15, 23, 31]", "15, 23, 32]"), "beyond its depth");
  EXPECT_REFUSED(With(kQwen3Vl, "gelu_pytorch_tanh", "relu"), "hidden_act");
  EXPECT_REFUSED(With(kQwen3Vl, "\"out_hidden_size\": 2048", "\"out_hidden_size\": 1024"), "out_hidden_size");
  EXPECT_REFUSED(With(kQwen3Vl, "\"num_heads\": 16", "\"num_heads\": 3"), "multiple");
}

TEST(ModelConfig, NewSpelling) {
  const auto c = ParseModelConfig(kNewSpelling, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kQwen3_5);
  EXPECT_EQ(c->vocab, 1000);
  EXPECT_EQ(c->kv_heads, 2);
  EXPECT_EQ(c->rotary_dim(), 8);
  EXPECT_DOUBLE_EQ(c->rope.theta, 1e7);
  EXPECT_TRUE(c->rope.mrope_interleaved);
  EXPECT_EQ(c->rope.mrope_section, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_TRUE(c->tied_embeddings) << "the top level decides";
  EXPECT_EQ(c->dtype, DType::kBF16);
  EXPECT_DOUBLE_EQ(c->norm_eps, 1e-5);
  EXPECT_EQ(c->eos_tokens, (std::vector<int64_t>{7}));
  ASSERT_TRUE(c->vision.has_value());
  EXPECT_EQ(c->vision->depth, 2);
  // No layer_types: the fourth layer is full attention.
  EXPECT_EQ(c->CountLayers(LayerType::kFullAttention), 1);
  EXPECT_EQ(c->layer_types[3], LayerType::kFullAttention);
  EXPECT_EQ(c->linear.conv_channels(), 2 * 2 * 16 + 4 * 16);
}

TEST(ModelConfig, OldSpellingAndDefaults) {
  const auto c = ParseModelConfig(R"({"model_type": "qwen3_5_text", "vocab_size": 10, "hidden_size": 8,
      "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "torch_dtype": "float32",
      "rope_theta": 5e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 8, 8]},
      "layer_types": ["full_attention", "linear_attention"], "eos_token_id": [1, 2], "unknown_key": {}})",
                                  "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->head_dim, 256);
  EXPECT_EQ(c->kv_heads, 2);
  EXPECT_EQ(c->dtype, DType::kF32);
  EXPECT_DOUBLE_EQ(c->rope.theta, 5e6);
  EXPECT_EQ(c->rotary_dim(), 64);
  EXPECT_FALSE(c->rope.mrope_interleaved);
  EXPECT_EQ(c->linear.value_heads, 32);
  EXPECT_DOUBLE_EQ(c->norm_eps, 1e-6);
  EXPECT_EQ(c->layer_types[0], LayerType::kFullAttention);
  EXPECT_EQ(c->eos_tokens, (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(c->vision.has_value());
}

TEST(ModelConfig, UnknownArchitectureListsTheKnown) {
  const std::string text = With(kNewSpelling, "Qwen3_5ForConditionalGeneration", "Qwen4ExpForCausalLM");
  EXPECT_REFUSED(text, "'Qwen4ExpForCausalLM' is not known");
  EXPECT_REFUSED(text, "Qwen3_5ForCausalLM");
  EXPECT_REFUSED(R"({"model_type": "llama"})", "'llama' is not known");
  EXPECT_REFUSED("{}", "neither architectures nor model_type");
}

TEST(ModelConfig, RefusesBadFiles) {
  EXPECT_REFUSED("", "not JSON");
  EXPECT_REFUSED("{\"a\":", "not JSON");
  EXPECT_REFUSED("[1]", "JSON object");
  EXPECT_REFUSED(std::string(100000, '['), "nests deeper");
  std::string deep = "{\"a\":";
  for (int i = 0; i < 200; ++i) deep += "[";
  for (int i = 0; i < 200; ++i) deep += "]";
  EXPECT_REFUSED(deep + "}", "nests deeper");
}

TEST(ModelConfig, RefusesWrongTypesAndContradictions) {
  EXPECT_REFUSED(With(kNewSpelling, "\"vocab_size\": 1000", "\"vocab_size\": \"many\""), "'text_config.vocab_size'");
  EXPECT_REFUSED(With(kNewSpelling, "\"vocab_size\": 1000,", ""), "'vocab_size' is missing");
  EXPECT_REFUSED(With(kNewSpelling, "\"hidden_size\": 64", "\"hidden_size\": -64"), "hidden_size");
  EXPECT_REFUSED(With(kNewSpelling, "\"hidden_size\": 64", "\"hidden_size\": 1e300"), "hidden_size");
  EXPECT_REFUSED(With(kNewSpelling, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"), "multiple");
  EXPECT_REFUSED(With(kNewSpelling, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 0"), "num_key_value_heads");
  EXPECT_REFUSED(With(kNewSpelling, "\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 3"), "multiple");
  EXPECT_REFUSED(With(kNewSpelling, "[2, 1, 1]", "[2, 1]"), "three counts");
  EXPECT_REFUSED(With(kNewSpelling, "[2, 1, 1]", "[2, 2, 1]"), "sums to 5");
  EXPECT_REFUSED(With(kNewSpelling, "[2, 1, 1]", "[2, \"x\", 1]"), "list of integers");
  EXPECT_REFUSED(With(kNewSpelling, "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 7"), "(0, 1]");
  EXPECT_REFUSED(With(kNewSpelling, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\""),
                 "'yarn' is not supported");
  EXPECT_REFUSED(With(kNewSpelling, "bfloat16", "int3"), "dtype");
  EXPECT_REFUSED(With(kNewSpelling, "\"out_hidden_size\": 64", "\"out_hidden_size\": 65"), "out_hidden_size");
  EXPECT_REFUSED(With(kNewSpelling, "\"eos_token_id\": 7", "\"eos_token_id\": \"x\""), "eos_token_id");
  EXPECT_REFUSED(With(kNewSpelling, "\"eos_token_id\": 7", "\"layer_types\": [\"full_attention\"]"), "1 entries for 4");
  EXPECT_REFUSED(With(kNewSpelling, "\"eos_token_id\": 7", "\"quantization_config\": {\"a\": 1}"), "quantised");
  EXPECT_REFUSED(With(kNewSpelling, "\"text_config\": {", "\"text_config\": 3, \"x\": {"),
                 "'text_config' must be an object");
}

TEST(ModelConfig, MixtureOfExperts) {
  const std::string base = R"({"architectures": ["Qwen3NextForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
    "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "mlp_only_layers": [3], "decoder_sparse_step": 2, "norm_topk_prob": false})";
  const auto c = ParseModelConfig(base, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  std::vector<int64_t> sparse;
  for (int64_t i = 0; i < 6; ++i) {
    if (c->HasExperts(i)) sparse.push_back(i);
  }
  EXPECT_EQ(sparse, (std::vector<int64_t>{1, 5}));
  EXPECT_FALSE(c->moe.renormalise);
  EXPECT_EQ(c->mtp_layers, 1);
  EXPECT_REFUSED(With(base, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9"), "more than the 8");
  EXPECT_REFUSED(With(base, "\"hidden_size\": 64", "\"hidden_size\": 64, \"attn_output_gate\": false"),
                 "attn_output_gate");
  // Each size alone is possible; together they would overflow what counts them.
  EXPECT_REFUSED(With(With(base, "\"hidden_size\": 64", "\"hidden_size\": 1048576"), "\"num_experts\": 8",
                      "\"moe_intermediate_size\": 16777216, \"num_experts\": 65536"),
                 "together are far beyond");
}

TEST(GenerationConfig, ReadsDefaults) {
  const auto g = ParseGenerationConfig(
      R"({"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "eos_token_id": [3, 4], "pad_token_id": 3})",
      "generation_config.json");
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_EQ(g->do_sample, true);
  EXPECT_DOUBLE_EQ(*g->temperature, 0.7);
  EXPECT_EQ(*g->top_k, 20);
  EXPECT_EQ(g->eos_tokens, (std::vector<int64_t>{3, 4}));
  EXPECT_FALSE(g->min_p.has_value());
  EXPECT_FALSE(ParseGenerationConfig(R"({"temperature": "hot"})", "g").ok());
  EXPECT_TRUE(ReadGenerationConfig("/nonexistent").ok());
}

/// As released (1-based lists), in small.
constexpr const char* kKimi = R"({
  "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16", "vocab_size": 1000,
  "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 24, "num_hidden_layers": 5, "head_dim": 72,
  "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": null, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
  "qk_rope_head_dim": 8, "v_head_dim": 12, "mla_use_nope": true, "num_experts": 8, "num_experts_per_token": 2,
  "num_shared_experts": 2, "moe_router_activation_func": "sigmoid", "moe_renormalize": true, "num_expert_group": 2,
  "routed_scaling_factor": 2.446, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
  "model_max_length": 4096, "rope_theta": 10000.0,
  "linear_attn_config": {"kda_layers": [1, 2, 4], "full_attn_layers": [3, 5], "num_heads": 2, "head_dim": 32,
                         "short_conv_kernel_size": 4}})";

TEST(ModelConfig, KimiLinearAsReleased) {
  const auto c = ParseModelConfig(kKimi, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kKimiLinear);
  EXPECT_EQ(c->layer_types,
            (std::vector<LayerType>{LayerType::kLinearAttention, LayerType::kLinearAttention, LayerType::kFullAttention,
                                    LayerType::kLinearAttention, LayerType::kFullAttention}));
  EXPECT_EQ(c->linear.value_heads, 2);
  EXPECT_EQ(c->linear.key_dim, 32);
  EXPECT_FALSE(c->linear.gate_lower_bound.has_value());
  EXPECT_EQ(c->latent.rank, 32);
  EXPECT_EQ(c->latent.query_rank, 0);
  EXPECT_EQ(c->latent.qk(), 24);
  EXPECT_EQ(c->latent.v, 12);
  EXPECT_DOUBLE_EQ(c->latent.norm_eps, 1e-6) << "not that of the config";
  EXPECT_DOUBLE_EQ(c->norm_eps, 1e-5) << "class default";
  EXPECT_EQ(c->moe.experts, 8);
  EXPECT_EQ(c->moe.per_token, 2);
  EXPECT_EQ(c->moe.groups, 2);
  EXPECT_EQ(c->moe.shared_intermediate, 48);
  EXPECT_DOUBLE_EQ(c->moe.scale, 2.446);
  EXPECT_TRUE(c->moe.sigmoid);
  EXPECT_FALSE(c->HasExperts(0));
  EXPECT_TRUE(c->HasExperts(1));
  EXPECT_EQ(c->max_positions, 4096);
}

TEST(ModelConfig, KimiLinearContradictions) {
  EXPECT_REFUSED(With(kKimi, "[1, 2, 4]", "[1, 2]"), "every layer once");
  EXPECT_REFUSED(With(kKimi, "[1, 2, 4]", "[1, 2, 3, 4]"), "every layer once");
  EXPECT_REFUSED(With(kKimi, "[1, 2, 4]", "[0, 2, 4]"), "names layer 0");
  EXPECT_REFUSED(With(kKimi, "[3, 5]", "[3, 6]"), "names layer 6");
  EXPECT_REFUSED(With(kKimi, "\"mla_use_nope\": true", "\"mla_use_nope\": false"), "position encoding");
  EXPECT_REFUSED(With(kKimi, "\"sigmoid\"", "\"softmax\""), "a router with softmax");
  EXPECT_REFUSED(With(kKimi, "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2"), "is not num_attention_heads");
  EXPECT_REFUSED(With(kKimi, "\"num_expert_group\": 2", "\"num_expert_group\": 3"), "3 groups");
  EXPECT_REFUSED(With(kKimi, "\"num_experts_per_token\": 2", "\"num_experts_per_token\": 9"), "9 experts per token");
  EXPECT_REFUSED(With(kKimi, "\"kv_lora_rank\": 32", "\"kv_lora_rank\": \"x\""), "kv_lora_rank");
  EXPECT_REFUSED(With(kKimi, "\"kv_lora_rank\": 32", "\"attention_bias\": true"), "attention_bias");
}

constexpr const char* kGlm = R"({
  "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "tie_word_embeddings": false,
  "text_config": {"model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 24, "num_hidden_layers": 8, "head_dim": 0,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 0, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "index_topk": 32, "index_kpool": 4, "num_nextn_predict_layers": 1,
    "linear_attn_config": {"head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4, "gate_lower_bound": -4.0}},
  "vision_config": {"depth": 2}})";

TEST(ModelConfig, GlmAsReleased) {
  const auto c = ParseModelConfig(kGlm, "config.json");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, Architecture::kGlm5Next);
  EXPECT_EQ(c->CountLayers(LayerType::kFullAttention), 2) << "layers 3 and 7";
  EXPECT_EQ(c->layer_types[3], LayerType::kFullAttention);
  EXPECT_EQ(c->moe.dense_layers, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_DOUBLE_EQ(c->linear.gate_lower_bound.value(), -4.0);
  EXPECT_DOUBLE_EQ(c->latent.norm_eps, 1e-5) << "that of the config";
  EXPECT_EQ(c->indexer.topk, 32);
  EXPECT_EQ(c->indexer.pool, 4);
  EXPECT_EQ(c->indexer.shared, std::vector<bool>(8, false));
  EXPECT_EQ(c->hyper.streams, 4);
  EXPECT_DOUBLE_EQ(c->swiglu_limit, 10.0);
  EXPECT_DOUBLE_EQ(c->moe.scale, 2.5);
  EXPECT_EQ(c->mtp_layers, 1);
  EXPECT_FALSE(c->vision.has_value()) << "another tower than Qwen's; left alone";
}

TEST(ModelConfig, GlmGates) {
  const auto bound = [](const std::string& nested) {
    const auto c = ParseModelConfig(With(kGlm, "\"gate_lower_bound\": -4.0", nested), "config.json");
    EXPECT_TRUE(c.ok()) << c.status().message();
    return c.ok() ? c->linear.gate_lower_bound.value_or(0) : 1;
  };
  EXPECT_DOUBLE_EQ(bound("\"gate_lower_bound\": -0.5"), -0.5);
  EXPECT_DOUBLE_EQ(bound("\"safe_gate\": true"), -5.0);
  EXPECT_DOUBLE_EQ(bound("\"gate_lower_bound\": null"), -5.0) << "safe_gate is on by default";
  EXPECT_DOUBLE_EQ(bound("\"gate_lower_bound\": null, \"safe_gate\": false"), 0) << "softplus gate";
  EXPECT_REFUSED(With(kGlm, "-4.0", "-6.0"), "[-5, 0)");
}

TEST(ModelConfig, GlmContradictions) {
  EXPECT_REFUSED(With(kGlm, "\"index_topk\": 32", "\"index_topk\": 33"), "not a multiple of index_kpool");
  EXPECT_REFUSED(With(kGlm, "\"index_kpool\": 4", "\"index_topk_pattern\": \"FFF\""), "one F or S per layer");
  EXPECT_REFUSED(With(kGlm, "\"index_kpool\": 4", "\"index_topk_pattern\": \"FFFSFFFF\""), "layer 3 shares");
  EXPECT_REFUSED(With(kGlm, "\"index_kpool\": 4", "\"indexer_types\": [\"full\"]"), "1 entries for 8 layers");
  EXPECT_REFUSED(With(kGlm, "\"index_kpool\": 4", "\"index_kpool_always_select_tail\": false"), "not supported");
  EXPECT_REFUSED(With(kGlm, "\"qk_rope_head_dim\": 0", "\"qk_rope_head_dim\": 8"), "qk_rope_head_dim is 8");
  EXPECT_REFUSED(With(kGlm, "\"q_lora_rank\": 48", "\"q_lora_rank\": 0"), "q_lora_rank is missing");
  EXPECT_REFUSED(With(kGlm, "\"index_kpool\": 4", "\"swiglu_limit\": 0"), "swiglu_limit must be positive");
  EXPECT_REFUSED(With(kGlm, "\"index_kpool\": 4",
                      "\"layer_types\": [\"mamba\", \"a\", \"a\", \"a\", \"a\", "
                      "\"a\", \"a\", \"a\"]"),
                 "'mamba' is not known");
}

}  // namespace
}  // namespace fluvial::weights
