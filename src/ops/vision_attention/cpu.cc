// SPDX-License-Identifier: Apache-2.0
// The CPU bodies: cpu (any dtype and head dimension, fp32 arithmetic) and cpu_bf16 (AVX-512 BF16).
#include <algorithm>
#include <string>

#include "ops/vision_attention/backends.h"
#include "ops/vision_attention/cpu_bf16.h"
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

/// Of this CPU and operating system, in a build for x86.
bool HasAvx512Bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

Check CheckBf16(const Problem& p, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  if (!HasAvx512Bf16()) return Check::Refuse("this CPU has no AVX-512 BF16");
  if (p.io != DType::kBF16) return Check::Refuse("needs io=bf16, got " + std::string(Name(p.io)));
  return Check::Accept();
}

double Bf16Cost(const Problem& p, const DeviceInfo& device) {
  // One Zen 5 core (README.md): 300 GFLOP/s.
  return 2.0 + 4.0 * static_cast<double>(p.pairs) * p.heads * p.d / 300e3 / std::max(1, device.multiprocessors);
}

}  // namespace

const VisionBackend kCpuBf16 = {
    .name = "cpu_bf16",
    .description = "AVX-512 BF16 dot products, streaming softmax in fp32, probabilities rounded to bf16; io=bf16",
    .check = CheckBf16,
    .workspace_bytes =
        [](const Problem& p, const DeviceInfo& device) {
          return BlocksWorkspace(p, device.multiprocessors, Bf16Scratch::Bytes(p.d));
        },
    .cost_us = Bf16Cost,
    .run =
        [](Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
          return RunBlocks(stream, p, a, workspace, kBf16Rows, kBf16Step, Bf16Scratch::Bytes(p.d),
                           [&](const Block& b, void* scratch) { AttendBlockBf16(b, Bf16Scratch::At(scratch, p.d)); });
        },
};

const VisionBackend kCpu = {
    .name = "cpu",
    .description = "Highway SIMD, streaming softmax over tiles of 64 keys in fp32; all dtypes and head dimensions",
    .check = CheckCpu,
    .workspace_bytes = WorkspaceBytes,
    .cost_us = Cost,
    .run = Run,
};

}  // namespace fluvial::ops::vision_attention
