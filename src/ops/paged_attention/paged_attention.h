// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention over a paged key/value cache; prefill chunks and decode rows mixed in one call.
//
// Query i of sequence n stands at position p = context_n + i and sees keys 0..p of its own sequence:
//     s_j   = scale * <q_i, k_j>,   j = 0..p
//     out_i = sum_j exp(s_j - m) v_j / sum_j exp(s_j - m),   m = max_j s_j
//     lse_i = m + ln(sum_j exp(s_j - m))
// Query head h reads key/value head h / (Hq/Hkv). The keys and values of the new tokens must be in the pages already:
// call AppendKv first. Streaming softmax: no buffer grows with queries x keys.
//
// Pages: K [pages, Hkv, page_size, Dqk] and V [pages, Hkv, page_size, Dv], unit inner stride, any other strides - so a
// cache kept as [pages, page_size, Hkv, D], K and V interleaved in one page, or V as a slice of K (latent MLA) are
// views of the same contract. The recommended allocation is the packed one: a (page, head) is one contiguous block.
//
// Rows beyond a sequence's end, pages of other sequences and unused pages are never read. Nothing that a query may not
// see can reach it, NaN included: masked keys are selected away, never multiplied by zero.
//
// Results of the cpu backend do not depend, bit for bit, on batch company, on the number of threads, on the page size
// or on how a prompt is split into calls.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "ops/common/backend.h"
#include "ops/paged_attention/kv_plan.h"

namespace fluvial::ops::paged_attention {

inline constexpr std::string_view kOpName = "paged_attention";
inline constexpr int32_t kMaxHeadDim = 640;  ///< latent MLA needs 576

/// Where values are rounded to the io dtype (nothing differs for fp32).
enum class Rounding : uint8_t {
  kOnce,   ///< scores and probabilities in fp32, the output rounded once: flash attention, SDPA
  kEager,  ///< scores rounded, scaled, rounded; softmax in fp32, probabilities rounded; output rounded: torch eager
};

/// Everything selection may depend on. Value type.
struct Problem {
  int32_t hq = 0;
  int32_t hkv = 0;  ///< hq is a multiple of it
  int32_t d_qk = 128;
  int32_t d_v = 128;
  int32_t page_size = 16;
  DType io = DType::kBF16;  ///< q, out, and k, v of AppendKv
  DType kv = DType::kBF16;  ///< pages: fp32, bf16 or fp16
  float scale = 0;          ///< 0 = 1/sqrt(d_qk)
  bool lse = false;
  Rounding rounding = Rounding::kOnce;
  int64_t tokens = 0;  ///< queries
  int32_t sequences = 0;
  int64_t max_length = 0;     ///< most queries of one sequence
  int64_t max_kv_length = 0;  ///< most keys of one sequence (context + new)
  int64_t pairs = 0;          ///< query-key pairs per head over all sequences: the work, for costs

  float Scale() const;  ///< scale, with 0 resolved
  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// "paged_attention hq=16 hkv=2 d=256 ..." without lens=, ctx= and seed=.
  std::string ToString() const;
};

/// Tensors of one call. T = queries.
struct Args {
  TensorView q;        ///< io [T, Hq, Dqk]; unit inner stride, any row and head stride
  TensorView k_pages;  ///< kv [pages, Hkv, page_size, Dqk]; unit inner stride
  TensorView v_pages;  ///< kv [pages, Hkv, page_size, Dv]; unit inner stride
  TensorView out;      ///< io [T, Hq, Dv]; unit inner stride, any row and head stride
  TensorView lse;      ///< fp32 [T, Hq], natural logarithm; undefined unless problem.lse
  const KvPlan* plan = nullptr;
};

using AttentionBackend = Backend<Problem, Args>;

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, pages within the pool.
Status Validate(const Problem& problem, const Args& args);

/// Fills the fields of `problem` that follow from lengths: tokens, sequences, max_length, max_kv_length, pairs.
void SetLengths(Problem& problem, std::span<const int64_t> lengths, std::span<const int64_t> contexts);
void SetLengths(Problem& problem, const KvPlan& plan);

/// The visible ordered list, reference last.
std::span<const AttentionBackend> Backends();

/// Validate + Select over Backends().
Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference);

/// Tensors of AppendKv. T = new tokens of all sequences, in the plan's order.
struct AppendArgs {
  TensorView k;        ///< io [T, Hkv, Dqk]; unit inner stride, any row and head stride
  TensorView v;        ///< io [T, Hkv, Dv]
  TensorView k_pages;  ///< as Args
  TensorView v_pages;
  const KvPlan* plan = nullptr;
};

Status Validate(const Problem& problem, const AppendArgs& args);

/// Writes the new tokens' keys and values into their pages (positions context .. context+length-1), rounding to the kv
/// dtype (nearest even). Touches nothing else. CPU only for now; any other device is kRefused. `args` must have passed
/// Validate.
Status AppendKv(Stream& stream, const Problem& problem, const AppendArgs& args);

/// Writes the new tokens' rows [T, W] into pages [pages, page_size, W] at the same places: caches of one row per token,
/// such as latents (mla_attention.h). Unit inner strides, other strides free; rounds to the type of the pages. CPU
/// only; kInvalidArgument when shapes do not fit the plan.
Status AppendRows(Stream& stream, const TensorView& rows, const TensorView& pages, const KvPlan& plan);

/// A problem line: the operator, its fields, lens= and ctx= (default all zero); unknown fields are errors.
struct ProblemLine {
  Problem problem;
  std::vector<int64_t> lengths;
  std::vector<int64_t> contexts;
  uint64_t seed = 1;
};
Result<ProblemLine> ParseProblemLine(std::string_view line);
std::string FormatProblemLine(const ProblemLine& line);

}  // namespace fluvial::ops::paged_attention
