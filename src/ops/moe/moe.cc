// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/moe.h"

#include <array>
#include <cmath>
#include <utility>

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/common/view_check.h"
#include "ops/moe/backends.h"

namespace fluvial::ops::moe {
namespace {

bool IsMoeType(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

// Largest extents: products of two of them and of 8 bytes stay in int64.
constexpr int64_t kMaxExtent = int64_t{1} << 30;
constexpr int32_t kMaxExperts = 65536;

std::string_view LayoutName(Layout layout) { return layout == Layout::kOutputMajor ? "output" : "input"; }

Result<Layout> ParseLayout(const std::string& text) {
  if (text.empty() || text == "output") return Layout::kOutputMajor;
  if (text == "input") return Layout::kInputMajor;
  return Status::InvalidArgument("moe: layout '" + text + "': use output or input");
}

Status CheckExtent(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return Status::InvalidArgument("moe: " + std::string(name) + "=" + std::to_string(value) + ": must lie in " +
                                 std::to_string(low) + ".." + std::to_string(high));
}

// A weight [out, in] of the layout asked for, aligned to its elements.
Status CheckWeight(const char* name, int64_t expert, const TensorView& v, DType dtype, Layout layout, int64_t out,
                   int64_t in) {
  const bool output_major = layout == Layout::kOutputMajor;
  const int inner = output_major ? 1 : 0;
  const bool fits = v.rank == 2 && v.dtype == dtype && v.dim(0) == out && v.dim(1) == in && v.defined() &&
                    (v.dim(inner) <= 1 || v.stride(inner) == 1) &&
                    (v.dim(1 - inner) <= 1 || v.stride(1 - inner) >= v.dim(inner)) &&
                    reinterpret_cast<uintptr_t>(v.data) % SizeOf(dtype) == 0;
  if (fits) return Status::Ok();
  return Status::InvalidArgument("moe: " + std::string(name) + " of expert " + std::to_string(expert) + " is " +
                                 v.ToString() + (v.defined() ? "" : " without data") + ", but the problem wants " +
                                 std::string(Name(dtype)) + "[" + std::to_string(out) + "," + std::to_string(in) +
                                 "], " + std::string(LayoutName(layout)) + "-major, aligned to its elements");
}

}  // namespace

uint64_t Problem::Hash() const {
  return Hasher()
      .Add(static_cast<uint64_t>(tokens))
      .Add(static_cast<uint64_t>(experts) << 32 | static_cast<uint64_t>(per_token))
      .Add(static_cast<uint64_t>(hidden))
      .Add(static_cast<uint64_t>(inter))
      .Add(static_cast<uint64_t>(io) | static_cast<uint64_t>(w) << 8 | static_cast<uint64_t>(gate_up) << 16 |
           static_cast<uint64_t>(down) << 24)
      .Add(limit)
      .Get();
}

std::string Problem::ToString() const {
  std::string s = "moe m=" + std::to_string(tokens) + " e=" + std::to_string(experts) +
                  " top=" + std::to_string(per_token) + " h=" + std::to_string(hidden) + " i=" + std::to_string(inter) +
                  " io=" + std::string(Name(io)) + " w=" + std::string(Name(w));
  if (gate_up != Layout::kOutputMajor) s += " gate_up=" + std::string(LayoutName(gate_up));
  if (down != Layout::kOutputMajor) s += " down=" + std::string(LayoutName(down));
  if (limit != 0) s += " limit=" + FormatFloat(limit);
  return s;
}

Result<ProblemLine> ParseProblemLine(std::string_view line) {
  Result<TextFields> parsed = TextFields::Parse(line);
  if (!parsed.ok()) return parsed.status();
  TextFields& fields = *parsed;
  if (fields.name() != kOpName) {
    return Status::InvalidArgument("'" + fields.name() + "' is not a moe line: start it with 'moe'");
  }
  ProblemLine out;
  Problem& p = out.problem;
  FLUVIAL_ASSIGN_OR_RETURN(p.tokens, fields.TakeInt("m", -1));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t experts, fields.TakeInt("e", -1));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t per_token, fields.TakeInt("top", -1));
  // Before they are narrowed.
  FLUVIAL_RETURN_IF_ERROR(CheckExtent("e", experts, 1, kMaxExperts));
  FLUVIAL_RETURN_IF_ERROR(CheckExtent("top", per_token, 1, kMaxPerToken));
  p.experts = static_cast<int32_t>(experts);
  p.per_token = static_cast<int32_t>(per_token);
  FLUVIAL_ASSIGN_OR_RETURN(p.hidden, fields.TakeInt("h", -1));
  FLUVIAL_ASSIGN_OR_RETURN(p.inter, fields.TakeInt("i", -1));
  for (const auto& [key, type] : {std::pair{"io", &p.io}, std::pair{"w", &p.w}}) {
    if (!fields.Has(key)) continue;
    FLUVIAL_ASSIGN_OR_RETURN(*type, ParseDType(fields.Take(key)));
  }
  FLUVIAL_ASSIGN_OR_RETURN(p.gate_up, ParseLayout(fields.Take("gate_up")));
  FLUVIAL_ASSIGN_OR_RETURN(p.down, ParseLayout(fields.Take("down")));
  FLUVIAL_ASSIGN_OR_RETURN(p.limit, fields.TakeFloat("limit", 0));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t seed, fields.TakeInt("seed", 1));
  out.seed = static_cast<uint64_t>(seed);
  FLUVIAL_RETURN_IF_ERROR(fields.Finish());
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return out;
}

std::vector<ExpertWeights> StackedExperts(const TensorView& gate_up, Layout gate_up_layout, const TensorView& down,
                                          Layout down_layout) {
  FLUVIAL_CHECK(gate_up.rank == 3 && down.rank == 3 && gate_up.dim(0) == down.dim(0));
  // An expert's matrix seen as [out, in].
  const auto matrix = [](const TensorView& t, Layout layout, int64_t expert) {
    const int out = layout == Layout::kOutputMajor ? 1 : 2, in = 3 - out;
    char* data = static_cast<char*>(t.data);
    if (data != nullptr) data += expert * t.stride(0) * static_cast<int64_t>(SizeOf(t.dtype));
    return TensorView(data, t.dtype, {t.dim(out), t.dim(in)}, {t.stride(out), t.stride(in)});
  };
  const auto rows = [](TensorView t, int64_t begin, int64_t count) {
    if (t.data != nullptr) {
      t.data = static_cast<char*>(t.data) + begin * t.stride(0) * static_cast<int64_t>(SizeOf(t.dtype));
    }
    t.dims[0] = count;
    return t;
  };
  std::vector<ExpertWeights> out(static_cast<size_t>(gate_up.dim(0)));
  for (size_t e = 0; e < out.size(); ++e) {
    const TensorView both = matrix(gate_up, gate_up_layout, static_cast<int64_t>(e));
    const int64_t inter = both.dim(0) / 2;
    out[e] = {rows(both, 0, inter), rows(both, inter, inter), matrix(down, down_layout, static_cast<int64_t>(e))};
  }
  return out;
}

Status Validate(const Problem& p) {
  FLUVIAL_RETURN_IF_ERROR(CheckExtent("m", p.tokens, 0, kMaxExtent));
  FLUVIAL_RETURN_IF_ERROR(CheckExtent("e", p.experts, 1, kMaxExperts));
  FLUVIAL_RETURN_IF_ERROR(CheckExtent("top", p.per_token, 1, std::min(p.experts, kMaxPerToken)));
  FLUVIAL_RETURN_IF_ERROR(CheckExtent("h", p.hidden, 1, kMaxExtent));
  FLUVIAL_RETURN_IF_ERROR(CheckExtent("i", p.inter, 1, kMaxExtent / 2));
  for (const auto& [name, type] : {std::pair{"io", p.io}, std::pair{"w", p.w}}) {
    if (!IsMoeType(type)) {
      return Status::InvalidArgument("moe: " + std::string(name) + " is " + std::string(Name(type)) +
                                     ": use fp32, bf16 or fp16");
    }
  }
  if (!(p.limit >= 0) || !std::isfinite(p.limit)) {
    return Status::InvalidArgument("moe: limit=" + FormatFloat(p.limit) + ": must be above 0, or 0 for none");
  }
  return Status::Ok();
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "x", a.x, p.io, {p.tokens, p.hidden}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "y", a.y, p.io, {p.tokens, p.hidden}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "ids", a.ids, DType::kI32, {p.tokens, p.per_token}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "weights", a.weights, DType::kF32, {p.tokens, p.per_token}));
  for (const auto& [name, v] :
       {std::pair{"x", &a.x}, std::pair{"y", &a.y}, std::pair{"ids", &a.ids}, std::pair{"weights", &a.weights}}) {
    if (p.tokens > 1 && v->stride(0) < v->dim(1)) {
      return Status::InvalidArgument("moe: " + std::string(name) + " is " + v->ToString() +
                                     ": the row pitch must be at least " + std::to_string(v->dim(1)));
    }
  }
  const bool in_place = a.y.data == a.x.data && (p.tokens <= 1 || a.y.stride(0) == a.x.stride(0));
  if ((!in_place && MayOverlap(a.y, a.x)) || MayOverlap(a.y, a.ids) || MayOverlap(a.y, a.weights)) {
    return Status::InvalidArgument("moe: y overlaps an input: give it memory of its own, or exactly x's");
  }
  if (static_cast<int64_t>(a.experts.size()) != p.experts) {
    return Status::InvalidArgument("moe: there are weights of " + std::to_string(a.experts.size()) +
                                   " experts, but the problem has " + std::to_string(p.experts));
  }
  for (int64_t e = 0; e < p.experts; ++e) {
    const ExpertWeights& w = a.experts[static_cast<size_t>(e)];
    FLUVIAL_RETURN_IF_ERROR(CheckWeight("gate", e, w.gate, p.w, p.gate_up, p.inter, p.hidden));
    FLUVIAL_RETURN_IF_ERROR(CheckWeight("up", e, w.up, p.w, p.gate_up, p.inter, p.hidden));
    FLUVIAL_RETURN_IF_ERROR(CheckWeight("down", e, w.down, p.w, p.down, p.hidden, p.inter));
  }
  return Status::Ok();
}

Check CheckCpu(const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCpu) return Check::Accept();
  return Check::Refuse("runs on the CPU, the device is " + device.Arch());
}

double ExpectedActive(const Problem& p) {
  const double share = double(p.per_token) / double(p.experts);
  return double(p.experts) * (1 - std::pow(1 - share, double(p.tokens)));
}

std::span<const MoeBackend> Backends() {
  static const std::array list = {CpuBackend(), ReferenceBackend()};
  return list;
}

Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference) {
  FLUVIAL_RETURN_IF_ERROR(Validate(problem));
  return Select(Backends(), kOpName, problem, device, preference);
}

}  // namespace fluvial::ops::moe
