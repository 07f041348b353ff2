// SPDX-License-Identifier: Apache-2.0
// moe: the routed experts of a mixture-of-experts layer. (The router that picks them is in router.h.)
//
// Token t goes to the experts e = ids[t, 0..K-1] with weights p = weights[t, 0..K-1]:
//     gate = r( x[t] * gate_e^T )    up = r( x[t] * up_e^T )              [I]
//     a    = r( r(silu(gate)) * up )                                      [I]
//            with a limit: gate <- min(gate, limit), up <- clamp(up, -limit, limit) first
//     o    = r( a * down_e^T )                                            [H]
//     y[t] <- r( y[t] + r(p * o) )   from zero, experts in ascending id
// r() rounds to the type of x and y, to nearest even; sums, activations and the products with p are fp32. These are the
// rounding points of transformers' eager experts (a loop over experts that adds into a tensor of the model's type).
// Source: models/qwen3_5_moe/modeling_qwen3_5_moe.py, Qwen3_5MoeExperts.forward, transformers 5.24; the clamp is that
// of models/glm5_next.
//
// A negative id is an empty slot: it adds nothing, and a token of empty slots gives zero. An expert named twice by a
// token is added twice. An id >= experts is kInvalidArgument; y is then undefined.
//
// Weights lie wherever the checkpoint has them: every expert brings three views, so that separate tensors and the two
// halves of a fused gate_up tensor are the same thing. Cost is that of the experts that are named, not of all.
// `cpu` fixes the order of all sums (see ops/gemm/gemm.h): a token's y does not depend on the batch around it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "ops/common/backend.h"

namespace fluvial::ops::moe {

inline constexpr std::string_view kOpName = "moe";
inline constexpr int32_t kMaxPerToken = 64;

/// How a weight [out, in] lies in memory.
enum class Layout : uint8_t {
  kOutputMajor,  ///< inner stride 1 along `in`: how linear layers are stored
  kInputMajor,   ///< inner stride 1 along `out`: [in, out] tensors (Qwen3-VL-MoE as released), seen as [out, in]
};

/// Everything selection may depend on. Value type.
struct Problem {
  int64_t tokens = 0;       ///< T
  int32_t experts = 0;      ///< E
  int32_t per_token = 0;    ///< K, 1..min(E, kMaxPerToken)
  int64_t hidden = 0;       ///< H
  int64_t inter = 0;        ///< I
  DType io = DType::kBF16;  ///< of x and y: fp32, bf16 or fp16
  DType w = DType::kBF16;   ///< of all expert weights: fp32, bf16 or fp16
  Layout gate_up = Layout::kOutputMajor;
  Layout down = Layout::kOutputMajor;
  float limit = 0;  ///< of the clamped SwiGLU; 0: none

  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// "moe m=64 e=64 top=8 h=2048 i=1024 io=bf16 w=bf16", then "gate_up=input", "down=input" and "limit=10" if they
  /// apply.
  std::string ToString() const;
};

/// Inverse of Problem::ToString; `seed=` is accepted and stored (default 1). Unknown fields are errors.
struct ProblemLine {
  Problem problem;
  uint64_t seed = 1;
};
Result<ProblemLine> ParseProblemLine(std::string_view line);

/// One expert. Dims are [out, in] whatever the layout; the layout says which stride is 1.
struct ExpertWeights {
  TensorView gate;  ///< w dtype [I, H]
  TensorView up;    ///< w dtype [I, H]
  TensorView down;  ///< w dtype [H, I]
};

/// Views of E experts in two stacked tensors, gate_up [E, 2I, H] (rows 0..I-1 of an expert are the gate) and
/// down [E, H, I], or their input-major forms [E, H, 2I] and [E, I, H]. Shapes must fit; nothing is copied.
std::vector<ExpertWeights> StackedExperts(const TensorView& gate_up, Layout gate_up_layout, const TensorView& down,
                                          Layout down_layout);

/// Tensors of one call. Inner stride 1 and any row pitch for x, y, ids and weights. y may be x (same view), otherwise
/// must not overlap an input.
struct Args {
  TensorView x;                            ///< io [T, H]
  TensorView ids;                          ///< i32 [T, K]; host memory is read while the call runs
  TensorView weights;                      ///< fp32 [T, K]
  std::span<const ExpertWeights> experts;  ///< E
  TensorView y;                            ///< io [T, H]
};

using MoeBackend = Backend<Problem, Args>;

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, pointers. Ids are checked by run.
Status Validate(const Problem& problem, const Args& args);

/// The visible ordered list, reference last.
std::span<const MoeBackend> Backends();

/// Validate + Select over Backends().
Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference);

}  // namespace fluvial::ops::moe
