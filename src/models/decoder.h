// SPDX-License-Identifier: Apache-2.0
// What all decoder models share around their layers: loading odds and ends, the check of a step, the head.
#pragma once

#include <cstdint>
#include <vector>

#include "models/blocks.h"
#include "ops/norm/norm.h"
#include "weights/checkpoint.h"
#include "weights/model_config.h"
#include "weights/weight_reader.h"

namespace fluvial::models {

/// Copies of small weights in another type; lives as long as the views that it gave.
class WeightCopies {
 public:
  /// `weight` itself when it has the type already or is undefined; else a packed copy. For small tensors.
  TensorView As(const TensorView& weight, DType dtype);
  /// Copies that a reader made of unaligned tensors.
  void Keep(std::vector<std::vector<uint64_t>> copies);

 private:
  std::vector<std::vector<uint64_t>> copies_;
};

/// Type of the activations: the user's choice, else that of config.json, else that of the first tensor.
/// kInvalidArgument unless fp32, bf16 or fp16.
Result<DType> ActivationType(const LoadOptions& options, const weights::ModelConfig& config,
                             const weights::Checkpoint& checkpoint);

/// Elements of all tensors.
int64_t CountParameters(const weights::Checkpoint& checkpoint);

/// kInvalidArgument when a step's plans contradict each other or its caches are not one per layer.
Status CheckStep(const Step& step, size_t layers);

/// y = norm(x), or residual <- r(residual + x), y = norm(residual) when a residual is given.
Status Norm(const BlockContext& c, ops::norm::Form form, const TensorView& weight, const TensorView& x,
            const TensorView& residual, const TensorView& y);

struct HeadWeights {
  ops::norm::Form form = ops::norm::Form::kRmsZeroCentred;
  TensorView norm;     ///< [H], of the last hidden state
  TensorView lm_head;  ///< [V, H]; the embedding when tied
};

Result<size_t> HeadBytes(Operators& operators, const Step& step, const HeadWeights& w, DType io);

/// step.logits = norm(rows of hidden) lm_head^T, rounded to the model's type and then widened. hidden [T, H].
Status Head(const BlockContext& c, const HeadWeights& w, const TensorView& hidden);

/// Takes `lm_head.weight` [V, H], or ties it to `embed`: an lm_head in the file is then not used, with a warning.
TensorView TakeHead(weights::WeightReader& reader, const weights::ModelConfig& config, const TensorView& embed);

}  // namespace fluvial::models
