// SPDX-License-Identifier: Apache-2.0
// Parameters and caches of released models from config.json alone. Every family adds its models to the table.
#include "models/footprint.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/decoder.h"
#include "models/model_testkit.h"

namespace fluvial::models {
namespace {

constexpr double kBillion = 1e9;
constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Released {
  const char* name;
  std::string config;
  double text;               ///< billions of parameters, known to three or four digits
  double active;             ///< of these per token; 0: not checked
  double mtp;                ///< 0: not checked
  uint64_t recurrent_bytes;  ///< fp32 states of one sequence
  uint64_t conv_bytes;       ///< bf16 windows of one sequence
  uint64_t kv_bytes;         ///< bf16, per token
};

/// Spelled as the release spells it (the values are those of its model card and config.json).
const char kQwen3Next[] = R"({
  "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512,
  "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
  "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": false, "partial_rotary_factor": 0.25,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
  "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.57.0.dev0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

const char kKimi[] = R"({
  "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586,
  "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02,
  "intermediate_size": 9216, "kv_lora_rank": 512,
  "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "kda_layers": [1, 2, 3, 5, 6,
    7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26], "num_heads": 32, "short_conv_kernel_size": 4},
  "mla_use_nope": true, "model_max_length": 1048576, "model_type": "kimi_linear", "moe_intermediate_size": 1024,
  "moe_layer_freq": 1, "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
  "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
  "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1,
  "use_cache": true, "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840})";

const char kGlm[] = R"({
  "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "image_token_id": 154854,
  "video_token_id": 154855, "image_start_token_id": 154830, "image_end_token_id": 154831,
  "video_start_token_id": 154832, "video_end_token_id": 154833, "tie_word_embeddings": false,
  "text_config": {"model_type": "glm5_next_text", "dtype": "bfloat16", "head_dim": 0, "hc_eps": 1e-06, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hidden_act": "silu", "hidden_size": 4096, "index_head_dim": 128, "index_kpool": 4,
    "index_kpool_always_select_tail": true, "index_n_heads": 32, "index_topk": 2048, "intermediate_size": 12288,
    "kv_lora_rank": 512, "linear_attn_config": {"gate_lower_bound": -5.0, "head_dim": 128, "num_heads": 64,
      "safe_gate": true, "short_conv_kernel_size": 4},
    "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "moe_router_dtype": "float32", "n_group": 1,
    "n_routed_experts": 288, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 45, "num_key_value_heads": 64, "num_nextn_predict_layers": 1,
    "pad_token_id": 154820, "q_lora_rank": 1536, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "rms_norm_eps": 1e-05,
    "routed_scaling_factor": 2.5, "swiglu_limit": 10.0, "topk_group": 1, "v_head_dim": 256, "vocab_size": 154880},
  "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 4096,
    "patch_size": 14, "projection_intermediate_size": 10240, "spatial_merge_size": 2, "temporal_patch_size": 2}})";

/// A Qwen3.5 config.json with a vision tower. `moe` is a list of members of text_config.
std::string Qwen3_5(int layers, int hidden, int heads, int kv_heads, int value_heads, const std::string& ffn, bool tied,
                    bool moe) {
  const auto n = [](int x) { return std::to_string(x); };
  const std::string type = moe ? "qwen3_5_moe" : "qwen3_5", name = moe ? "Qwen3_5Moe" : "Qwen3_5";
  return R"({"architectures": [")" + name + R"(ForConditionalGeneration"], "model_type": ")" + type + R"(",
    "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053, "vision_end_token_id": 248054,
    "tie_word_embeddings": )" +
         (tied ? "true" : "false") + R"(,
    "text_config": {"model_type": ")" +
         type + R"(_text", "dtype": "bfloat16", "attention_bias": false, "attn_output_gate": true,
      "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": )" +
         n(hidden) + R"(, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
      "linear_num_value_heads": )" +
         n(value_heads) + R"(, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
      "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
      "num_attention_heads": )" +
         n(heads) + R"(, "num_hidden_layers": )" + n(layers) + R"(, "num_key_value_heads": )" + n(kv_heads) +
         R"(, "rms_norm_eps": 1e-06, "vocab_size": 248320, )" + ffn + R"(,
      "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
                          "rope_theta": 10000000, "partial_rotary_factor": 0.25}},
    "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3,
      "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
      "out_hidden_size": )" +
         n(hidden) + "}}";
}

std::string Dense(int layers, int hidden, int inter, int heads, int kv_heads, int value_heads, bool tied) {
  return Qwen3_5(layers, hidden, heads, kv_heads, value_heads, "\"intermediate_size\": " + std::to_string(inter), tied,
                 false);
}

std::string Moe(int layers, int hidden, int heads, int value_heads, int experts, int per_token, int inter) {
  const auto n = [](int x) { return std::to_string(x); };
  return Qwen3_5(layers, hidden, heads, 2, value_heads,
                 "\"num_experts\": " + n(experts) + ", \"num_experts_per_tok\": " + n(per_token) +
                     ", \"moe_intermediate_size\": " + n(inter) + ", \"shared_expert_intermediate_size\": " + n(inter) +
                     ", \"router_aux_loss_coef\": 0.001",
                 false, true);
}

/// Conv channels are 2 * 16 * 128 for q and k plus those of v, three columns of two bytes.
constexpr uint64_t Conv(uint64_t layers, uint64_t value_heads) { return layers * 3 * (4096 + value_heads * 128) * 2; }

std::vector<Released> Table() {
  return {
      {"Qwen3-Next-80B-A3B", kQwen3Next, 79.67, 3.9, 1.65, 72 * kMiB, Conv(36, 32), 12 * 2 * 2 * 256 * 2},
      {"Qwen3.5-0.8B", Dense(24, 1024, 3584, 8, 2, 16, true), 0.752, 0.752, 0, 18 * kMiB, Conv(18, 16),
       6 * 2 * 2 * 256 * 2},
      {"Qwen3.5-2B", Dense(24, 2048, 6144, 8, 2, 16, true), 1.88, 1.88, 0, 18 * kMiB, Conv(18, 16),
       6 * 2 * 2 * 256 * 2},
      {"Qwen3.5-4B", Dense(32, 2560, 9216, 16, 4, 32, true), 4.2, 4.2, 0, 48 * kMiB, Conv(24, 32), 8 * 2 * 4 * 256 * 2},
      {"Qwen3.5-9B", Dense(32, 4096, 12288, 16, 4, 32, false), 8.95, 8.95, 0, 48 * kMiB, Conv(24, 32),
       8 * 2 * 4 * 256 * 2},
      {"Qwen3.5-27B", Dense(64, 5120, 17408, 24, 4, 48, false), 26.9, 26.9, 0, 144 * kMiB, Conv(48, 48),
       16 * 2 * 4 * 256 * 2},
      {"Qwen3.5-35B-A3B", Moe(40, 2048, 16, 32, 256, 8, 512), 34.7, 0, 0, 60 * kMiB, Conv(30, 32),
       10 * 2 * 2 * 256 * 2},
      {"Qwen3.5-122B-A10B", Moe(48, 3072, 32, 64, 256, 8, 1024), 122.1, 0, 0, 144 * kMiB, Conv(36, 64),
       12 * 2 * 2 * 256 * 2},
      {"Qwen3.5-397B-A17B", Moe(60, 4096, 32, 64, 512, 10, 1024), 396.3, 0, 0, 180 * kMiB, Conv(45, 64),
       15 * 2 * 2 * 256 * 2},
      // 20 layers of 32 states and of 3 * 4096 channels; 7 of one latent with its shared columns.
      {"Kimi-Linear-48B-A3B", kKimi, 49.1, 3.5, 0, 40 * kMiB, 20 * 3 * 3 * 4096 * 2, 7 * (512 + 64) * 2},
      // 34 layers of 64 states and of 3 * 8192 channels; 11 of one latent and an indexer's key and gate.
      {"GLM-5.3-Flash", kGlm, 313.3, 0, 7.4, 34 * 4 * kMiB, 34 * 3 * 3 * 8192 * 2, 11 * (512 + 2 * 128) * 2},
  };
}

TEST(Footprint, ReleasedModels) {
  for (const Released& r : Table()) {
    SCOPED_TRACE(r.name);
    const auto config = weights::ParseModelConfig(r.config, r.name);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const auto f = FootprintOf(*config);
    ASSERT_TRUE(f.ok()) << f.status().message();
    const auto near = [](int64_t have, double want) {
      if (want == 0) return;
      EXPECT_NEAR(static_cast<double>(have) / kBillion, want, 0.01 * want);
    };
    near(f->parameters, r.text);
    near(f->active_parameters, r.active);
    near(f->mtp_parameters, r.mtp);
    EXPECT_EQ(f->cache.SlotBytes(), r.recurrent_bytes + r.conv_bytes);
    EXPECT_EQ(f->cache.TokenBytes(), r.kv_bytes);
  }
}

TEST(Footprint, ExactlyWhatTheFilesHold) {
  // Text, multi-token prediction and vision tensors of the small checkpoints, to the last element.
  for (const char* name :
       {"qwen3_5/text", "qwen3_5/text_bf16", "qwen3_5/vl", "qwen_moe/next_released", "qwen_moe/moe",
        "qwen_moe/moe_released", "kimi_linear/text", "kimi_linear/fused", "kimi_linear/published", "glm5_next/text"}) {
    SCOPED_TRACE(name);
    const std::string directory = testing::GoldenDirectory(name);
    const auto config = weights::ReadModelConfig(directory);
    const auto checkpoint = weights::Checkpoint::Open(directory);
    ASSERT_TRUE(config.ok() && checkpoint.ok());
    const auto f = FootprintOf(*config);
    ASSERT_TRUE(f.ok()) << f.status().message();
    int64_t expected = f->parameters;
    for (const auto& t : checkpoint->tensors()) {
      // Whether the file has them cannot be told from config.json.
      if (t.entry.name.starts_with("mtp.fc")) expected += f->mtp_parameters;
      if (t.entry.name == "model.visual.pos_embed.weight") expected += f->vision_parameters;  // Qwen
      if (t.entry.name == "model.visual.patch_embed.proj.weight" && config->glm_vision)
        expected += f->vision_parameters;
    }
    EXPECT_EQ(CountParameters(*checkpoint), expected);
  }
}

TEST(Footprint, ExpertsAreNotCountedOneByOne) {
  // A config.json from a stranger: a billion experts, counted in no time.
  const auto config = weights::ParseModelConfig(
      R"({"architectures": ["Qwen3NextForCausalLM"], "vocab_size": 10, "hidden_size": 2, "num_hidden_layers": 16384,
          "num_attention_heads": 1, "head_dim": 8, "num_experts": 65536, "moe_intermediate_size": 1})",
      "config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto f = FootprintOf(*config);
  ASSERT_TRUE(f.ok());
  EXPECT_GT(f->parameters, int64_t{16384} * 65536 * 3 * 2);
}

TEST(Footprint, ActiveParametersFollowTheExpertsOfAToken) {
  const auto config = weights::ReadModelConfig(testing::GoldenDirectory("qwen_moe/next"));
  ASSERT_TRUE(config.ok());
  const auto f = FootprintOf(*config);
  ASSERT_TRUE(f.ok());
  // Three layers with experts, one dense; 5 of 8 experts of 3 matrices [16, 64] rest.
  EXPECT_EQ(f->parameters - f->active_parameters, 3 * 5 * 3 * 16 * 64);
}

}  // namespace
}  // namespace fluvial::models
