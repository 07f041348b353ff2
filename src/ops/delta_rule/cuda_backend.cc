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
  if (p.gate != GateForm::kBounded) return Check::Refuse("needs a bounded gate (16 unbounded decays overflow its range)");
  if (p.gate_dtype != DType::kBF16) {
    return Check::Refuse("needs gate_dtype=bf16, got " + std::string(fluvial::Name(p.gate_dtype)));
  }
  if (p.beta_dtype != DType::kBF16 && p.beta_dtype != DType::kF32) {
    return Check::Refuse("needs beta_dtype=bf16 or fp32, got " + std::string(fluvial::Name(p.beta_dtype)));
  }
  if (p.state != DType::kF32 && p.state != DType::kBF16) {
    return Check::Refuse("needs state=fp32 or bf16, got " + std::string(fluvial::Name(p.state)));
  }
  if (p.norm == NormForm::kNone) return Check::Refuse("needs norm=l2_add or l2_max: unnormalised keys could overflow");
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

double Chunk16Cost(const Problem& p, const DeviceInfo& device) {
  // H200, 2026-11-30: 1.19 us per 16-token step of a sequence, one CTA per SM, 9 us to start.
  const double chunks = static_cast<double>(p.tokens + 15 * p.sequences) / 16 * p.hv;
  const double waves = chunks / std::max(device.multiprocessors, 1);
  return 9 + 1.19 * std::max(static_cast<double>(p.max_length) / 16, waves);
}

const DeltaBackend kChunk16 = {
    .name = "cuda_chunk16",
    .description = "sm_90a tensor cores, chunks of 16 tokens, fp32 state in registers, bf16 operands; bounded gates",
    .check = CheckChunk16,
    .workspace_bytes = NoWorkspace,
    .cost_us = Chunk16Cost,
    .run = [](Stream& s, const Problem& p, const Args& a, Workspace) { return LaunchKdaPrefillChunk16(s, p, a); },
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
  const double steps = 0.35 * static_cast<double>(p.max_length);
  const double waves = 0.35 * static_cast<double>(p.tokens) * p.hv * p.v / 32 / (8.0 * std::max(device.multiprocessors, 1));
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

}  // namespace

std::span<const DeltaBackend> CudaBackends(Op op) {
  static const std::array<DeltaBackend, 2> kda_prefill = {kChunk16, kTokens};
  if (op == Op::kKdaPrefill) return kda_prefill;
  return {&kTokens, 1};
}

}  // namespace fluvial::ops::delta_rule
