// SPDX-License-Identifier: Apache-2.0
// The CUDA backends' contracts, costs and the list; kernels are in sm90_*.cu and cuda_tokens.cu.
#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "ops/delta_rule/backends.h"
#include "ops/delta_rule/sm90_delta_launch.h"

namespace fluvial::ops::delta_rule {
namespace {

size_t NoWorkspace(const Problem&, const DeviceInfo&) { return 0; }

/// Why nothing CUDA runs there, or empty.
std::string NoDevice(const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCuda) return "";
  const std::string reason = CudaUnavailableReason();
  return reason.empty() ? "it runs on a CUDA GPU, and the device is " + device.Arch() : reason;
}

// ---- kda_prefill: chunks of 16, one CTA per sequence and head ------------------------------------------------
Check CheckChunk16(const Problem& p, const DeviceInfo& device) {
  if (std::string why = NoDevice(device); !why.empty()) return Check::Refuse(why);
  if (device.sm_major != 9 || device.sm_minor != 0) return Check::Refuse("needs sm_90, the device is " + device.Arch());
  if (p.k != 128 || p.v != 128) {
    return Check::Refuse("needs k = v = 128, got k=" + std::to_string(p.k) + " v=" + std::to_string(p.v));
  }
  if (p.io != DType::kBF16) return Check::Refuse("needs io=bf16, got " + std::string(fluvial::Name(p.io)));
  if (p.kda()) {
    if (p.gate != GateForm::kBounded) {
      return Check::Refuse("needs a bounded gate (16 unbounded decays per channel overflow its range)");
    }
    if (p.gate_dtype != DType::kBF16) {
      return Check::Refuse("needs gate_dtype=bf16, got " + std::string(fluvial::Name(p.gate_dtype)));
    }
    if (p.norm == NormForm::kNone) {
      return Check::Refuse("needs norm=l2_add or l2_max: unnormalised keys could overflow");
    }
  } else if (p.gate_dtype != DType::kBF16 && p.gate_dtype != DType::kF32) {
    return Check::Refuse("needs gate_dtype=bf16 or fp32, got " + std::string(fluvial::Name(p.gate_dtype)));
  }
  if (p.beta_dtype != DType::kBF16 && p.beta_dtype != DType::kF32) {
    return Check::Refuse("needs beta_dtype=bf16 or fp32, got " + std::string(fluvial::Name(p.beta_dtype)));
  }
  if (p.state != DType::kF32 && p.state != DType::kBF16) {
    return Check::Refuse("needs state=fp32 or bf16, got " + std::string(fluvial::Name(p.state)));
  }
  if (p.checkpoint_every != 0) {
    return Check::Refuse("writes no checkpoints, got checkpoint_every=" + std::to_string(p.checkpoint_every));
  }
  if (p.alignment != 16) return Check::Refuse("needs alignment=16, got " + std::to_string(p.alignment));
  if (p.tokens > std::numeric_limits<int32_t>::max()) {
    return Check::Refuse("takes at most 2^31-1 tokens, got " + std::to_string(p.tokens));
  }
  if (int64_t{p.sequences} * p.hv > std::numeric_limits<int32_t>::max()) {
    return Check::Refuse("takes at most 2^31-1 sequences x heads");
  }
  return Check::Accept();
}

// H200, 2026-11-30 (docs/kernels/delta_rule_chunk16.md): microseconds per 16-token step of a sequence and head with one
// CTA per SM and per launch; the balanced run's steps, and what it takes beside them.
constexpr double kKdaStepUs = 1.15, kGdnStepUs = 0.75, kLaunchUs = 7;
constexpr double kKdaBalancedStepUs = 1.31, kGdnBalancedStepUs = 0.93, kBalancedUs = 46;

double StepUs(const Problem& p) { return p.kda() ? kKdaStepUs : kGdnStepUs; }

double Chunk16Cost(const Problem& p, const DeviceInfo& device) {
  const double chunks = static_cast<double>(p.tokens + 15 * p.sequences) / 16 * p.hv;
  const double waves = chunks / std::max(device.multiprocessors, 1);
  return kLaunchUs + StepUs(p) * std::max(static_cast<double>(p.max_length) / 16, 1.1 * waves);
}

const DeltaBackend kChunk16 = {
    .name = "cuda_chunk16",
    .description =
        "sm_90a tensor cores, chunks of 16 tokens, fp32 state in registers, bf16 operands; KDA with bounded gates, GDN "
        "with any",
    .check = CheckChunk16,
    .workspace_bytes = NoWorkspace,
    .cost_us = Chunk16Cost,
    .run = [](Stream& s, const Problem& p, const Args& a, Workspace w) { return LaunchChunk16(s, p, a, 0, w); },
};

// ---- the same in equal parts, one per SM -----------------------------------------------------------------------
// As sm90_chunk16_pieces.cuh counts: what a task costs beside its chunks, and the least worth a CTA, in chunks.
constexpr int64_t kTaskWeight = 3, kMinPart = 19;

int64_t BalancedWeight(const Problem& p) { return (p.tokens / 16 + (1 + kTaskWeight) * p.sequences) * p.hv; }
int64_t BalancedParts(const Problem& p, const DeviceInfo& device) {
  return std::clamp<int64_t>(BalancedWeight(p) / kMinPart, 1, std::max(device.multiprocessors, 1));
}

/// Where the state is forgotten within four chunks, as with the suites' inputs; up to three times as long where never.
double BalancedCost(const Problem& p, const DeviceInfo& device) {
  const int64_t parts = BalancedParts(p, device);
  const double chunks = static_cast<double>(BalancedWeight(p)) / static_cast<double>(parts) + 4;
  return kBalancedUs + (p.kda() ? kKdaBalancedStepUs : kGdnBalancedStepUs) * chunks;
}

Check CheckBalanced(const Problem& p, const DeviceInfo& device) {
  Check c = CheckChunk16(p, device);
  if (!c.ok()) return c;
  if (p.sequences > 1024) {
    return Check::Refuse("takes at most 1024 sequences, got " + std::to_string(p.sequences));
  }
  return c;
}

const DeltaBackend kBalanced = {
    .name = "cuda_chunk16_balanced",
    .description =
        "cuda_chunk16 with the work cut into equal parts, one per SM, also inside sequences; the same result",
    .check = CheckBalanced,
    .workspace_bytes = [](const Problem& p, const DeviceInfo& d) { return BalancedWorkspace(BalancedParts(p, d)); },
    .cost_us = BalancedCost,
    .run = [](Stream& s, const Problem& p, const Args& a,
              Workspace w) { return LaunchChunk16(s, p, a, BalancedParts(p, s.device()), w); },
};

// ---- token by token ------------------------------------------------------------------------------------------
Check CheckTokens(const Problem& p, const DeviceInfo& device) {
  if (std::string why = NoDevice(device); !why.empty()) return Check::Refuse(why);
  if (device.sm_major != 9) return Check::Refuse("built for sm_90a, the device is " + device.Arch());
  const int64_t tiles = (p.v + 7) / 8;
  if (int64_t{p.sequences} * p.hv * tiles > std::numeric_limits<int32_t>::max()) {
    return Check::Refuse("takes at most 2^31-1 blocks of sequences x heads x 8 values");
  }
  return Check::Accept();
}

double TokensCost(const Problem& p, const DeviceInfo& device) {
  const double state_bytes = 2.0 * p.sequences * p.hv * p.k * p.v * static_cast<double>(SizeOf(p.state));
  const double traffic = state_bytes / 3.6e6;
  // H200, 2026-11-30: 2.25 us per token of a sequence; eight CTAs of 32 values per SM before that grows.
  const double steps = 2.25 * static_cast<double>(p.max_length);
  const double waves =
      2.25 * static_cast<double>(p.tokens) * p.hv * p.v / 32 / (8.0 * std::max(device.multiprocessors, 1));
  return 4 + std::max({traffic, steps, waves});
}

Status RunTokens(Stream& s, const Problem& p, const Args& a, Workspace) { return LaunchTokens(s, p, a); }

const DeltaBackend kTokens = {
    .name = "cuda_tokens",
    .description = "CUDA, token by token, fp32 arithmetic; the whole contract",
    .check = CheckTokens,
    .workspace_bytes = NoWorkspace,
    .cost_us = TokensCost,
    .run = RunTokens,
};

// ---- one token per sequence -----------------------------------------------------------------------------------
Check CheckDecode(const Problem& p, const DeviceInfo& device) {
  Check c = CheckTokens(p, device);
  if (!c.ok()) return c;
  if (p.k != 128 || p.v % 32 != 0) {
    return Check::Refuse("needs k = 128 and v a multiple of 32, got k=" + std::to_string(p.k) +
                         " v=" + std::to_string(p.v));
  }
  if (p.max_length > 1) {
    return Check::Refuse("takes one token per sequence, the longest has " + std::to_string(p.max_length));
  }
  if (p.token_states) return Check::Refuse("keeps no state per token");
  if (p.alignment != 16) return Check::Refuse("needs alignment=16, got " + std::to_string(p.alignment));
  return c;
}

double DecodeCost(const Problem& p, const DeviceInfo&) {
  const double bytes = 2.0 * p.sequences * p.hv * p.k * p.v * static_cast<double>(SizeOf(p.state));
  return 4 + bytes / 3.8e6;
}

const DeltaBackend kDecode = {
    .name = "cuda_decode",
    .description = "CUDA, one token per sequence, fp32 arithmetic; bound by reading and writing the state",
    .check = CheckDecode,
    .workspace_bytes = NoWorkspace,
    .cost_us = DecodeCost,
    .run = [](Stream& s, const Problem& p, const Args& a, Workspace) { return LaunchDecode(s, p, a); },
};

}  // namespace

std::span<const DeltaBackend> CudaBackends(Op op) {
  static const std::array<DeltaBackend, 3> prefill = {kChunk16, kBalanced, kTokens};
  static const std::array<DeltaBackend, 2> decode = {kDecode, kTokens};
  if (op == Op::kKdaPrefill) return prefill;
  if (op == Op::kGdnPrefill) return prefill;
  return decode;
}

}  // namespace fluvial::ops::delta_rule
