// SPDX-License-Identifier: Apache-2.0
#include "ops/pool_index/pool_index.h"

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/common/view_check.h"
#include "ops/pool_index/bodies.h"
#include "ops/pool_index/pool_simd.h"

namespace fluvial::ops::pool_index {
namespace {

Status Bad(const std::string& what) { return Status::InvalidArgument(std::string(kOpName) + ": " + what); }

Status CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return Bad(std::string(name) + " is " + std::to_string(value) + ", it must be " + std::to_string(low) + ".." +
             std::to_string(high));
}

void TakeLengths(Problem& p, std::span<const int64_t> lengths, std::span<const int64_t> contexts) {
  paged_attention::Problem paged;
  paged_attention::SetLengths(paged, lengths, contexts);
  p.tokens = paged.tokens;
  p.sequences = paged.sequences;
  p.max_length = paged.max_length;
  p.max_kv_length = paged.max_kv_length;
  p.pairs = paged.pairs;
}

}  // namespace

uint64_t Problem::Hash() const {
  Hasher h;
  for (int64_t x : {int64_t{heads}, int64_t{dim}, int64_t{pool}, int64_t{keep}, int64_t{page_size}, int64_t{sequences},
                    tokens, max_length, max_kv_length, pairs}) {
    h.Add(static_cast<uint64_t>(x));
  }
  return h.Add(static_cast<uint64_t>(io)).Get();
}

std::string Problem::ToString() const {
  return std::string(kOpName) + " h=" + std::to_string(heads) + " dim=" + std::to_string(dim) +
         " pool=" + std::to_string(pool) + " keep=" + std::to_string(keep) + " page=" + std::to_string(page_size) +
         " io=" + std::string(Name(io));
}

Status Validate(const Problem& p) {
  FLUVIAL_RETURN_IF_ERROR(CheckRange("heads", p.heads, 1, 4096));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("dim", p.dim, 1, 4096));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("pool", p.pool, 1, internal::kMaxPool));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("keep", p.keep, 1, (1 << 20) / p.pool));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("page_size", p.page_size, KvPlan::kMinPageSize, KvPlan::kMaxPageSize));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("max_kv_length", p.max_kv_length, 0, INT32_MAX));
  if (p.io != DType::kF32 && p.io != DType::kBF16 && p.io != DType::kF16) {
    return Bad("io is " + std::string(Name(p.io)) + ", it must be fp32, bf16 or fp16");
  }
  if (p.tokens < 0 || p.sequences < 0 || p.max_length < 0 || p.pairs < 0) {
    return Bad("tokens, sequences, max_length and pairs must not be negative");
  }
  return Status::Ok();
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  if (a.plan == nullptr) return Bad("args have no plan");
  const KvPlan& plan = *a.plan;
  if (plan.page_size() != p.page_size || plan.tokens() != p.tokens || plan.sequences() != p.sequences ||
      plan.max_length() > p.max_length || plan.max_kv_length() > p.max_kv_length) {
    return Bad("the plan has " + std::to_string(plan.tokens()) + " tokens in " + std::to_string(plan.sequences()) +
               " sequences of at most " + std::to_string(plan.max_length()) + " queries and " +
               std::to_string(plan.max_kv_length()) + " keys, pages of " + std::to_string(plan.page_size()) +
               "; the problem says " + std::to_string(p.tokens) + ", " + std::to_string(p.sequences) + ", " +
               std::to_string(p.max_length) + ", " + std::to_string(p.max_kv_length) + " and " +
               std::to_string(p.page_size));
  }
  const int64_t pages = a.pages.rank == 3 ? a.pages.dims[0] : 0;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "pages", a.pages, p.io, {pages, p.page_size, int64_t{2} * p.dim}));
  if (plan.max_page() >= pages) {
    return Bad("the plan uses page " + std::to_string(plan.max_page()) + ", but the cache has " +
               std::to_string(pages) + " pages");
  }
  FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "q", a.q, p.io, {p.tokens, p.heads, p.dim}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "weights", a.weights, p.io, {p.tokens, p.heads}));
  FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "ape", a.ape, DType::kF32, {p.pool, p.dim}));
  FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "selected", a.selected, DType::kI32, {p.tokens, p.most()}));
  return CheckPacked(kOpName, "counts", a.counts, DType::kI32, {p.tokens});
}

void SetLengths(Problem& p, const KvPlan& plan) {
  std::vector<int64_t> lengths;
  for (int32_t n = 0; n < plan.sequences(); ++n) lengths.push_back(plan.offsets()[n + 1] - plan.offsets()[n]);
  TakeLengths(p, lengths, plan.contexts());
}

std::span<const IndexBackend> Backends() {
  static const IndexBackend kList[] = {
      {"cpu", "pooled keys once per sequence, blocks of queries in one gemm", &internal::CpuCheck,
       &internal::CpuWorkspace, &internal::CpuCost, &internal::CpuRun},
      {"reference", "the formula in fp64 with its rounding points", &internal::CpuCheck, &internal::ReferenceWorkspace,
       &internal::ReferenceCost, &internal::ReferenceRun},
  };
  return kList;
}

Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference) {
  FLUVIAL_RETURN_IF_ERROR(Validate(problem));
  return Select(Backends(), kOpName, problem, device, preference);
}

Result<ProblemLine> ParseProblemLine(std::string_view text) {
  FLUVIAL_ASSIGN_OR_RETURN(TextFields f, TextFields::Parse(text));
  if (f.name() != kOpName) {
    return Status::InvalidArgument("problem line: expected " + std::string(kOpName) + ", got '" + f.name() + "'");
  }
  ProblemLine line;
  Problem& p = line.problem;
  for (const auto& [key, to] : {std::pair<std::string_view, int32_t*>{"h", &p.heads},
                                {"dim", &p.dim},
                                {"pool", &p.pool},
                                {"keep", &p.keep},
                                {"page", &p.page_size}}) {
    FLUVIAL_ASSIGN_OR_RETURN(const int64_t value, f.TakeInt(key, *to));
    FLUVIAL_RETURN_IF_ERROR(CheckRange(key, value, INT32_MIN, INT32_MAX));
    *to = static_cast<int32_t>(value);
  }
  if (f.Has("io")) {
    FLUVIAL_ASSIGN_OR_RETURN(p.io, ParseDType(f.Take("io")));
  }
  FLUVIAL_ASSIGN_OR_RETURN(line.lengths, ParseLengths(f.Take("lens")));
  FLUVIAL_ASSIGN_OR_RETURN(line.contexts, ParseLengths(f.Take("ctx")));
  if (line.contexts.empty()) line.contexts.assign(line.lengths.size(), 0);
  if (line.contexts.size() != line.lengths.size()) {
    return Bad("ctx has " + std::to_string(line.contexts.size()) + " items, lens has " +
               std::to_string(line.lengths.size()) + ": give one context per sequence");
  }
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t seed, f.TakeInt("seed", 1));
  line.seed = static_cast<uint64_t>(seed);
  FLUVIAL_RETURN_IF_ERROR(f.Finish());
  TakeLengths(p, line.lengths, line.contexts);
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return line;
}

std::string FormatProblemLine(const ProblemLine& line) {
  return line.problem.ToString() + " lens=" + FormatLengths(line.lengths) + " ctx=" + FormatLengths(line.contexts) +
         " seed=" + std::to_string(line.seed);
}

}  // namespace fluvial::ops::pool_index
