// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (MLA) without position encoding, over a paged cache of latents; prefill chunks and decode
// rows mixed in one call.
//
// The cache holds one row per token: the latent c_j (rank numbers, already normalised) and, behind it, r_j (rope
// numbers, possibly none), which all heads share. Head h has the rows W_h = [K_h; V_h] of kv_b, nope + v of them:
//     k_jh = [ K_h c_j | r_j ],   v_jh = V_h c_j
//     s_j  = scale * <q_ih, k_jh>,   j = 0..p, p the query's position
//     o_ih = sum_j softmax(s)_j v_jh
// Two forms give the same numbers up to rounding:
//     expanded  keys and values of every head are made from the latents: cheap per query, dear per key
//     absorbed  q'_ih = [ K_h^T q_nope | q_rope ] meets the cache rows themselves, and
//               o_ih = V_h (sum_j softmax(s)_j c_j): nothing per key but reading it - one KV head for all query heads
// Sources: DeepSeek-AI, "DeepSeek-V2" (arXiv 2405.04434) section 2.1 and appendix C; Kimi Team, "Kimi Linear"
// (arXiv 2510.26692); huggingface/transformers models/kimi_linear and models/glm5_next.
//
// Selection (sparse attention): with problem.selected > 0 every query sees only the keys listed for it, in the order
// in which they are listed.
//
// Results of the cpu backends do not depend, bit for bit, on batch company, page size or the number of threads. A
// prompt cut elsewhere may change the form that `cpu` takes for a piece, and with it the last bits;
// `cpu_absorbed` and `cpu_expanded` give the same bits for any cut.
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

namespace fluvial::ops::mla_attention {

using paged_attention::KvPlan;

inline constexpr std::string_view kOpName = "mla_attention";

/// Everything selection may depend on. Value type.
struct Problem {
  int32_t heads = 0;
  int32_t nope = 128;  ///< columns of a query that meet K_h c
  int32_t rope = 64;   ///< columns that meet r; may be 0
  int32_t v = 128;
  int32_t rank = 512;  ///< of the latent; rank + rope <= paged_attention::kMaxHeadDim
  int32_t page_size = 16;
  DType io = DType::kBF16;      ///< q, out; expanded keys and values are rounded to it
  DType kv = DType::kBF16;      ///< pages
  DType weight = DType::kBF16;  ///< kv_b
  float scale = 0;              ///< 0 = 1/sqrt(nope + rope)
  int32_t selected = 0;         ///< most keys listed for a query; 0: all of 0..p are seen
  int64_t tokens = 0;           ///< queries
  int32_t sequences = 0;
  int64_t max_length = 0;     ///< most queries of one sequence
  int64_t max_kv_length = 0;  ///< most keys of one sequence (context + new)
  int64_t pairs = 0;          ///< query-key pairs over all sequences, without selection

  float Scale() const;  ///< scale, with 0 resolved
  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// "mla_attention h=32 nope=128 ..." without lens=, ctx= and seed=.
  std::string ToString() const;
};

/// Tensors of one call. T = queries.
struct Args {
  TensorView q;         ///< io [T, heads, nope+rope]; unit inner stride, any row and head stride
  TensorView pages;     ///< kv [pages, page_size, rank+rope], the new tokens' rows included (AppendRows)
  TensorView kv_b;      ///< weight [heads*(nope+v), rank], packed rows of any pitch
  TensorView out;       ///< io [T, heads, v]; unit inner stride, any row and head stride
  TensorView selected;  ///< i32 [T, problem.selected], packed: positions of keys; undefined without selection
  TensorView counts;    ///< i32 [T]: how many of a row of `selected` count, 1..problem.selected
  const KvPlan* plan = nullptr;
};

using MlaBackend = Backend<Problem, Args>;

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, pages within the pool. The contents of `selected` and `counts`
/// are the caller's promise: positions within 0..p, each at most once. With selection, pages must be packed.
Status Validate(const Problem& problem, const Args& args);

/// Fills the fields of `problem` that follow from lengths: tokens, sequences, max_length, max_kv_length, pairs.
void SetLengths(Problem& problem, std::span<const int64_t> lengths, std::span<const int64_t> contexts);
void SetLengths(Problem& problem, const KvPlan& plan);

/// The visible ordered list, reference last.
std::span<const MlaBackend> Backends();

/// Validate + Select over Backends().
Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference);

/// A problem line: the operator, its fields, lens= and ctx= (default all zero); unknown fields are errors.
struct ProblemLine {
  Problem problem;
  std::vector<int64_t> lengths;
  std::vector<int64_t> contexts;
  uint64_t seed = 1;
};
Result<ProblemLine> ParseProblemLine(std::string_view line);
std::string FormatProblemLine(const ProblemLine& line);

}  // namespace fluvial::ops::mla_attention
