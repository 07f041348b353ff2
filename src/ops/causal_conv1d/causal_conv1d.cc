// SPDX-License-Identifier: Apache-2.0
#include "ops/causal_conv1d/causal_conv1d.h"

#include <algorithm>

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/causal_conv1d/bodies.h"
#include "ops/common/view_check.h"

namespace fluvial::ops::causal_conv1d {
namespace {

Status Bad(const std::string& what) { return Status::InvalidArgument(std::string(kOpName) + ": " + what); }

bool IsIoType(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

}  // namespace

uint64_t Problem::Hash() const {
  Hasher h;
  h.Add(static_cast<uint64_t>(channels)).Add(static_cast<uint64_t>(width));
  h.Add(static_cast<uint64_t>(io)).Add(static_cast<uint64_t>(weight)).Add(static_cast<uint64_t>(state));
  h.Add(uint64_t{has_bias}).Add(static_cast<uint64_t>(activation)).Add(static_cast<uint64_t>(rounding));
  h.Add(static_cast<uint64_t>(tokens)).Add(static_cast<uint64_t>(sequences)).Add(static_cast<uint64_t>(max_length));
  h.Add(static_cast<uint64_t>(checkpoint_every)).Add(uint64_t{token_states});
  return h.Get();
}

std::string Problem::ToString() const {
  std::string s(kOpName);
  s += " c=" + std::to_string(channels) + " w=" + std::to_string(width);
  s += " io=" + std::string(Name(io)) + " weight=" + std::string(Name(weight)) + " state=" + std::string(Name(state));
  s += " bias=" + std::to_string(int{has_bias});
  s += std::string(" act=") + (activation == Activation::kSilu ? "silu" : "none");
  s += std::string(" rounding=") + (rounding == Rounding::kOnce ? "once" : "eager");
  if (checkpoint_every != 0) s += " every=" + std::to_string(checkpoint_every);
  if (token_states) s += " token_states=1";
  return s;
}

Status Validate(const Problem& p) {
  if (p.channels < 1) return Bad("channels is " + std::to_string(p.channels) + ", it must be at least 1");
  if (p.width < kMinWidth || p.width > kMaxWidth) {
    return Bad("width is " + std::to_string(p.width) + ", it must be " + std::to_string(kMinWidth) + ".." +
               std::to_string(kMaxWidth));
  }
  if (!IsIoType(p.io)) return Bad("io is " + std::string(Name(p.io)) + ", it must be fp32, bf16 or fp16");
  if (p.weight != DType::kF32 && p.weight != p.io) {
    return Bad("weight is " + std::string(Name(p.weight)) + ", it must be fp32 or the io dtype " +
               std::string(Name(p.io)));
  }
  if (p.state != DType::kF32 && p.state != p.io) {
    return Bad("state is " + std::string(Name(p.state)) + ", it must be fp32 or the io dtype " +
               std::string(Name(p.io)));
  }
  if (p.tokens < 0 || p.sequences < 0 || p.max_length < 0) {
    return Bad("tokens, sequences and max_length must not be negative");
  }
  if (p.checkpoint_every < 0) {
    return Bad("checkpoint_every is " + std::to_string(p.checkpoint_every) + ", it must be 0 (none) or positive");
  }
  if (p.token_states && p.max_length > kMaxTokenStates) {
    return Bad("token_states takes sequences of at most " + std::to_string(kMaxTokenStates) + " tokens, got " +
               std::to_string(p.max_length));
  }
  return Status::Ok();
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  if (a.plan == nullptr) return Bad("args have no plan");
  const SequencePlan& plan = *a.plan;
  if (plan.tokens() != p.tokens || plan.sequences() != p.sequences || plan.max_length() > p.max_length) {
    return Bad("the plan has " + std::to_string(plan.tokens()) + " tokens in " + std::to_string(plan.sequences()) +
               " sequences, longest " + std::to_string(plan.max_length()) + "; the problem says " +
               std::to_string(p.tokens) + ", " + std::to_string(p.sequences) + ", " + std::to_string(p.max_length));
  }
  const int64_t c = p.channels, w = p.width;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "x", a.x, p.io, {p.tokens, c}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "out", a.out, p.io, {p.tokens, c}));
  FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "weight", a.weight, p.weight, {c, w}));
  if (p.has_bias) FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "bias", a.bias, p.weight, {c}));
  if (p.tokens > 1 && a.out.strides[0] < c) return Bad("rows of out overlap: " + a.out.ToString());
  if (MayOverlap(a.x, a.out)) return Bad("out overlaps x: give it memory of its own");

  // Without any slot no state tensor is needed.
  if (a.state.defined() || plan.max_slot() >= 0 || p.token_states) {
    const int64_t slots = a.state.rank == 3 ? a.state.dims[0] : 0;
    FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "state", a.state, p.state, {slots, w - 1, c}));
    if (slots > 0 && w > 2 && a.state.strides[1] != c) {
      return Bad("state rows must be packed (only the slot pitch is free): " + a.state.ToString());
    }
    if (slots > 1 && a.state.strides[0] < (w - 1) * c) return Bad("slots of state overlap: " + a.state.ToString());
    if (plan.max_slot() >= slots) {
      return Bad("the plan uses slot " + std::to_string(plan.max_slot()) + ", but the state has " +
                 std::to_string(slots) + " slots");
    }
  }
  if (p.checkpoint_every > 0) {
    int64_t rows = 0;
    const auto offsets = plan.offsets();
    for (int32_t n = 0; n < plan.sequences(); ++n) rows += (offsets[n + 1] - offsets[n]) / p.checkpoint_every;
    const int64_t have = a.checkpoints.rank == 3 ? a.checkpoints.dims[0] : 0;
    if (rows > 0)
      FLUVIAL_RETURN_IF_ERROR(CheckPacked(kOpName, "checkpoints", a.checkpoints, p.state, {have, w - 1, c}));
    if (have < rows) {
      return Bad("checkpoints has " + std::to_string(have) + " rows, " + std::to_string(rows) + " are needed");
    }
  }
  if (p.token_states) {
    FLUVIAL_RETURN_IF_ERROR(
        CheckPacked(kOpName, "token_slots", a.token_slots, DType::kI32, {p.sequences, p.max_length}));
  }
  return Status::Ok();
}

void SetLengths(Problem& p, std::span<const int64_t> lengths) {
  p.tokens = 0;
  p.max_length = 0;
  p.sequences = static_cast<int32_t>(lengths.size());
  for (int64_t n : lengths) {
    p.tokens += n;
    p.max_length = std::max(p.max_length, n);
  }
}

std::span<const ConvBackend> Backends() {
  static const ConvBackend kList[] = {
      {"cpu", "Highway SIMD, threads over tokens and channels; all dtypes, widths and roundings", &internal::CpuCheck,
       &internal::CpuWorkspace, &internal::CpuCost, &internal::CpuRun},
      {"reference", "fp64 token loop with the problem's rounding points", &internal::ReferenceCheck,
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
  auto take_int32 = [&f](std::string_view key, int32_t* to) -> Status {
    FLUVIAL_ASSIGN_OR_RETURN(const int64_t v, f.TakeInt(key, *to));
    if (v < INT32_MIN || v > INT32_MAX) return Bad(std::string(key) + "=" + std::to_string(v) + " is out of range");
    *to = static_cast<int32_t>(v);
    return Status::Ok();
  };
  auto take_dtype = [&f](std::string_view key, DType* to) -> Status {
    if (!f.Has(key)) return Status::Ok();
    FLUVIAL_ASSIGN_OR_RETURN(*to, ParseDType(f.Take(key)));
    return Status::Ok();
  };
  auto take_choice = [&f](std::string_view key, std::string_view zero, std::string_view one, bool* to) -> Status {
    if (!f.Has(key)) return Status::Ok();
    const std::string v = f.Take(key);
    if (v != zero && v != one) {
      return Bad(std::string(key) + "=" + v + ": use " + std::string(zero) + " or " + std::string(one));
    }
    *to = v == one;
    return Status::Ok();
  };
  FLUVIAL_RETURN_IF_ERROR(take_int32("c", &p.channels));
  FLUVIAL_RETURN_IF_ERROR(take_int32("w", &p.width));
  FLUVIAL_RETURN_IF_ERROR(take_dtype("io", &p.io));
  p.weight = p.state = p.io;
  FLUVIAL_RETURN_IF_ERROR(take_dtype("weight", &p.weight));
  FLUVIAL_RETURN_IF_ERROR(take_dtype("state", &p.state));
  bool silu = true, eager = false;
  FLUVIAL_RETURN_IF_ERROR(take_choice("bias", "0", "1", &p.has_bias));
  FLUVIAL_RETURN_IF_ERROR(take_choice("act", "none", "silu", &silu));
  FLUVIAL_RETURN_IF_ERROR(take_choice("rounding", "once", "eager", &eager));
  FLUVIAL_RETURN_IF_ERROR(take_int32("every", &p.checkpoint_every));
  FLUVIAL_RETURN_IF_ERROR(take_choice("token_states", "0", "1", &p.token_states));
  p.activation = silu ? Activation::kSilu : Activation::kNone;
  p.rounding = eager ? Rounding::kEager : Rounding::kOnce;
  FLUVIAL_ASSIGN_OR_RETURN(line.lengths, ParseLengths(f.Take("lens")));
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t seed, f.TakeInt("seed", 1));
  line.seed = static_cast<uint64_t>(seed);
  FLUVIAL_RETURN_IF_ERROR(f.Finish());
  SetLengths(p, line.lengths);
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return line;
}

std::string FormatProblemLine(const ProblemLine& line) {
  return line.problem.ToString() + " lens=" + FormatLengths(line.lengths) + " seed=" + std::to_string(line.seed);
}

}  // namespace fluvial::ops::causal_conv1d
