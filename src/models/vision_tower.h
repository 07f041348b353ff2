// SPDX-License-Identifier: Apache-2.0
// VisionTower: pictures and videos to features in the text model's width. One class for two relatives:
//
//   Qwen3-VL, Qwen3.5   LayerNorm, GELU, every block sees one frame group, positions from a resampled table; with
//                       DeepStack some blocks give features of their own, which later text layers add
//   Qwen2.5-VL          RMSNorm, SwiGLU, most blocks see windows of the picture only
//
// Both rotate q and k by patch row and column, and merge m x m patches into one feature. Sources:
// huggingface/transformers 5.24, models/qwen3_vl, qwen3_5 and qwen2_5_vl (torch path). Rounding points are those of the
// eager code: every linear layer, norm, activation and residual sum is rounded to the model's type; rotation is fp32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/tensor_view.h"
#include "device/device.h"
#include "fluvial/status.h"
#include "fluvial/vision.h"
#include "models/operators.h"
#include "models/vision_layout.h"
#include "models/vision_plan.h"
#include "weights/model_config.h"
#include "weights/weight_reader.h"

namespace fluvial::models {

struct LinearWeights {
  TensorView weight;  ///< [out, in]
  TensorView bias;    ///< [out]; undefined without one
};

struct NormWeights {
  TensorView weight;
  TensorView bias;  ///< LayerNorm only
};

struct VisionBlockWeights {
  NormWeights norm1, norm2;
  LinearWeights qkv, proj;
  LinearWeights up;    ///< fc1
  LinearWeights down;  ///< fc2
  LinearWeights gate;  ///< SwiGLU only
};

struct MergerWeights {
  NormWeights norm;  ///< of a patch, or with `after` of the merged patches
  LinearWeights up, down;
  bool after = false;
};

class VisionTower {
 public:
  /// Takes the tensors under `prefix` ("model.visual.") from `reader`, whose Finish() reports what is missing.
  VisionTower(weights::WeightReader& reader, const std::string& prefix, const weights::ModelConfig& config, DType io);

  const VisionRules& rules() const { return rules_; }
  /// Features per token: 1, and one per DeepStack block.
  int64_t levels() const { return 1 + static_cast<int64_t>(deepstack_.size()); }
  int64_t width() const { return config_.out_hidden; }

  /// Scratch of Encode.
  Result<size_t> WorkspaceBytes(Operators& operators, std::span<const VisionInput> items) const;

  /// features, the model's type [levels, tokens of all items, width], packed: items one after the other. `items` have
  /// passed CheckVisionInput.
  Status Encode(Stream& stream, Operators& operators, std::span<const VisionInput> items, const TensorView& features,
                Arena& arena) const;

 private:
  struct Run;
  Status Embed(Run& run, std::span<const VisionInput> items) const;
  Status AddPositions(Run& run, std::span<const VisionInput> items) const;
  Status Attention(Run& run, const VisionBlockWeights& w, bool full) const;
  Status Mlp(Run& run, const VisionBlockWeights& w) const;
  Status Merge(Run& run, const MergerWeights& w, const TensorView& x, const TensorView& features) const;
  Status Norm(Run& run, const NormWeights& w, const TensorView& x, const TensorView& residual,
              const TensorView& y) const;
  bool IsFull(int64_t block) const;
  ops::vision_attention::Problem AttentionProblem(std::span<const int64_t> lengths) const;

  weights::VisionConfig config_;
  VisionRules rules_;
  DType io_;
  LinearWeights patch_;            ///< the 3-D convolution as a matrix
  TensorView table_;               ///< [positions, hidden]; undefined when windowed
  std::vector<float> table_copy_;  ///< of a table in another type than fp32, so that it is widened once
  std::vector<VisionBlockWeights> blocks_;
  MergerWeights merger_;
  std::vector<MergerWeights> deepstack_;
};

}  // namespace fluvial::models
