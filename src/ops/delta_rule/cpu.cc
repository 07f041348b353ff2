// SPDX-License-Identifier: Apache-2.0
// The cpu backend: tasks over sequences x heads (x ranges of V when there are fewer of those than threads).
#include <algorithm>
#include <string>
#include <vector>

#include "ops/delta_rule/backends.h"
#include "ops/delta_rule/cpu_simd.h"

namespace fluvial::ops::delta_rule {
namespace {

// Shorter sequences are faster token by token: a chunk costs as much as its padded length.
constexpr int64_t kMinChunkTokens = 8;

Check CheckCpu(const Problem&, const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCpu) return Check::Accept();
  return Check::Refuse("it runs on the CPU, and the device is " + device.Arch());
}

size_t AlignedScratch(const Problem& p) { return static_cast<size_t>(PadTo(ScratchFloats(p), 64)); }

size_t WorkspaceBytes(const Problem& p, const DeviceInfo& device) {
  return static_cast<size_t>(std::max(device.multiprocessors, 1)) * AlignedScratch(p) * sizeof(float) + 64;
}

Status Run(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  ThreadPool& pool = stream.pool();
  const size_t need = static_cast<size_t>(pool.threads()) * AlignedScratch(p) * sizeof(float) + 64;
  if (workspace.bytes < need) {
    return Status::Resource(std::string(Name(p.op)) + " cpu: workspace of " + std::to_string(workspace.bytes) +
                            " bytes, but it needs " + std::to_string(need));
  }
  auto* scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace.data) + 63) & ~uintptr_t{63});
  const SequencePlan& plan = *a.plan;
  const int64_t heads = int64_t{plan.sequences()} * p.hv;
  const int64_t panels = PadTo(p.v, kPanel) / kPanel;
  // Splitting V repeats the work on q, k and gates, so only as far as threads would idle.
  const int64_t splits = heads == 0 ? 1 : std::clamp<int64_t>((pool.threads() + heads - 1) / heads, 1, panels);
  const int64_t per_split = (panels + splits - 1) / splits * kPanel;
  pool.ParallelFor(heads * splits, [&](int64_t task, int worker) {
    HeadCall call;
    call.problem = &p;
    call.args = &a;
    call.sequence = plan.order()[task / (p.hv * splits)];
    call.head = task / splits % p.hv;
    call.v_begin = task % splits * per_split;
    call.v_end = std::min<int64_t>(call.v_begin + per_split, p.v);
    if (call.v_begin >= call.v_end) return;
    call.scratch = scratch + static_cast<size_t>(worker) * AlignedScratch(p);
    for (int32_t m = 0; m < call.sequence && p.checkpoint_every > 0; ++m) {
      call.checkpoint_row += (plan.offsets()[m + 1] - plan.offsets()[m]) / p.checkpoint_every;
    }
    const int64_t length = plan.offsets()[call.sequence + 1] - plan.offsets()[call.sequence];
    if (p.prefill() && length >= kMinChunkTokens)
      RunChunks(call);
    else
      RunTokens(call);
  });
  return Status::Ok();
}

}  // namespace

size_t ScratchFloats(const Problem& p) {
  return p.prefill() ? std::max(TokenScratchFloats(p), ChunkScratchFloats(p)) : TokenScratchFloats(p);
}

const DeltaBackend kCpu = {
    .name = "cpu",
    .description = "SIMD on the CPU: fp32 arithmetic",
    .check = CheckCpu,
    .workspace_bytes = WorkspaceBytes,
    .cost_us = [](const Problem& p, const DeviceInfo& device) -> double {
      const double work = static_cast<double>(p.tokens + p.sequences) * p.hv * p.k * p.v;
      return 1 + work * 1e-4 / std::max(device.multiprocessors, 1);
    },
    .run = Run,
};

}  // namespace fluvial::ops::delta_rule
