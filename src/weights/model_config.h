// SPDX-License-Identifier: Apache-2.0
// ModelConfig: config.json of a checkpoint as one plain struct, whatever its spelling.
//
// Old and new files differ: text fields at the top level or in `text_config`, `rope_theta`/`rope_scaling` or
// `rope_parameters`, `torch_dtype` or `dtype`. All are read; where both exist the new spelling wins. A missing key
// takes the default that transformers' configuration class has, named at the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "fluvial/status.h"

namespace fluvial::weights {

enum class Architecture : uint8_t {
  kQwen3_5,
  kQwen3_5Moe,
  kQwen3Next,
  kQwen2_5Vl,
  kQwen3Vl,
  kQwen3VlMoe,
  kKimiLinear,
  kGlm5Next,
};

/// "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "kimi_linear", "glm5_next".
std::string_view Name(Architecture architecture);

enum class LayerType : uint8_t { kFullAttention, kLinearAttention };

struct RopeConfig {
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;  ///< rotary dims = int(head_dim * factor)
  /// Pair indexes per axis (time, height, width); empty = 1-D positions.
  std::vector<int64_t> mrope_section;
  bool mrope_interleaved = false;
};

/// Gated DeltaNet and Kimi Delta Attention layers.
struct LinearAttentionConfig {
  int64_t key_heads = 16;
  int64_t value_heads = 32;
  int64_t key_dim = 128;
  int64_t value_dim = 128;
  int64_t conv_kernel = 4;
  DType state_dtype = DType::kF32;  ///< mamba_ssm_dtype
  /// KDA: the bounded gate's lower bound; absent = softplus gate.
  std::optional<double> gate_lower_bound;

  /// Channels of the convolution: q, k and v.
  int64_t conv_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

/// Mixture of experts; experts == 0 means a dense FFN.
struct MoeConfig {
  int64_t experts = 0;
  int64_t per_token = 0;
  int64_t intermediate = 0;
  int64_t shared_intermediate = 0;
  bool renormalise = true;
  int64_t sparse_step = 1;
  std::vector<int64_t> dense_layers;  ///< mlp_only_layers
  // Sigmoid router with a correction bias (Kimi, GLM).
  bool sigmoid = false;
  int64_t groups = 1;
  int64_t groups_kept = 1;
  double scale = 1;  ///< routed_scaling_factor
};

/// Multi-head latent attention without position encoding; rank == 0 means there is none.
struct LatentAttentionConfig {
  int64_t query_rank = 0;  ///< q_lora_rank; 0: one projection
  int64_t rank = 0;        ///< kv_lora_rank
  int64_t nope = 128;
  int64_t rope = 64;
  int64_t v = 128;
  double norm_eps = 1e-6;  ///< of the norms of the latents

  int64_t qk() const { return nope + rope; }
};

/// Sparse attention's indexer over pooled keys; topk == 0 means there is none.
struct IndexerConfig {
  int64_t topk = 0;  ///< tokens kept per query, a multiple of `pool`
  int64_t heads = 32;
  int64_t dim = 128;
  int64_t pool = 16;
  bool select_tail = true;   ///< the incomplete last pool is always seen
  std::vector<bool> shared;  ///< per layer: takes the selection of the indexed layer before it
};

/// Manifold-constrained hyper-connections: residual streams; streams == 1 means there are none.
struct HyperConnectionConfig {
  int64_t streams = 1;
  double eps = 1e-6;
  int64_t iterations = 20;
};

/// Vision tower: that of Qwen3-VL and Qwen3.5 (LayerNorm, GELU, a resampled position table), or that of Qwen2.5-VL
/// (RMSNorm, SwiGLU, windows).
struct VisionConfig {
  bool windowed = false;  ///< Qwen2.5-VL
  int64_t depth = 27;
  int64_t hidden = 1152;
  int64_t intermediate = 4304;
  int64_t heads = 16;
  int64_t in_channels = 3;
  int64_t patch = 16;
  int64_t temporal_patch = 2;
  int64_t merge = 2;
  int64_t out_hidden = 3584;
  int64_t positions = 2304;  ///< rows of the position table, a square number; 0 with `windowed`
  double rope_theta = 10000.0;
  std::vector<int64_t> deepstack;  ///< blocks whose output also reaches the first text layers; Qwen3-VL
  // `windowed` only.
  int64_t window = 112;              ///< side in pixels
  std::vector<int64_t> full_blocks;  ///< blocks that see the whole picture
  double tokens_per_second = 4;      ///< of the time axis of positions
};

/// Vision tower of GLM-5.3. Nothing runs it yet; its parameters are counted.
struct GlmVisionConfig {
  int64_t depth = 24;
  int64_t hidden = 1024;
  int64_t intermediate = 4096;
  int64_t heads = 16;
  int64_t in_channels = 3;
  int64_t patch = 14;
  int64_t temporal_patch = 2;
  int64_t merge = 2;
  int64_t out_hidden = 1536;
  int64_t projection = 10240;  ///< projection_intermediate_size
};

struct ModelConfig {
  Architecture architecture = Architecture::kQwen3_5;
  std::string architecture_name;  ///< architectures[0], or model_type when the file has none
  std::string model_type;

  int64_t vocab = 0;  ///< rows of the embedding; may exceed the tokenizer's size
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 32768;
  double norm_eps = 1e-6;
  bool attention_bias = false;
  bool attention_output_gate = true;
  bool tied_embeddings = false;
  std::optional<DType> dtype;  ///< dtype / torch_dtype; absent = that of the tensors
  std::vector<LayerType> layer_types;
  RopeConfig rope;
  LinearAttentionConfig linear;
  MoeConfig moe;
  LatentAttentionConfig latent;
  IndexerConfig indexer;
  HyperConnectionConfig hyper;
  double swiglu_limit = 0;  ///< 0: not clamped
  std::optional<VisionConfig> vision;
  std::optional<GlmVisionConfig> glm_vision;
  int64_t mtp_layers = 0;

  int64_t image_token = -1;
  int64_t video_token = -1;
  int64_t vision_start_token = -1;
  int64_t vision_end_token = -1;
  std::vector<int64_t> eos_tokens;  ///< of config.json; generation_config.json overrides

  int64_t rotary_dim() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
  }
  int64_t CountLayers(LayerType type) const;
  /// Whether the feed-forward of layer `i` is a mixture of experts.
  bool HasExperts(int64_t i) const;
};

/// Reads the text of a config.json; `file` names it in messages. kUnusableModel when a value has the wrong type or
/// the pieces contradict each other; an architecture that is not known is refused with the list of those that are.
Result<ModelConfig> ParseModelConfig(const std::string& text, const std::string& file);

/// Reads `directory`/config.json.
Result<ModelConfig> ReadModelConfig(const std::string& directory);

}  // namespace fluvial::weights
