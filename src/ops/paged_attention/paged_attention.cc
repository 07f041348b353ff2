// SPDX-License-Identifier: Apache-2.0
#include "ops/paged_attention/paged_attention.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/common/view_check.h"
#include "ops/paged_attention/bodies.h"

namespace fluvial::ops::paged_attention {
namespace {

Status Bad(const std::string& what) { return Status::InvalidArgument(std::string(kOpName) + ": " + what); }

bool IsIoType(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

Status CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return Bad(std::string(name) + " is " + std::to_string(value) + ", it must be " + std::to_string(low) + ".." +
             std::to_string(high));
}

/// Plan and pages fit the problem: common to attention and append.
Status CheckPages(const Problem& p, const KvPlan* plan, const TensorView& k, const TensorView& v) {
  if (plan == nullptr) return Bad("args have no plan");
  if (plan->page_size() != p.page_size) {
    return Bad("the plan has pages of " + std::to_string(plan->page_size()) + " tokens, the problem says " +
               std::to_string(p.page_size));
  }
  if (plan->tokens() != p.tokens || plan->sequences() != p.sequences) {
    return Bad("the plan has " + std::to_string(plan->tokens()) + " tokens in " + std::to_string(plan->sequences()) +
               " sequences, the problem says " + std::to_string(p.tokens) + " in " + std::to_string(p.sequences));
  }
  if (plan->max_length() > p.max_length || plan->max_kv_length() > p.max_kv_length) {
    return Bad("the plan's longest sequence has " + std::to_string(plan->max_length()) + " queries and " +
               std::to_string(plan->max_kv_length()) + " keys, the problem says at most " +
               std::to_string(p.max_length) + " and " + std::to_string(p.max_kv_length));
  }
  const int64_t pages = k.rank == 4 ? k.dims[0] : 0;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "k_pages", k, p.kv, {pages, p.hkv, p.page_size, p.d_qk}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "v_pages", v, p.kv, {pages, p.hkv, p.page_size, p.d_v}));
  if (plan->max_page() >= pages) {
    return Bad("the plan uses page " + std::to_string(plan->max_page()) + ", but the cache has " +
               std::to_string(pages) + " pages");
  }
  return Status::Ok();
}

}  // namespace

float Problem::Scale() const { return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(d_qk)); }

uint64_t Problem::Hash() const {
  Hasher h;
  for (int64_t x : {int64_t{hq}, int64_t{hkv}, int64_t{d_qk}, int64_t{d_v}, int64_t{page_size}, int64_t{sequences},
                    tokens, max_length, max_kv_length, pairs}) {
    h.Add(static_cast<uint64_t>(x));
  }
  h.Add(static_cast<uint64_t>(io)).Add(static_cast<uint64_t>(kv)).Add(scale);
  return h.Add(uint64_t{lse}).Add(static_cast<uint64_t>(rounding)).Get();
}

std::string Problem::ToString() const {
  std::string s(kOpName);
  s += " hq=" + std::to_string(hq) + " hkv=" + std::to_string(hkv) + " dqk=" + std::to_string(d_qk) +
       " dv=" + std::to_string(d_v) + " page=" + std::to_string(page_size);
  s += " io=" + std::string(Name(io)) + " kv=" + std::string(Name(kv));
  if (scale != 0) s += " scale=" + FormatFloat(scale);
  if (lse) s += " lse=1";
  if (rounding == Rounding::kEager) s += " rounding=eager";
  return s;
}

Status Validate(const Problem& p) {
  FLUVIAL_RETURN_IF_ERROR(CheckRange("hkv", p.hkv, 1, 65536));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("hq", p.hq, 1, 65536));
  if (p.hq % p.hkv != 0) {
    return Bad("hq is " + std::to_string(p.hq) + ", it must be a multiple of hkv " + std::to_string(p.hkv));
  }
  FLUVIAL_RETURN_IF_ERROR(CheckRange("d_qk", p.d_qk, 1, kMaxHeadDim));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("d_v", p.d_v, 1, kMaxHeadDim));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("page_size", p.page_size, KvPlan::kMinPageSize, KvPlan::kMaxPageSize));
  if (!IsIoType(p.io)) return Bad("io is " + std::string(Name(p.io)) + ", it must be fp32, bf16 or fp16");
  if (!IsIoType(p.kv)) return Bad("kv is " + std::string(Name(p.kv)) + ", it must be fp32, bf16 or fp16");
  if (!std::isfinite(p.scale) || p.scale < 0) {
    return Bad("scale is " + FormatFloat(p.scale) + ", it must be finite and positive, or 0 for 1/sqrt(d_qk)");
  }
  if (p.tokens < 0 || p.sequences < 0 || p.max_length < 0 || p.max_kv_length < 0 || p.pairs < 0) {
    return Bad("tokens, sequences, max_length, max_kv_length and pairs must not be negative");
  }
  return Status::Ok();
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  FLUVIAL_RETURN_IF_ERROR(CheckPages(p, a.plan, a.k_pages, a.v_pages));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "q", a.q, p.io, {p.tokens, p.hq, p.d_qk}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "out", a.out, p.io, {p.tokens, p.hq, p.d_v}));
  if (p.lse) {
    FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "lse", a.lse, DType::kF32, {p.tokens, p.hq}));
  }
  for (const auto& [name, view] :
       {std::pair<const char*, const TensorView*>{"q", &a.q}, {"k_pages", &a.k_pages}, {"v_pages", &a.v_pages}}) {
    if (MayOverlap(a.out, *view)) return Bad("out overlaps " + std::string(name) + ": give it memory of its own");
  }
  return Status::Ok();
}

void SetLengths(Problem& p, std::span<const int64_t> lengths, std::span<const int64_t> contexts) {
  p.tokens = p.max_length = p.max_kv_length = p.pairs = 0;
  p.sequences = static_cast<int32_t>(lengths.size());
  for (size_t n = 0; n < lengths.size(); ++n) {
    const int64_t length = lengths[n];
    if (length == 0) continue;
    const int64_t context = n < contexts.size() ? contexts[n] : 0;
    p.tokens += length;
    p.max_length = std::max(p.max_length, length);
    p.max_kv_length = std::max(p.max_kv_length, context + length);
    p.pairs += length * context + length * (length + 1) / 2;
  }
}

void SetLengths(Problem& p, const KvPlan& plan) {
  std::vector<int64_t> lengths;
  for (int32_t n = 0; n < plan.sequences(); ++n) lengths.push_back(plan.offsets()[n + 1] - plan.offsets()[n]);
  SetLengths(p, lengths, plan.contexts());
}

std::span<const AttentionBackend> Backends() {
  static const AttentionBackend kList[] = {
      {"cpu", "Highway SIMD streaming softmax over tiles of 64 keys; all dtypes and head sizes, one rounding",
       &internal::CpuCheck, &internal::CpuWorkspace, &internal::CpuCost, &internal::CpuRun},
      {"reference", "fp64 softmax with the problem's rounding points", &internal::ReferenceCheck,
       &internal::ReferenceWorkspace, &internal::ReferenceCost, &internal::ReferenceRun},
  };
  return kList;
}

Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference) {
  FLUVIAL_RETURN_IF_ERROR(Validate(problem));
  return Select(Backends(), kOpName, problem, device, preference);
}

Status Validate(const Problem& p, const AppendArgs& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  FLUVIAL_RETURN_IF_ERROR(CheckPages(p, a.plan, a.k_pages, a.v_pages));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "k", a.k, p.io, {p.tokens, p.hkv, p.d_qk}));
  return CheckView(kOpName, "v", a.v, p.io, {p.tokens, p.hkv, p.d_v});
}

Result<ProblemLine> ParseProblemLine(std::string_view text) {
  FLUVIAL_ASSIGN_OR_RETURN(TextFields f, TextFields::Parse(text));
  if (f.name() != kOpName) {
    return Status::InvalidArgument("problem line: expected " + std::string(kOpName) + ", got '" + f.name() + "'");
  }
  ProblemLine line;
  Problem& p = line.problem;
  auto take_int32 = [&f](std::string_view key, int32_t* to) -> Status {
    FLUVIAL_ASSIGN_OR_RETURN(const int64_t v, f.TakeInt(key, *to));
    FLUVIAL_RETURN_IF_ERROR(CheckRange(key, v, INT32_MIN, INT32_MAX));
    *to = static_cast<int32_t>(v);
    return Status::Ok();
  };
  auto take_dtype = [&f](std::string_view key, DType* to) -> Status {
    if (!f.Has(key)) return Status::Ok();
    FLUVIAL_ASSIGN_OR_RETURN(*to, ParseDType(f.Take(key)));
    return Status::Ok();
  };
  FLUVIAL_RETURN_IF_ERROR(take_int32("hq", &p.hq));
  p.hkv = p.hq;
  FLUVIAL_RETURN_IF_ERROR(take_int32("hkv", &p.hkv));
  FLUVIAL_RETURN_IF_ERROR(take_int32("dqk", &p.d_qk));
  p.d_v = p.d_qk;
  FLUVIAL_RETURN_IF_ERROR(take_int32("dv", &p.d_v));
  FLUVIAL_RETURN_IF_ERROR(take_int32("page", &p.page_size));
  FLUVIAL_RETURN_IF_ERROR(take_dtype("io", &p.io));
  p.kv = p.io;
  FLUVIAL_RETURN_IF_ERROR(take_dtype("kv", &p.kv));
  FLUVIAL_ASSIGN_OR_RETURN(p.scale, f.TakeFloat("scale", 0.0f));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t lse, f.TakeInt("lse", 0));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("lse", lse, 0, 1));
  p.lse = lse == 1;
  if (f.Has("rounding")) {
    const std::string v = f.Take("rounding");
    if (v != "once" && v != "eager") return Bad("rounding=" + v + ": use once or eager");
    p.rounding = v == "eager" ? Rounding::kEager : Rounding::kOnce;
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
  SetLengths(p, line.lengths, line.contexts);
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return line;
}

std::string FormatProblemLine(const ProblemLine& line) {
  return line.problem.ToString() + " lens=" + FormatLengths(line.lengths) + " ctx=" + FormatLengths(line.contexts) +
         " seed=" + std::to_string(line.seed);
}

}  // namespace fluvial::ops::paged_attention
