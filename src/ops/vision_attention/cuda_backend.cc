// SPDX-License-Identifier: Apache-2.0
// Contract and cost of backend `cuda`, the same in every build; the kernels are in sm90_*.cu and .cuh.
#include <algorithm>
#include <limits>
#include <string>

#include "ops/vision_attention/backends.h"
#include "ops/vision_attention/sm90_vision_params.h"

namespace fluvial::ops::vision_attention {
namespace {

Check CheckCuda(const Problem& p, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCuda) {
    const std::string reason = CudaUnavailableReason();
    return Check::Refuse(reason.empty() ? "it runs on a CUDA GPU, and the device is " + device.Arch() : reason);
  }
  if (device.sm_major != 9 || device.sm_minor != 0) return Check::Refuse("needs sm_90, the device is " + device.Arch());
  if (p.d != 64 && p.d != 72 && p.d != 80 && p.d != 128) {
    return Check::Refuse("needs d = 64, 72, 80 or 128, got " + std::to_string(p.d));
  }
  if (p.io != DType::kBF16) return Check::Refuse("needs io=bf16, got " + std::string(Name(p.io)));
  if (p.alignment != 16) return Check::Refuse("needs alignment=16, got " + std::to_string(p.alignment));
  const int64_t rows = p.padded != 0 ? p.padded : p.tokens;
  if (rows > std::numeric_limits<int32_t>::max() - 4096) {
    return Check::Refuse("takes at most 2^31 - 4097 rows, got " + std::to_string(rows));
  }
  // One CTA per window or per 128 queries, and head.
  const int64_t blocks = p.tokens / 128 + p.sequences;
  if (blocks > std::numeric_limits<int32_t>::max() / p.heads) {
    return Check::Refuse("takes at most 2^31 - 1 blocks of queries x heads, got " + std::to_string(blocks) + " x " +
                         std::to_string(p.heads));
  }
  return Check::Accept();
}

double Cost(const Problem& p, const DeviceInfo& device) {
  // Predicted, not measured: it stays behind cudnn until it is.
  const double sms = std::max(device.multiprocessors, 1);
  const double traffic = 8.0 * static_cast<double>(p.tokens) * p.heads * p.d / 3e6;
  const double products = 4.0 * static_cast<double>(p.pairs) * p.heads * p.d / (3.5e6 * sms);
  return 4 * (6 + std::max(traffic, products));
}

}  // namespace

int64_t ChooseQueries(int32_t d, int64_t tokens, int64_t sequences, int32_t heads, int64_t max_length, int sms) {
  if (d == 128) return 128;  // outputs of 192 rows would not fit in registers
  // Three warpgroups per CTA read the keys less often and overlap better; two cut finer. The last wave decides.
  const auto waves = [&](int64_t queries) {
    const int64_t blocks = sequences <= 1 ? (max_length + queries - 1) / queries : tokens / queries + sequences / 2 + 1;
    return (blocks * heads + std::max(sms, 1) - 1) / std::max(sms, 1);
  };
  return static_cast<double>(waves(192)) * 192 <= 1.1 * static_cast<double>(waves(128)) * 128 ? 192 : 128;
}

const VisionBackend kCuda = {
    .name = "cuda",
    .description =
        "sm_90a tensor cores and TMA: one tile per window, streaming softmax for images; bf16, d 64, 72, 80, 128",
    .check = CheckCuda,
    .workspace_bytes = [](const Problem&, const DeviceInfo&) -> size_t { return 0; },
    .cost_us = Cost,
    .run = [](Stream& s, const Problem& p, const Args& a, Workspace) { return LaunchCuda(s, p, a); },
};

}  // namespace fluvial::ops::vision_attention
