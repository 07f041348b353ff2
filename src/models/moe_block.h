// SPDX-License-Identifier: Apache-2.0
// Mixture of experts as a block of a model: router, routed experts, shared expert. For all families: softmax and
// sigmoid routers, per-expert and stacked tensors, shared experts with a gate or without.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/blocks.h"
#include "ops/moe/moe.h"
#include "ops/moe/router.h"
#include "weights/weight_reader.h"

namespace fluvial::models {

struct MoeDims {
  int64_t hidden = 0;
  int64_t inter = 0;         ///< of a routed expert
  int64_t shared_inter = 0;  ///< of all shared experts together, as one wide MLP; 0: none
  float limit = 0;           ///< of the clamped SwiGLU, routed experts; the shared one has its own in MlpWeights
  ops::moe::RouterSpec router;
};

struct MoeWeights {
  TensorView router;       ///< [E, H]
  TensorView router_bias;  ///< fp32 [E]; undefined without a correction bias
  std::vector<ops::moe::ExpertWeights> experts;
  DType dtype = DType::kBF16;  ///< of all expert weights
  ops::moe::Layout gate_up = ops::moe::Layout::kOutputMajor;
  ops::moe::Layout down = ops::moe::Layout::kOutputMajor;
  MlpWeights shared;       ///< undefined without a shared expert
  TensorView shared_gate;  ///< [1, H]; undefined: the shared expert is added as it is
};

Result<size_t> MoeBytes(Operators& operators, const Step& step, const MoeDims& dims, const MoeWeights& w, DType io);

/// y = sum over the experts of each token of weight * expert(x), plus shared(x), or sigmoid(shared_gate x) * shared(x).
/// x and y [T, H], not the same. A softmax router works on logits of the model's type, a sigmoid router on fp32 ones.
Status Moe(const BlockContext& c, const MoeDims& dims, const MoeWeights& w, const TensorView& x, const TensorView& y);

/// What the tensors of one expert are called between `experts.{e}.` and `.weight`: gate, up, down.
using ExpertNames = std::array<std::string_view, 3>;
inline constexpr ExpertNames kProjNames = {"gate_proj", "up_proj", "down_proj"};

/// Takes the routed experts under `prefix` ("model.layers.3.mlp.experts."), whichever is there: per-expert tensors
/// `{e}.<name>.weight`, or stacked `gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I], or their input-major forms
/// [E, H, 2I] and [E, I, H]. The shape decides; where it fits both, `square` does. Missing and misfitting tensors are
/// the reader's to report; kUnusableModel when experts of one layer have different types.
Status TakeExperts(weights::WeightReader& reader, const std::string& prefix, const MoeDims& dims,
                   const ExpertNames& names, ops::moe::Layout square, MoeWeights& w);

}  // namespace fluvial::models
