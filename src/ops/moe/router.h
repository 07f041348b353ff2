// SPDX-License-Identifier: Apache-2.0
// Router of a mixture of experts: from the logits of a token to its experts and their weights. A small function between
// two GEMMs: no backends to choose from.
//
//   kSoftmax (Qwen)                p = softmax(logits) in fp32 over all E; the K largest; weight = p
//   kSigmoid (Kimi, GLM, DeepSeek) s = sigmoid(logits) in fp32; choice c = s + bias; with G > 1 groups of E/G experts
//                                  only those of the `groups_kept` groups with the largest score stay (score of a
//                                  group: the sum of its two largest c); the K largest c; weight = s, without the bias
//   then, when `renormalise`:      weight <- weight / (sum of the K weights [+ 1e-20 for kSigmoid])
//   then                           weight <- r( weight * scale ), r() rounds to `weight_type`
//
// Equal choices: the lower id (or group) first. Experts of a token are listed by falling choice. A logit may be -inf;
// with NaN among the logits (or +inf for kSoftmax) a token's ids are still valid and distinct, and its weights are NaN.
// Source: transformers 5.24, Qwen3_5MoeTopKRouter (softmax; weights in the type of the logits) and
// models/kimi_linear, KimiLinearTopkRouter / glm5_next (sigmoid; fp32 throughout).
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops::moe {

enum class Scoring : uint8_t { kSoftmax, kSigmoid };

struct RouterSpec {
  Scoring scoring = Scoring::kSoftmax;
  int32_t experts = 0;      ///< E, 1..65536
  int32_t per_token = 0;    ///< K, 1..min(E, kMaxPerToken)
  int32_t groups = 1;       ///< kSigmoid only; divides E
  int32_t groups_kept = 1;  ///< 1..groups; together they must hold at least K experts
  bool renormalise = true;
  float scale = 1;                  ///< routed_scaling_factor
  DType weight_type = DType::kF32;  ///< fp32, bf16 or fp16

  friend bool operator==(const RouterSpec&, const RouterSpec&) = default;
};

/// T tokens; inner stride 1, any row pitch.
struct RouteArgs {
  TensorView logits;   ///< fp32, bf16 or fp16 [T, E]
  TensorView bias;     ///< fp32 [E]: e_score_correction_bias; undefined without one and for kSoftmax
  TensorView ids;      ///< i32 [T, K]
  TensorView weights;  ///< fp32 [T, K]
};

/// kInvalidArgument naming field, value and rule.
Status Validate(const RouterSpec& spec);

/// Errors: Validate's, kInvalidArgument for tensors that do not fit, kRefused on a device without a body.
Status Route(Stream& stream, const RouterSpec& spec, const RouteArgs& args);

}  // namespace fluvial::ops::moe
