// SPDX-License-Identifier: Apache-2.0
// The cpu body: any dtype and head dimension, fp32 arithmetic.
#include <algorithm>
#include <string>

#include "ops/vision_attention/backends.h"
#include "ops/vision_attention/cpu_simd.h"

namespace fluvial::ops::vision_attention {
namespace {

Check CheckCpu(const Problem&, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  return Check::Accept();
}

size_t WorkspaceBytes(const Problem& p, const DeviceInfo& device) {
  return BlocksWorkspace(p, device.multiprocessors, CpuScratch::Bytes(p.d));
}

double Cost(const Problem& p, const DeviceInfo& device) {
  // One Zen 5 core (README.md): 150 GFLOP/s.
  return 2.0 + 4.0 * static_cast<double>(p.pairs) * p.heads * p.d / 150e3 / std::max(1, device.multiprocessors);
}

Status Run(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  return RunBlocks(stream, p, a, workspace, kCpuRows, kCpuStep, CpuScratch::Bytes(p.d),
                   [&](const Block& b, void* scratch) { AttendBlock(b, CpuScratch::At(scratch, p.d)); });
}

}  // namespace

const VisionBackend kCpu = {
    .name = "cpu",
    .description = "Highway SIMD, streaming softmax over tiles of 64 keys in fp32; all dtypes and head dimensions",
    .check = CheckCpu,
    .workspace_bytes = WorkspaceBytes,
    .cost_us = Cost,
    .run = Run,
};

}  // namespace fluvial::ops::vision_attention
