// SPDX-License-Identifier: Apache-2.0
// Model: what the engine needs of an architecture. A model owns its weights and nothing that belongs to a call:
// caches, states and scratch come with every step, so that any number of sequences share one model.
//
// A step runs T packed tokens of N sequences - decode rows first, then prompt chunks - and leaves the logits of the
// rows that are asked for. Everything that depends on lengths is in plans made once per step (design: plan).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/tensor_view.h"
#include "device/device.h"
#include "fluvial/status.h"
#include "fluvial/vision.h"
#include "models/vision_plan.h"
#include "ops/common/sequence_plan.h"
#include "ops/paged_attention/kv_plan.h"

namespace fluvial::models {

/// What one layer keeps between steps. Exactly one of the two groups is non-zero.
struct LayerCacheSpec {
  // Full attention: pages K [pages, kv_heads, page_size, d_qk] and V [.., d_v]. Latent attention: kv_heads = 1, one row
  // of latent and shared key columns per token in K, and in V the indexer's row, absent with d_v = 0.
  int32_t kv_heads = 0;
  int32_t d_qk = 0;
  int32_t d_v = 0;
  // Linear attention: conv [slots, conv_width-1, conv_channels] and recurrent [slots, value_heads, v, k].
  int32_t conv_channels = 0;
  int32_t conv_width = 0;
  int32_t value_heads = 0;
  int32_t v = 0;
  int32_t k = 0;

  bool linear() const { return value_heads != 0; }
};

/// What a model keeps per sequence, for the pools to allocate.
struct CacheSpec {
  DType kv = DType::kBF16;
  DType conv = DType::kBF16;
  DType recurrent = DType::kF32;
  std::vector<LayerCacheSpec> layers;

  /// Bytes of one slot over all linear layers, and of one token's keys and values over all attention layers.
  size_t SlotBytes() const;
  size_t TokenBytes() const;
};

/// Tensors behind a LayerCacheSpec.
struct LayerCache {
  TensorView k_pages;
  TensorView v_pages;
  TensorView conv;
  TensorView recurrent;
};

/// Called with the residual stream [T, H] (the model's type): layer 0 = embeddings, l = output of layer l-1. For tests.
using HiddenObserver = std::function<void(int layer, const TensorView& hidden)>;

/// Rows of a step whose embeddings are features of a picture.
struct VisionRows {
  int64_t row = 0;      ///< the first of features.dim(1) rows
  TensorView features;  ///< model's type [levels, n, H], unit inner stride: Model::Encode's output, or rows of it
};

/// One step. T = tokens, N = sequences, R = rows whose logits are wanted, V = vocabulary.
struct Step {
  TensorView ids;        ///< i32 [T]; 0 <= id < V
  TensorView positions;  ///< i32 or i64 [1, T], or [3, T] (time, height, width) for models with mRoPE
  /// Sequences of one token each, rows 0..sequences()-1; nullptr when there is none. Slots index the states.
  const ops::SequencePlan* decode = nullptr;
  /// Sequences of any length, the rows after those of `decode`; nullptr when there is none.
  const ops::SequencePlan* prefill = nullptr;
  /// All N sequences in row order; contexts and pages of the attention layers.
  const ops::paged_attention::KvPlan* kv = nullptr;
  const std::vector<LayerCache>* caches = nullptr;  ///< one per layer
  TensorView logit_rows;                            ///< i32 [R], rows of 0..T-1; undefined when R = 0
  TensorView logits;                                ///< fp32 [R, V]
  const std::vector<VisionRows>* vision = nullptr;  ///< not overlapping; nullptr when no row is a picture's
  const HiddenObserver* observer = nullptr;

  int64_t tokens() const { return ids.rank == 0 ? 0 : ids.dim(0); }
  int64_t rows() const { return logit_rows.defined() ? logit_rows.dim(0) : 0; }
};

/// One operator's backend in use.
struct OperatorUse {
  std::string op;
  std::string name;         ///< several names, comma-separated, when shapes chose differently
  std::string explanation;  ///< ops::Describe of the last choice that brought a new name
};

class Model {
 public:
  virtual ~Model() = default;

  virtual std::string_view architecture() const = 0;
  virtual DType dtype() const = 0;
  virtual int64_t vocab() const = 0;
  virtual int64_t max_positions() const = 0;
  virtual int64_t parameters() const = 0;
  virtual uint64_t weight_bytes() const = 0;
  virtual const CacheSpec& cache_spec() const = 0;
  virtual bool has_vision() const = 0;

  /// Bytes of scratch that Forward needs for `step` (tensors need shapes only; nothing is read). Errors: kRefused when
  /// a backend named by the user cannot take the step's shapes, kInvalidArgument when the step contradicts itself.
  virtual Result<size_t> WorkspaceBytes(const Step& step) = 0;

  /// Runs the step on `stream`. Allocates nothing on the device; `arena` must have WorkspaceBytes(step) free. After an
  /// error the caches of the step's sequences are undefined.
  virtual Status Forward(Stream& stream, const Step& step, Arena& arena) = 0;

  /// How prompts hold pictures; nullptr for a model that takes none. The same as has_vision().
  virtual const VisionRules* vision() const { return nullptr; }
  /// Features of one token: 1, or more where later layers add features too (DeepStack).
  virtual int64_t vision_levels() const { return 1; }
  /// Elements of one feature: the width of the residual stream; 0 without a tower.
  virtual int64_t vision_width() const { return 0; }
  /// Bytes of scratch that Encode needs for `items`.
  virtual Result<size_t> EncodeBytes(std::span<const VisionInput> items);
  /// Runs the vision tower: features, the model's type [levels, tokens of all items, H], packed. `items` have passed
  /// CheckVisionInput.
  virtual Status Encode(Stream& stream, std::span<const VisionInput> items, const TensorView& features, Arena& arena);

  /// Backends used so far.
  virtual std::vector<OperatorUse> operators() const = 0;
};

struct LoadOptions {
  std::optional<DType> dtype;            ///< activations; absent: that of the checkpoint
  std::optional<DType> conv_dtype;       ///< convolution states; absent: that of the activations
  std::optional<DType> recurrent_dtype;  ///< absent: that of config.json, else fp32
  std::map<std::string, std::string> backends;
};

/// Loads the checkpoint in `directory` for `stream`'s device. Errors: kUnusableModel naming file and remedy, kRefused,
/// kInvalidArgument (an operator name nobody knows).
Result<std::unique_ptr<Model>> LoadModel(const std::string& directory, const LoadOptions& options, Stream& stream);

}  // namespace fluvial::models
