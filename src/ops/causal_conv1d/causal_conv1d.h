// SPDX-License-Identifier: Apache-2.0
// Causal depthwise convolution ("short conv") of the linear-attention layers, prefill and decode in one.
//
// Per sequence and channel c, with x[t] for t < 0 taken from the state (or zero), for tokens t = 0..L-1:
//     y[t][c]   = bias[c] + sum over j = 0..W-1 of weight[c][j] * x[t - (W-1) + j][c]      tap W-1 is the current token
//     out[t][c] = activation(y[t][c])
//     state     = the last W-1 inputs x (before weights, bias and activation), oldest first
// Source: the models' published definition, torch.nn.Conv1d(groups=C, padding=W-1) cut to L outputs followed by SiLU.
//
// State layout: [slot, W-1, C], channels innermost: row i is the input W-1-i tokens before the next one. Any slot
// pitch. Negative slots read zeros and write nothing; an empty sequence hands its state on (copies read slot to write
// slot, or writes zeros); a sequence shorter than W-1 shifts the old window. A state holds inputs exactly, so its dtype
// is fp32 or the io dtype. Splitting a sequence anywhere gives the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "ops/common/backend.h"
#include "ops/common/sequence_plan.h"

namespace fluvial::ops::causal_conv1d {

inline constexpr std::string_view kOpName = "causal_conv1d";
inline constexpr int32_t kMinWidth = 2;
inline constexpr int32_t kMaxWidth = 8;

enum class Activation : uint8_t { kNone, kSilu };

/// Where values are rounded to the io dtype (nothing differs for fp32).
enum class Rounding : uint8_t {
  kOnce,   ///< fp32 from the taps to the activation, one rounding at the end: KDA (fp32 weights), FLA kernels
  kEager,  ///< y is rounded to io, then the activation (fp32 inside) is rounded again: GDN in torch eager
};

/// Everything selection may depend on. Value type.
struct Problem {
  int32_t channels = 0;
  int32_t width = 4;  ///< W, kMinWidth..kMaxWidth
  DType io = DType::kBF16;
  DType weight = DType::kBF16;  ///< weight and bias: fp32, or the io dtype
  DType state = DType::kBF16;   ///< fp32, or the io dtype: a narrower state would make results depend on splits
  bool has_bias = false;
  Activation activation = Activation::kSilu;
  Rounding rounding = Rounding::kOnce;
  int64_t tokens = 0;
  int32_t sequences = 0;
  int64_t max_length = 0;
  /// Also write the state after every n-th token of a sequence (0: none), for prefix caching.
  int32_t checkpoint_every = 0;
  /// Keep a state per token (verification of drafts that may be rejected): see Args::token_slots.
  bool token_states = false;

  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// "causal_conv1d c=8192 w=4 io=bf16 ..." without lens= and seed=.
  std::string ToString() const;
};

/// Longest sequence of a call with token_states.
inline constexpr int64_t kMaxTokenStates = 16;

/// Tensors of one call. T = tokens, C = channels, W = width. Unit inner stride; rows of x and out may have any pitch
/// (slices of a fused projection). Nothing that is written may overlap anything that is read, except that a sequence
/// may read and write the same slot.
struct Args {
  TensorView x;       ///< io [T, C]
  TensorView weight;  ///< weight dtype [C, W], packed: the checkpoint's [C, 1, W]
  TensorView bias;    ///< weight dtype [C]; undefined unless has_bias
  TensorView out;     ///< io [T, C]
  TensorView state;   ///< state dtype [slots, W-1, C]; inner two packed, any slot pitch
  /// state dtype [rows, W-1, C], packed: rows of sequence n start at the sum over m < n of floor(len_m / every); row j
  /// holds the state after token (j+1)*every.
  TensorView checkpoints;
  /// With token_states: i32 [N, max_length], the slot that takes the state after each token; negative = do not write.
  /// The plan's write slots are then not used.
  TensorView token_slots;
  const SequencePlan* plan = nullptr;
};

using ConvBackend = Backend<Problem, Args>;

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, slots within the pool, checkpoints large enough.
Status Validate(const Problem& problem, const Args& args);

/// Fills the fields of `problem` that follow from lengths: tokens, sequences, max_length.
void SetLengths(Problem& problem, std::span<const int64_t> lengths);

/// The visible ordered list, reference last.
std::span<const ConvBackend> Backends();

/// Validate + Select over Backends().
Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference);

/// A problem line: the operator, its fields and lens=; unknown fields are errors.
struct ProblemLine {
  Problem problem;
  std::vector<int64_t> lengths;
  uint64_t seed = 1;
};
Result<ProblemLine> ParseProblemLine(std::string_view line);
std::string FormatProblemLine(const ProblemLine& line);

}  // namespace fluvial::ops::causal_conv1d
