// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_attention/mla_attention.h"

#include <cmath>

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/common/view_check.h"
#include "ops/paged_attention/mla_bodies.h"
#include "ops/paged_attention/paged_attention.h"

namespace fluvial::ops::mla_attention {
namespace {

Status Bad(const std::string& what) { return Status::InvalidArgument(std::string(kOpName) + ": " + what); }

bool IsIoType(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

Status CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return Bad(std::string(name) + " is " + std::to_string(value) + ", it must be " + std::to_string(low) + ".." +
             std::to_string(high));
}

}  // namespace

float Problem::Scale() const { return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(nope + rope)); }

uint64_t Problem::Hash() const {
  Hasher h;
  for (int64_t x : {int64_t{heads}, int64_t{nope}, int64_t{rope}, int64_t{v}, int64_t{rank}, int64_t{page_size},
                    int64_t{selected}, int64_t{sequences}, tokens, max_length, max_kv_length, pairs}) {
    h.Add(static_cast<uint64_t>(x));
  }
  return h.Add(static_cast<uint64_t>(io))
      .Add(static_cast<uint64_t>(kv))
      .Add(static_cast<uint64_t>(weight))
      .Add(scale)
      .Get();
}

std::string Problem::ToString() const {
  std::string s(kOpName);
  s += " h=" + std::to_string(heads) + " nope=" + std::to_string(nope) + " rope=" + std::to_string(rope) +
       " v=" + std::to_string(v) + " rank=" + std::to_string(rank) + " page=" + std::to_string(page_size);
  s += " io=" + std::string(Name(io)) + " kv=" + std::string(Name(kv)) + " w=" + std::string(Name(weight));
  if (scale != 0) s += " scale=" + FormatFloat(scale);
  if (selected != 0) s += " selected=" + std::to_string(selected);
  return s;
}

Status Validate(const Problem& p) {
  FLUVIAL_RETURN_IF_ERROR(CheckRange("heads", p.heads, 1, 65536));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("nope", p.nope, 1, paged_attention::kMaxHeadDim));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("rope", p.rope, 0, paged_attention::kMaxHeadDim - p.nope));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("v", p.v, 1, paged_attention::kMaxHeadDim));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("rank", p.rank, 1, paged_attention::kMaxHeadDim - p.rope));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("page_size", p.page_size, KvPlan::kMinPageSize, KvPlan::kMaxPageSize));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("selected", p.selected, 0, 1 << 20));
  for (const auto& [name, dtype] : {std::pair{"io", p.io}, std::pair{"kv", p.kv}, std::pair{"w", p.weight}}) {
    if (!IsIoType(dtype)) {
      return Bad(std::string(name) + " is " + std::string(Name(dtype)) + ", it must be fp32, bf16 or fp16");
    }
  }
  if (!std::isfinite(p.scale) || p.scale < 0) {
    return Bad("scale is " + FormatFloat(p.scale) + ", it must be finite and positive, or 0 for 1/sqrt(nope + rope)");
  }
  if (p.tokens < 0 || p.sequences < 0 || p.max_length < 0 || p.max_kv_length < 0 || p.pairs < 0) {
    return Bad("tokens, sequences, max_length, max_kv_length and pairs must not be negative");
  }
  return Status::Ok();
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  if (a.plan == nullptr) return Bad("args have no plan");
  const KvPlan& plan = *a.plan;
  if (plan.page_size() != p.page_size || plan.tokens() != p.tokens || plan.sequences() != p.sequences) {
    return Bad("the plan has " + std::to_string(plan.tokens()) + " tokens in " + std::to_string(plan.sequences()) +
               " sequences and pages of " + std::to_string(plan.page_size()) + ", the problem says " +
               std::to_string(p.tokens) + " in " + std::to_string(p.sequences) + " and " + std::to_string(p.page_size));
  }
  if (plan.max_length() > p.max_length || plan.max_kv_length() > p.max_kv_length) {
    return Bad("the plan's longest sequence has " + std::to_string(plan.max_length()) + " queries and " +
               std::to_string(plan.max_kv_length()) + " keys, the problem says at most " +
               std::to_string(p.max_length) + " and " + std::to_string(p.max_kv_length));
  }
  const int64_t pages = a.pages.rank == 3 ? a.pages.dims[0] : 0;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "pages", a.pages, p.kv, {pages, p.page_size, p.rank + p.rope}));
  if (plan.max_page() >= pages) {
    return Bad("the plan uses page " + std::to_string(plan.max_page()) + ", but the cache has " +
               std::to_string(pages) + " pages");
  }
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "q", a.q, p.io, {p.tokens, p.heads, p.nope + p.rope}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "out", a.out, p.io, {p.tokens, p.heads, p.v}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "kv_b", a.kv_b, p.weight, {int64_t{p.heads} * (p.nope + p.v), p.rank}));
  if (p.selected > 0) {
    FLUVIAL_RETURN_IF_ERROR(
        CheckPacked(kOpName, "pages with selection", a.pages, p.kv, {pages, p.page_size, p.rank + p.rope}));
    if (pages * p.page_size > INT32_MAX) {
      return Bad("selection takes caches of at most 2^31 tokens, this one has " + std::to_string(pages * p.page_size));
    }
    FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "selected", a.selected, DType::kI32, {p.tokens, p.selected}));
    FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "counts", a.counts, DType::kI32, {p.tokens}));
  }
  for (const auto& [name, view] : {std::pair<const char*, const TensorView*>{"q", &a.q}, {"pages", &a.pages}}) {
    if (MayOverlap(a.out, *view)) return Bad("out overlaps " + std::string(name) + ": give it memory of its own");
  }
  return Status::Ok();
}

void SetLengths(Problem& p, std::span<const int64_t> lengths, std::span<const int64_t> contexts) {
  paged_attention::Problem paged;
  paged_attention::SetLengths(paged, lengths, contexts);
  p.tokens = paged.tokens;
  p.sequences = paged.sequences;
  p.max_length = paged.max_length;
  p.max_kv_length = paged.max_kv_length;
  p.pairs = paged.pairs;
}

void SetLengths(Problem& p, const KvPlan& plan) {
  std::vector<int64_t> lengths;
  for (int32_t n = 0; n < plan.sequences(); ++n) lengths.push_back(plan.offsets()[n + 1] - plan.offsets()[n]);
  SetLengths(p, lengths, plan.contexts());
}

std::span<const MlaBackend> Backends() {
  static const MlaBackend kList[] = {
      {"cpu", "absorbed for short pieces and selected keys, expanded for long ones, sequence by sequence",
       &internal::CpuCheck, &internal::CpuWorkspace, &internal::CpuCost, &internal::CpuRun},
      {"cpu_absorbed", "queries meet the cached latents themselves; nothing is made per key", &internal::AbsorbedCheck,
       &internal::AbsorbedWorkspace, &internal::AbsorbedCost, &internal::AbsorbedRun},
      {"cpu_expanded", "keys and values of every head are made from the latents", &internal::ExpandedCheck,
       &internal::ExpandedWorkspace, &internal::ExpandedCost, &internal::ExpandedRun},
      {"reference", "the expanded formula in fp64, one rounding", &internal::ReferenceCheck,
       &internal::ReferenceWorkspace, &internal::ReferenceCost, &internal::ReferenceRun},
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
                                {"nope", &p.nope},
                                {"rope", &p.rope},
                                {"v", &p.v},
                                {"rank", &p.rank},
                                {"page", &p.page_size},
                                {"selected", &p.selected}}) {
    FLUVIAL_ASSIGN_OR_RETURN(const int64_t value, f.TakeInt(key, *to));
    FLUVIAL_RETURN_IF_ERROR(CheckRange(key, value, INT32_MIN, INT32_MAX));
    *to = static_cast<int32_t>(value);
  }
  if (f.Has("io")) {
    FLUVIAL_ASSIGN_OR_RETURN(p.io, ParseDType(f.Take("io")));
  }
  p.kv = p.weight = p.io;
  for (const auto& [key, to] : {std::pair<std::string_view, DType*>{"kv", &p.kv}, {"w", &p.weight}}) {
    if (!f.Has(key)) continue;
    FLUVIAL_ASSIGN_OR_RETURN(*to, ParseDType(f.Take(key)));
  }
  FLUVIAL_ASSIGN_OR_RETURN(p.scale, f.TakeFloat("scale", 0.0f));
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
  SetLengths(p, line.lengths, line.contexts);
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return line;
}

std::string FormatProblemLine(const ProblemLine& line) {
  return line.problem.ToString() + " lens=" + FormatLengths(line.lengths) + " ctx=" + FormatLengths(line.contexts) +
         " seed=" + std::to_string(line.seed);
}

}  // namespace fluvial::ops::mla_attention
