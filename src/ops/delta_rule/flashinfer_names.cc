// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/flashinfer_names.h"

#include <array>
#include <string>

#include "base/text_form.h"

namespace fluvial::ops::delta_rule {
namespace {

// Sets of state types, as bits.
constexpr unsigned kBf16 = 1, kFp32 = 2, kFp16 = 4;

unsigned Bit(DType t) { return t == DType::kBF16 ? kBf16 : t == DType::kF32 ? kFp32 : t == DType::kF16 ? kFp16 : 0; }

std::string Names(unsigned set) {
  std::string s;
  if ((set & kBf16) != 0) s += "bf16";
  if ((set & kFp32) != 0) s += (s.empty() ? "" : " or ") + std::string("fp32");
  if ((set & kFp16) != 0) s += (s.empty() ? "" : " or ") + std::string("fp16");
  return s;
}

std::string TypeName(DType t) { return std::string(fluvial::Name(t)); }

bool Blackwell(const DeviceInfo& d) {
  return d.kind == DeviceKind::kCuda && d.sm_major == 10 && (d.sm_minor == 0 || d.sm_minor == 3);
}

Check State(const Problem& p, unsigned set) {
  if ((Bit(p.state) & set) != 0) return Check::Accept();
  return Check::Refuse("state must be " + Names(set) + ", and it is " + TypeName(p.state));
}

// What all of FlashInfer's KDA prefill kernels share.
Check KdaCommon(const Problem& p, const DeviceInfo& d, unsigned states) {
  if (p.op != Op::kKdaPrefill) return Check::Refuse("it names prefill kernels only");
  if (!Blackwell(d)) return Check::Refuse("it needs sm_100 or sm_103, and the device is " + d.Arch());
  if (p.k != 128 || p.v != 128) {
    return Check::Refuse("k and v must be 128, and they are " + std::to_string(p.k) + " and " + std::to_string(p.v));
  }
  if (p.hk != p.hv) {
    return Check::Refuse("hk and hv must be equal, and they are " + std::to_string(p.hk) + " and " +
                         std::to_string(p.hv));
  }
  if (p.io != DType::kBF16) return Check::Refuse("io must be bf16, and it is " + TypeName(p.io));
  if (p.checkpoint_every != 0) {
    return Check::Refuse("its snapshots are taken before an interval, and checkpoint_every=" +
                         std::to_string(p.checkpoint_every) + " asks for states after it");
  }
  return State(p, states);
}

Check BoundedGate(const Problem& p) {
  if (p.gate == GateForm::kBounded) return Check::Accept();
  return Check::Refuse("the gate must be bounded, and it is not");
}

// A kernel that normalises with one fixed formula, or takes rows that are normalised already.
Check OwnNorm(const Problem& p, NormForm form, float eps) {
  if (p.norm == NormForm::kNone || (p.norm == form && p.norm_eps == eps)) return Check::Accept();
  return Check::Refuse(std::string("its own normalisation is ") + (form == NormForm::kL2Add ? "l2_add:" : "l2_max:") +
                       FormatFloat(eps) + ", and the problem asks for " +
                       (p.norm == NormForm::kL2Add ? "l2_add:" : "l2_max:") + FormatFloat(p.norm_eps) +
                       ": normalise before, or use cudnn");
}

Check NoNorm(const Problem& p) {
  if (p.norm == NormForm::kNone) return Check::Accept();
  return Check::Refuse(std::string("it has no fixed normalisation: normalise before (norm=none)") +
                       (p.kda() ? ", or use cudnn" : ""));
}

Check Capture(const ProviderSituation& s) {
  if (!s.graph_capture || (s.explicit_workspace && s.warmed_workspace)) return Check::Accept();
  return Check::Refuse(s.explicit_workspace ? "prefill graph capture needs a warmed workspace, and this one is cold"
                                            : "prefill graph capture needs an explicit, warmed workspace");
}

Check First(std::initializer_list<Check> checks) {
  for (const Check& c : checks) {
    if (!c.ok()) return c;
  }
  return Check::Accept();
}

Check KdaAuto(const Problem& p, const DeviceInfo& d, const ProviderSituation&) {
  return First({KdaCommon(p, d, kBf16), BoundedGate(p), NoNorm(p)});
}

Check KdaCake(const Problem& p, const DeviceInfo& d, const ProviderSituation&) {
  return First({KdaCommon(p, d, kBf16), BoundedGate(p), OwnNorm(p, NormForm::kL2Add, 1e-6f)});
}

Check KdaSmallBh(const Problem& p, const DeviceInfo& d, const ProviderSituation&) {
  if (p.gate == GateForm::kLog) return Check::Refuse("it computes the gate itself, and gate=log gives the decay");
  return First({KdaCommon(p, d, kBf16), NoNorm(p)});
}

Check KdaCuteDsl(const Problem& p, const DeviceInfo& d, const ProviderSituation&) {
  return First({KdaCommon(p, d, kBf16 | kFp32), BoundedGate(p), OwnNorm(p, NormForm::kL2Max, 1e-24f)});
}

Check KdaPersistent(const Problem& p, const DeviceInfo& d, const ProviderSituation& s) {
  const Check common =
      First({KdaCommon(p, d, kFp32), BoundedGate(p), OwnNorm(p, NormForm::kL2Max, 1e-24f), Capture(s)});
  if (!common.ok()) return common;
  if (p.hv % 8 != 0) return Check::Refuse("heads must be a multiple of 8, and they are " + std::to_string(p.hv));
  return Check::Accept();
}

Check KdaTirx(const Problem& p, const DeviceInfo& d, const ProviderSituation& s) {
  return First({KdaCommon(p, d, kFp32), BoundedGate(p), NoNorm(p), Capture(s)});
}

Check KdaPtx(const Problem& p, const DeviceInfo& d, const ProviderSituation& s) {
  if (d.kind != DeviceKind::kCuda || d.sm_major != 10 || d.sm_minor != 3) {
    return Check::Refuse("it needs sm_103a, and the device is " + d.Arch());
  }
  const Check common = First({KdaCommon(p, d, kFp32), BoundedGate(p), NoNorm(p), Capture(s)});
  if (!common.ok()) return common;
  if (p.hv != 64 && p.hv != 96) return Check::Refuse("heads must be 64 or 96, and they are " + std::to_string(p.hv));
  return Check::Accept();
}

Check KdaCudnn(const Problem& p, const DeviceInfo& d, const ProviderSituation&) {
  const Check common = First({KdaCommon(p, d, kBf16 | kFp32), BoundedGate(p)});
  if (!common.ok()) return common;
  if (p.norm == NormForm::kL2Max) {
    return Check::Refuse("it normalises q and k with an added epsilon, and the problem asks for l2_max");
  }
  return Check::Accept();
}

Check GdnCommon(const Problem& p) {
  if (p.op != Op::kGdnPrefill) return Check::Refuse("it names prefill kernels only");
  if (p.k != 128 || p.v != 128) {
    return Check::Refuse("k and v must be 128, and they are " + std::to_string(p.k) + " and " + std::to_string(p.v));
  }
  if (p.io == DType::kF32) return Check::Refuse("io must be bf16 or fp16, and it is fp32");
  return Check::Accept();
}

Check GdnAuto(const Problem& p, const DeviceInfo& d, const ProviderSituation&) {
  if (d.kind != DeviceKind::kCuda || d.sm_major < 9) {
    return Check::Refuse("it needs sm_90 or newer, and the device is " + d.Arch());
  }
  // Hopper and sm_120 keep fp32 states only.
  const unsigned states = d.sm_major == 10 ? kBf16 | kFp32 | kFp16 : kFp32;
  return First({GdnCommon(p), State(p, states), NoNorm(p)});
}

Check GdnCudnn(const Problem& p, const DeviceInfo& d, const ProviderSituation&) {
  if (!Blackwell(d)) return Check::Refuse("it needs sm_100 or sm_103, and the device is " + d.Arch());
  const Check common = First({GdnCommon(p), State(p, kBf16 | kFp32), NoNorm(p)});
  if (!common.ok()) return common;
  if (p.checkpoint_every != 0) {
    return Check::Refuse("it keeps no snapshots, and checkpoint_every=" + std::to_string(p.checkpoint_every));
  }
  return Check::Accept();
}

constexpr std::array<ProviderName, 8> kKda = {{
    {"auto", "FlashInfer picks; state bf16", KdaAuto},
    {"cute-dsl", "CuTe DSL, chunks of 16; state bf16 or fp32", KdaCuteDsl},
    {"cute-dsl-persistent", "CuTe DSL, persistent; state fp32", KdaPersistent},
    {"tirx", "TIR port; state fp32", KdaTirx},
    {"ptx", "hand-written PTX for sm_103a, 64 or 96 heads; state fp32", KdaPtx},
    {"cake", "CUDA C++, chunks of 32; state bf16", KdaCake},
    {"small-bh", "few sequences and heads; state bf16", KdaSmallBh},
    {"cudnn", "cuDNN frontend graph, additive epsilon, -5 <= lower_bound < 0; state bf16 or fp32", KdaCudnn},
}};

constexpr std::array<ProviderName, 2> kGdn = {{
    {"auto", "FlashInfer picks", GdnAuto},
    {"cudnn", "cuDNN frontend graph", GdnCudnn},
}};

}  // namespace

std::span<const ProviderName> FlashInferNames(Op op) {
  if (op == Op::kKdaPrefill || op == Op::kKdaDecode) return kKda;
  return kGdn;
}

Result<Check> CheckFlashInfer(std::string_view name, const Problem& problem, const DeviceInfo& device,
                              const ProviderSituation& situation) {
  FLUVIAL_RETURN_IF_ERROR(Validate(problem));
  std::string names;
  for (const ProviderName& n : FlashInferNames(problem.op)) {
    if (n.name == name) return n.check(problem, device, situation);
    names += (names.empty() ? "" : ", ") + std::string(n.name);
  }
  return Status::InvalidArgument("FlashInfer has no " + std::string(problem.kda() ? "KDA" : "GDN") + " backend '" +
                                 std::string(name) + "'; names: " + names);
}

}  // namespace fluvial::ops::delta_rule
