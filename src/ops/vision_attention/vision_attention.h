// SPDX-License-Identifier: Apache-2.0
// Attention of vision encoders: every token of a sequence sees every token of the same sequence, both ways. Many
// sequences - images, video frames, or thousands of 64-token windows - lie packed in one call.
//
// Per sequence and head, over the L tokens of the sequence:
//     s_ij  = scale * <q_i, k_j>,          j = 1..L
//     out_i = sum_j exp(s_ij - m_i) v_j / sum_j exp(s_ij - m_i),   m_i = max_j s_ij
//     lse_i = m_i + ln(sum_j exp(s_ij - m_i))
// Source: Vaswani et al., "Attention Is All You Need" (arXiv 1706.03762), without a mask; the streaming form is
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867).
//
// What other libraries leave open is fixed here: sequences of no token are legal anywhere and give nothing; rows that
// belong to no sequence are neither read nor written; nothing of one sequence can reach another, NaN included;
// addresses are 64-bit; the scale is part of the problem, so no cache can replay another one; no buffer grows with
// tokens x tokens.
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

namespace fluvial::ops::vision_attention {

class RaggedPlan;  // ragged_plan.h

inline constexpr std::string_view kOpName = "vision_attention";
inline constexpr int32_t kMaxHeadDim = 256;

/// 1/sqrt(d): what encoders use unless their configuration says otherwise.
float DefaultScale(int32_t d);

/// Everything selection may depend on. Value type.
struct Problem {
  int32_t heads = 0;
  int32_t d = 80;           ///< head dimension; encoders have 64, 72, 80, 128
  DType io = DType::kBF16;  ///< q, k, v, out: bf16, fp16 or fp32
  float scale = 0;          ///< finite and > 0: give it, e.g. DefaultScale(d)
  bool lse = false;
  /// 0: packed, tensors are [tokens, heads, D]. P > 0: every sequence has room for P tokens, tensors are
  /// [sequences, P, heads, D]; rows behind a sequence's length are neither read nor written.
  int64_t padded = 0;
  int64_t tokens = 0;  ///< of all sequences together
  int32_t sequences = 0;
  int64_t max_length = 0;
  int64_t pairs = 0;  ///< sum of squared lengths: the work, for costs
  /// Bytes (16, 8, 4, 2) that divide every base address and every stride but the innermost of q, k, v and out.
  int32_t alignment = 16;
  /// Device memory that a library may take for one call, in MiB (cuDNN); 0: its own bound.
  int32_t workspace_mb = 0;

  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// Fields of the text line without lengths (the caller writes lens=): "vision_attention heads=16 d=80 ...".
  std::string ToString() const;
};

/// Tensors of one call, T = tokens. q, k, v may be strided views of one packed buffer, e.g. [T, 3, H, D]: unit inner
/// stride, any other strides. A packed 4-D tensor [1, T, H, D] (lse [1, T, H]) is taken as well. `out` and `lse` share
/// no byte with another tensor.
struct Args {
  TensorView q;    ///< io [T, H, D], or [sequences, padded, H, D]
  TensorView k;    ///< same dims
  TensorView v;    ///< same dims
  TensorView out;  ///< same dims
  TensorView lse;  ///< fp32 [T, H] or [sequences, padded, H], natural logarithm; undefined unless problem.lse
  /// Lengths and their order; slots are not used. May hold less than the problem's bounds (capacity of captured
  /// graphs). One plan serves all layers of its kind: full layers have one, window layers another.
  const SequencePlan* plan = nullptr;
  /// Of the same lengths, for the strides of these tensors: backend `cudnn` needs it, the others ignore it.
  const RaggedPlan* ragged = nullptr;
};

using VisionBackend = Backend<Problem, Args>;

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, alignment, overlap, plan within bounds.
Status Validate(const Problem& problem, const Args& args);

/// Fills the fields of `problem` that follow from lengths: tokens, sequences, max_length, pairs.
void SetLengths(Problem& problem, std::span<const int64_t> lengths);

/// The visible ordered list, reference last.
std::span<const VisionBackend> Backends();

/// Validate + Select over Backends().
Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference);

/// Where the rows of one tensor lie, in elements: row i of sequence n, head h is at
/// n * sequence + (first token of n) * packed + i * token + h * head.
struct RowStrides {
  int64_t sequence = 0, packed = 0, token = 0, head = 0;
  int64_t At(int64_t n, int64_t first_token, int64_t i, int64_t h) const {
    return n * sequence + first_token * packed + i * token + h * head;
  }
};
RowStrides StridesOf(const Problem& problem, const TensorView& tensor);
/// The same of lse, whose last dimension is the head.
RowStrides LseStridesOf(const Problem& problem, const TensorView& lse);

/// A problem line: the operator, its fields and lens=; scale is 1/sqrt(d) when absent; unknown fields are errors.
struct ProblemLine {
  Problem problem;
  std::vector<int64_t> lengths;
  uint64_t seed = 1;
};
Result<ProblemLine> ParseProblemLine(std::string_view line);
std::string FormatProblemLine(const ProblemLine& line);

}  // namespace fluvial::ops::vision_attention
