// SPDX-License-Identifier: Apache-2.0
// pool_index: which keys a query of sparse attention may see. A small attention of its own scores pools of consecutive
// tokens; the best pools are kept whole, and the tokens after the last complete pool always.
//
// The cache holds one row per token: a key k_j and a gate g_j, `dim` numbers each. Pool n is the tokens
// n*P .. n*P+P-1; only complete pools count. Per channel,
//     a_i  = r( softmax over the P tokens of (g_i + ape[i]) ),   K_n = r( sum_i r(a_i k_i) )
// and for query t at position p with heads h,
//     s_tn = sum_h (w_th / sqrt(heads)) * max(0, <q_th, K_n> / sqrt(dim))      for pools whose last token is <= p
// The `keep` pools of largest score are kept (the earlier one of equals), all of them while there are no more than
// `keep`; selected[t] lists their tokens and the visible ones after the last complete visible pool, in rising order.
// r() rounds to the type of the cache; scores are fp32. While p + 1 < (keep + 1) * P the list is 0..p.
// Sources: DeepSeek-AI, "DeepSeek-V3.2" (the lightning indexer); Glm5NextTextIndexer of transformers 5.24 (pools).
//
// Lists of the cpu backend do not depend on batch company, page size, splits or the number of threads. A NaN score
// counts as the smallest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "ops/common/backend.h"
#include "ops/paged_attention/paged_attention.h"

namespace fluvial::ops::pool_index {

using paged_attention::KvPlan;

inline constexpr std::string_view kOpName = "pool_index";

/// Everything selection may depend on. Value type.
struct Problem {
  int32_t heads = 32;
  int32_t dim = 128;
  int32_t pool = 4;    ///< P: tokens of a pool
  int32_t keep = 512;  ///< pools kept per query
  int32_t page_size = 16;
  DType io = DType::kBF16;  ///< q, weights and pages
  int64_t tokens = 0;       ///< queries
  int32_t sequences = 0;
  int64_t max_length = 0;     ///< most queries of one sequence
  int64_t max_kv_length = 0;  ///< most keys of one sequence (context + new)
  int64_t pairs = 0;          ///< query-key pairs over all sequences

  /// Most tokens that a list may hold.
  int32_t most() const { return keep * pool + pool - 1; }
  friend bool operator==(const Problem&, const Problem&) = default;
  uint64_t Hash() const;
  /// "pool_index h=32 dim=128 pool=4 keep=512 page=16 io=bf16" without lens=, ctx= and seed=.
  std::string ToString() const;
};

/// Tensors of one call. T = queries.
struct Args {
  TensorView q;         ///< io [T, heads, dim], packed
  TensorView weights;   ///< io [T, heads]; unit inner stride
  TensorView pages;     ///< io [pages, page_size, 2*dim]: key, gate; the new tokens' rows included (AppendRows)
  TensorView ape;       ///< fp32 [pool, dim], packed
  TensorView selected;  ///< i32 [T, most()], packed; beyond counts[t] a row is not written
  TensorView counts;    ///< i32 [T], packed
  const KvPlan* plan = nullptr;
};

using IndexBackend = Backend<Problem, Args>;

/// The contract itself, the same for every backend: kInvalidArgument naming field, value and rule.
Status Validate(const Problem& problem);

/// That `args` fit `problem`: shapes, dtypes, strides, pages within the pool.
Status Validate(const Problem& problem, const Args& args);

/// Fills the fields of `problem` that follow from lengths.
void SetLengths(Problem& problem, const KvPlan& plan);

/// The visible ordered list, reference last.
std::span<const IndexBackend> Backends();

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

}  // namespace fluvial::ops::pool_index
