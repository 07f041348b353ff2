// SPDX-License-Identifier: Apache-2.0
// The contract, checked: problems by themselves, and tensors against a problem. Messages name field, value, rule.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/text_form.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {
namespace {

Status Bad(const Problem& p, const std::string& what) {
  return Status::InvalidArgument(std::string(Name(p.op)) + ": " + what);
}

bool IsIo(DType t) { return t == DType::kBF16 || t == DType::kF16 || t == DType::kF32; }

Status CheckDType(const Problem& p, const char* field, DType t) {
  if (IsIo(t)) return Status::Ok();
  return Bad(p, std::string(field) + "=" + std::string(fluvial::Name(t)) + ": must be bf16, fp16 or fp32");
}

Status CheckForms(const Problem& p) {
  switch (p.gate) {
    case GateForm::kLog:
      if (p.has_a_log || p.has_dt_bias) {
        return Bad(p, "gate=log takes the decay as it is: A_log and dt_bias must be absent (a_log=0 dt_bias=0)");
      }
      break;
    case GateForm::kSoftplus:
      if (!p.has_a_log) return Bad(p, "gate=softplus needs A_log (a_log=1)");
      break;
    case GateForm::kBounded:
      if (!(p.lower_bound >= -5.0f && p.lower_bound < 0.0f)) {
        return Bad(p, "lower_bound=" + FormatFloat(p.lower_bound) + ": must be in [-5, 0)");
      }
      break;
    default:
      return Bad(p, "gate: unknown form " + std::to_string(static_cast<int>(p.gate)));
  }
  if (p.gate != GateForm::kBounded && p.lower_bound != 0.0f) {
    return Bad(p, "lower_bound=" + FormatFloat(p.lower_bound) + ": only gate=bounded takes one");
  }
  if (p.beta != BetaForm::kProbability && p.beta != BetaForm::kLogit && p.beta != BetaForm::kTwoSigmoid) {
    return Bad(p, "beta: unknown form " + std::to_string(static_cast<int>(p.beta)));
  }
  if (p.norm != NormForm::kNone && p.norm != NormForm::kL2Add && p.norm != NormForm::kL2Max) {
    return Bad(p, "norm: unknown form " + std::to_string(static_cast<int>(p.norm)));
  }
  if (p.norm != NormForm::kNone && !(std::isnormal(p.norm_eps) && p.norm_eps > 0)) {
    return Bad(p, "norm_eps=" + FormatFloat(p.norm_eps) + ": must be a positive, normal fp32 number");
  }
  if (!std::isfinite(p.scale) || p.scale == 0) {
    return Bad(p, "scale=" + FormatFloat(p.scale) + ": must be finite and not zero, usually 1/sqrt(k)");
  }
  return Status::Ok();
}

Status CheckSizes(const Problem& p) {
  const auto range = [&](const char* field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return Status::Ok();
    return Bad(p, std::string(field) + "=" + std::to_string(value) + ": must be in [" + std::to_string(low) + ", " +
                      std::to_string(high) + "]");
  };
  FLUVIAL_RETURN_IF_ERROR(range("hk", p.hk, 1, 4096));
  FLUVIAL_RETURN_IF_ERROR(range("hv", p.hv, 1, 4096));
  if (p.hv % p.hk != 0) {
    return Bad(p, "hv=" + std::to_string(p.hv) + ": must be a multiple of hk=" + std::to_string(p.hk));
  }
  FLUVIAL_RETURN_IF_ERROR(range("k", p.k, 1, kMaxHeadDim));
  FLUVIAL_RETURN_IF_ERROR(range("v", p.v, 1, kMaxHeadDim));
  FLUVIAL_RETURN_IF_ERROR(range("tokens", p.tokens, 0, int64_t{1} << 40));
  FLUVIAL_RETURN_IF_ERROR(range("sequences", p.sequences, 0, 1 << 24));
  FLUVIAL_RETURN_IF_ERROR(range("max_length", p.max_length, 0, p.tokens));
  if (p.max_length * p.sequences < p.tokens) {
    return Bad(p, "tokens=" + std::to_string(p.tokens) + ": more than sequences=" + std::to_string(p.sequences) +
                      " of max_length=" + std::to_string(p.max_length) + " can hold");
  }
  if (!p.prefill() && p.max_length > kMaxDecodeTokens) {
    return Bad(p, "max_length=" + std::to_string(p.max_length) + ": decode takes at most " +
                      std::to_string(kMaxDecodeTokens) + " tokens per sequence; use the prefill operator");
  }
  if (p.checkpoint_every != 0 && (!p.prefill() || p.checkpoint_every < 64 || p.checkpoint_every % 64 != 0)) {
    return Bad(p, "checkpoint_every=" + std::to_string(p.checkpoint_every) +
                      (p.prefill() ? ": must be 0 or a multiple of 64" : ": decode takes none, use token_states"));
  }
  if (p.token_states && p.prefill()) return Bad(p, "token_states=1: only decode keeps a state per token");
  if (p.alignment != 16 && p.alignment != 8 && p.alignment != 4 && p.alignment != 2) {
    return Bad(p, "alignment=" + std::to_string(p.alignment) + ": must be 16, 8, 4 or 2 bytes");
  }
  return Status::Ok();
}

// One tensor of the call: where it is, and what it must look like.
struct Want {
  const char* name;
  const TensorView& tensor;
  DType dtype;
  std::array<int64_t, 4> dims;
  int rank;
  bool aligned;  ///< problem.alignment applies
};

Status CheckTensor(const Problem& p, const Want& w) {
  const TensorView& t = w.tensor;
  const std::string name = w.name;
  int64_t wanted = 1;
  for (int i = 0; i < w.rank; ++i) wanted *= w.dims[i];
  if (t.rank != w.rank || t.dtype != w.dtype || !std::equal(w.dims.begin(), w.dims.begin() + w.rank, t.dims.begin())) {
    std::string want(fluvial::Name(w.dtype));
    for (int i = 0; i < w.rank; ++i) want += (i ? "," : "[") + std::to_string(w.dims[i]);
    return Bad(p, name + " is " + t.ToString() + ": must be " + want + "]");
  }
  if (wanted == 0) return Status::Ok();
  if (!t.defined()) return Bad(p, name + " has no memory: give its tensor");
  // Packed within a row; the outermost stride (the row pitch) is free.
  int64_t packed = 1;
  for (int i = w.rank - 1; i >= 1; --i) {
    if (t.dim(i) != 1 && t.stride(i) != packed) {
      return Bad(p, name + " is " + t.ToString() + ": only the outermost stride may differ from the packed one");
    }
    packed *= t.dim(i);
  }
  if (t.dim(0) > 1 && t.stride(0) < packed) {
    return Bad(p, name + " is " + t.ToString() + ": its rows overlap");
  }
  const size_t size = SizeOf(t.dtype);
  const size_t alignment = w.aligned ? static_cast<size_t>(p.alignment) : size;
  const bool base_ok = reinterpret_cast<uintptr_t>(t.data) % std::max(alignment, size) == 0;
  const bool pitch_ok = t.dim(0) <= 1 || static_cast<size_t>(t.stride(0)) * size % alignment == 0;
  if (!base_ok || !pitch_ok) {
    return Bad(p, name +
                      (base_ok ? " row pitch of " + std::to_string(static_cast<size_t>(t.stride(0)) * size) + " bytes"
                               : " address") +
                      " is not a multiple of alignment=" + std::to_string(std::max(alignment, size)));
  }
  return Status::Ok();
}

struct Extent {
  uintptr_t begin = 0, end = 0;
  size_t pitch = 0, row = 0;
};

Extent ExtentOf(const TensorView& t) {
  Extent e;
  if (!t.defined() || t.elements() == 0) return e;
  const size_t size = SizeOf(t.dtype);
  e.row = size;
  for (int i = 1; i < t.rank; ++i) e.row *= static_cast<size_t>(t.dim(i));
  e.pitch = t.dim(0) > 1 ? static_cast<size_t>(t.stride(0)) * size : e.row;
  e.begin = reinterpret_cast<uintptr_t>(t.data);
  e.end = e.begin + e.pitch * static_cast<size_t>(t.dim(0) - 1) + e.row;
  return e;
}

// Slices of one fused buffer interleave without sharing a byte when pitches agree and columns are apart.
bool Overlap(const TensorView& a, const TensorView& b) {
  const Extent x = ExtentOf(a), y = ExtentOf(b);
  if (x.begin == x.end || y.begin == y.end || x.begin >= y.end || y.begin >= x.end) return false;
  if (x.pitch != y.pitch || x.pitch == 0) return true;
  const size_t offset = (y.begin + x.pitch - x.begin % x.pitch) % x.pitch;
  return offset < x.row || offset + y.row > x.pitch;
}

}  // namespace

Status Validate(const Problem& p) {
  if (static_cast<int>(p.op) > static_cast<int>(Op::kKdaDecode)) {
    return Status::InvalidArgument("delta rule: unknown operator " + std::to_string(static_cast<int>(p.op)));
  }
  FLUVIAL_RETURN_IF_ERROR(CheckSizes(p));
  FLUVIAL_RETURN_IF_ERROR(CheckDType(p, "io", p.io));
  FLUVIAL_RETURN_IF_ERROR(CheckDType(p, "gate_dtype", p.gate_dtype));
  FLUVIAL_RETURN_IF_ERROR(CheckDType(p, "beta_dtype", p.beta_dtype));
  FLUVIAL_RETURN_IF_ERROR(CheckDType(p, "state", p.state));
  if (static_cast<size_t>(p.alignment) < SizeOf(p.io)) {
    return Bad(p, "alignment=" + std::to_string(p.alignment) +
                      ": smaller than one element of io=" + std::string(fluvial::Name(p.io)));
  }
  return CheckForms(p);
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  if (a.plan == nullptr) return Bad(p, "no plan: build a SequencePlan of the step's lengths");
  const SequencePlan& plan = *a.plan;
  if (plan.tokens() > p.tokens || plan.sequences() > p.sequences || plan.max_length() > p.max_length) {
    return Bad(p, "the plan has " + std::to_string(plan.sequences()) + " sequences, " + std::to_string(plan.tokens()) +
                      " tokens, longest " + std::to_string(plan.max_length()) + ": more than the problem's " +
                      std::to_string(p.sequences) + ", " + std::to_string(p.tokens) + ", " +
                      std::to_string(p.max_length));
  }
  const int64_t t = p.tokens, hk = p.hk, hv = p.hv, k = p.k, v = p.v;
  FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"q", a.q, p.io, {t, hk, k, 0}, 3, true}));
  FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"k", a.k, p.io, {t, hk, k, 0}, 3, true}));
  FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"v", a.v, p.io, {t, hv, v, 0}, 3, true}));
  FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"out", a.out, p.io, {t, hv, v, 0}, 3, true}));
  if (p.kda()) {
    FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"gate", a.gate, p.gate_dtype, {t, hv, k, 0}, 3, true}));
  } else {
    FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"gate", a.gate, p.gate_dtype, {t, hv, 0, 0}, 2, false}));
  }
  FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"beta", a.beta, p.beta_dtype, {t, hv, 0, 0}, 2, false}));
  if (p.has_a_log) {
    FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"a_log", a.a_log, DType::kF32, {hv, 0, 0, 0}, 1, false}));
  }
  if (p.has_dt_bias) {
    if (p.kda()) {
      FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"dt_bias", a.dt_bias, DType::kF32, {hv, k, 0, 0}, 2, false}));
    } else {
      FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"dt_bias", a.dt_bias, DType::kF32, {hv, 0, 0, 0}, 1, false}));
    }
    if (hv > 1 && a.dt_bias.stride(0) != (p.kda() ? k : 1)) return Bad(p, "dt_bias must be packed");
  }
  if (p.has_a_log && hv > 1 && a.a_log.stride(0) != 1) return Bad(p, "a_log must be packed");
  const int64_t slots = a.state.rank == 4 ? a.state.dim(0) : 0;
  FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"state", a.state, p.state, {slots, hv, v, k}, 4, true}));
  if (plan.max_slot() >= slots) {
    return Bad(p, "slot " + std::to_string(plan.max_slot()) + " is beyond the state pool of " + std::to_string(slots) +
                      " slots");
  }
  if (p.checkpoint_every > 0) {
    int64_t rows = 0;
    for (int32_t n = 0; n < plan.sequences(); ++n) {
      rows += (plan.offsets()[n + 1] - plan.offsets()[n]) / p.checkpoint_every;
    }
    const int64_t have = a.checkpoints.rank == 4 ? a.checkpoints.dim(0) : 0;
    FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, {"checkpoints", a.checkpoints, p.state, {have, hv, v, k}, 4, false}));
    if (have < rows) {
      return Bad(p, "checkpoints has " + std::to_string(have) + " rows: these lengths write " + std::to_string(rows));
    }
    if (!a.checkpoints.packed()) return Bad(p, "checkpoints must be packed");
    if (Overlap(a.checkpoints, a.state)) return Bad(p, "checkpoints overlaps state");
  }
  if (p.token_states) {
    FLUVIAL_RETURN_IF_ERROR(
        CheckTensor(p, {"token_slots", a.token_slots, DType::kI32, {p.sequences, p.max_length, 0, 0}, 2, false}));
    if (!a.token_slots.packed()) return Bad(p, "token_slots must be packed");
  }
  const std::pair<const char*, const TensorView*> inputs[] = {
      {"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"gate", &a.gate}, {"beta", &a.beta}, {"state", &a.state}};
  for (const auto& [name, tensor] : inputs) {
    if (Overlap(a.out, *tensor)) return Bad(p, std::string("out overlaps ") + name + ": give it its own memory");
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::delta_rule
