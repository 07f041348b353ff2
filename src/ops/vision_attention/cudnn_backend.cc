// SPDX-License-Identifier: Apache-2.0
// Contract and cost of backend `cudnn`, the same in every build; the graphs are in cudnn.cc.
#include <algorithm>
#include <string>

#include "ops/vision_attention/backends.h"
#include "ops/vision_attention/cudnn.h"

namespace fluvial::ops::vision_attention {

std::string CudnnVersionText(int64_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

size_t CudnnWorkspaceLimit(const Problem& p) {
  if (p.workspace_mb != 0) return static_cast<size_t>(p.workspace_mb) << 20;
  // Graphs of few sequences want a little whatever their count.
  return std::max(WorkspaceBound(RoundBatch(p.sequences)), size_t{64} << 10);
}

namespace {

Check CheckCudnn(const Problem& p, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCuda) {
    const std::string reason = CudaUnavailableReason();
    return Check::Refuse(reason.empty() ? "it runs on a CUDA GPU, and the device is " + device.Arch() : reason);
  }
  if (device.sm_major < 9) {
    return Check::Refuse("ragged sequences need sm_90 or newer, the device is " + device.Arch());
  }
  if (p.io != DType::kBF16 && p.io != DType::kF16) {
    return Check::Refuse("needs io=bf16 or fp16, got " + std::string(Name(p.io)));
  }
  const int32_t largest = device.sm_major == 9 ? 256 : 128;
  if (p.d % 8 != 0 || p.d > largest) {
    return Check::Refuse("needs d a multiple of 8, at most " + std::to_string(largest) + " on " + device.Arch() +
                         ", got " + std::to_string(p.d));
  }
  if (p.alignment != 16) return Check::Refuse("needs alignment=16, got " + std::to_string(p.alignment));
  if (p.max_length > INT32_MAX) {
    return Check::Refuse("takes sequences below 2^31 tokens, the longest has " + std::to_string(p.max_length));
  }
  if (p.sequences > 65528) return Check::Refuse("takes at most 65528 sequences, got " + std::to_string(p.sequences));
  if (!device.assumed) {
    if (const CudnnLibrary& library = Cudnn(); !library.reason.empty()) return Check::Refuse(library.reason);
  }
  return Check::Accept();
}

double Cost(const Problem& p, const DeviceInfo& device) {
  // H200, cuDNN 9.19, tiles of 128 x 128: 1.7 us of an SM per pair of tiles and 1.3 us per tile of queries, fitted to
  // 256 windows of 64 (97 us) and one image of 4096 tokens (212 us), 16 heads of 80.
  const double tiles = std::max<double>(p.sequences, static_cast<double>(p.tokens) / 128);
  const double pairs = std::max(tiles, static_cast<double>(p.pairs) / 16384);
  return 8 + p.heads * (1.7 * pairs * p.d / 80 + 1.3 * tiles) / std::max(device.multiprocessors, 1);
}

}  // namespace

const VisionBackend kCudnn = {
    .name = "cudnn",
    .description = "cuDNN's attention graphs, dense and ragged; bf16 and fp16, Hopper and newer",
    .check = CheckCudnn,
    .workspace_bytes = [](const Problem& p, const DeviceInfo&) { return CudnnWorkspaceLimit(p); },
    .cost_us = Cost,
    .run = LaunchCudnn,
};

}  // namespace fluvial::ops::vision_attention
