// SPDX-License-Identifier: Apache-2.0
// Operators: the backend choices of one loaded model. Applies the user's preferences, keeps the explanation of every
// choice, and runs the chosen bodies; the same for all architectures.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "device/device.h"
#include "fluvial/status.h"
#include "models/model.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/common/backend.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/gemm/gemm.h"
#include "ops/moe/moe.h"
#include "ops/paged_attention/mla_attention.h"
#include "ops/paged_attention/paged_attention.h"
#include "ops/pool_index/pool_index.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::models {

class Operators {
 public:
  /// kInvalidArgument for an operator name that does not exist, with the list.
  static Result<Operators> Create(const DeviceInfo& device, const std::map<std::string, std::string>& preferences);

  // The backend for a problem; kRefused when the one asked for cannot take it. All layers of a step ask the same
  // question, so the last answer is kept.
  Result<const ops::delta_rule::DeltaBackend*> Choose(const ops::delta_rule::Problem& problem);
  Result<const ops::causal_conv1d::ConvBackend*> Choose(const ops::causal_conv1d::Problem& problem);
  Result<const ops::paged_attention::AttentionBackend*> Choose(const ops::paged_attention::Problem& problem);
  Result<const ops::mla_attention::MlaBackend*> Choose(const ops::mla_attention::Problem& problem);
  Result<const ops::pool_index::IndexBackend*> Choose(const ops::pool_index::Problem& problem);
  Result<const ops::moe::MoeBackend*> Choose(const ops::moe::Problem& problem);
  Result<const ops::vision_attention::VisionBackend*> Choose(const ops::vision_attention::Problem& problem);

  /// Scratch of y = x w^T for `problem`.
  Result<size_t> LinearBytes(const ops::gemm::Problem& problem);

  /// y = x w^T (+ bias when defined). x [M, K], w [N, K], y [M, N]; scratch is taken from the arena and given back.
  Status Linear(Stream& stream, const TensorView& x, const TensorView& w, const TensorView& bias, const TensorView& y,
                Arena& arena);

  const DeviceInfo& device() const { return device_; }
  std::vector<OperatorUse> uses() const { return uses_; }

 private:
  Operators(const DeviceInfo& device, std::map<std::string, std::string> preferences);
  std::string_view Preference(std::string_view op) const;
  /// The last question and its answer.
  template <class Problem, class Args>
  struct Last {
    Problem problem;
    const ops::Backend<Problem, Args>* backend = nullptr;
  };
  template <class Problem, class Args, class ChooseFn>
  Result<const ops::Backend<Problem, Args>*> Remember(Last<Problem, Args>& last, std::string_view op,
                                                      const Problem& problem, ChooseFn choose);
  template <class Problem, class Args>
  const ops::Backend<Problem, Args>* Note(std::string_view op, const ops::Selection<Problem, Args>& selection);

  DeviceInfo device_;
  std::map<std::string, std::string> preferences_;
  ops::gemm::Linear linear_;
  std::vector<OperatorUse> uses_;
  Last<ops::delta_rule::Problem, ops::delta_rule::Args> last_prefill_, last_decode_;
  Last<ops::causal_conv1d::Problem, ops::causal_conv1d::Args> last_conv_;
  Last<ops::paged_attention::Problem, ops::paged_attention::Args> last_attention_;
  Last<ops::mla_attention::Problem, ops::mla_attention::Args> last_mla_;
  Last<ops::pool_index::Problem, ops::pool_index::Args> last_index_;
  Last<ops::moe::Problem, ops::moe::Args> last_moe_;
  Last<ops::vision_attention::Problem, ops::vision_attention::Args> last_vision_;
};

}  // namespace fluvial::models
