// SPDX-License-Identifier: Apache-2.0
// The CPU backends: tasks over sequences x heads (x ranges of V when there are fewer of those than threads).
#include <algorithm>
#include <string>
#include <vector>

#include "ops/common/plan_cache.h"
#include "ops/delta_rule/backends.h"
#include "ops/delta_rule/cpu_bf16.h"
#include "ops/delta_rule/cpu_simd.h"

namespace fluvial::ops::delta_rule {
namespace {

Check CheckCpu(const Problem&, const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCpu) return Check::Accept();
  return Check::Refuse("it runs on the CPU, and the device is " + device.Arch());
}

Check CheckCpuBf16(const Problem& p, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return CheckCpu(p, device);
  if (!CpuHasBf16()) return Check::Refuse("this CPU has no AVX-512 BF16");
  if (p.io != DType::kBF16) return Check::Refuse("io must be bf16, and it is " + std::string(fluvial::Name(p.io)));
  return Check::Accept();
}

int64_t ScratchFloats(const Problem& p, bool bf16) {
  size_t floats = TokenScratchFloats(p);
  if (p.prefill()) floats = std::max(floats, bf16 ? Bf16ScratchFloats(p) : ChunkScratchFloats(p));
  return static_cast<int64_t>(floats);
}

Status Run(Stream& stream, const Problem& p, const Args& a, Workspace workspace, bool bf16) {
  return RunHeads(stream, p, a, workspace, ScratchFloats(p, bf16), bf16 ? RunChunks16 : RunChunks,
                  bf16 ? kMaxHeads16 : 1);
}

// Microseconds: multiply-adds (3 K V per token and head) or the states' traffic, whichever takes longer. Rates per
// thread as measured on a Zen 5 core at 4 GHz (docs/ops/delta_rule.md); what matters for auto is their order.
double Cost(const Problem& p, const DeviceInfo& device, double multiply_adds_per_us) {
  const double heads = static_cast<double>(p.hv) * p.k * p.v;
  const double bytes = 2.0 * static_cast<double>(SizeOf(p.state)) * heads * p.sequences;
  const double us = std::max(3 * heads * static_cast<double>(p.tokens) / multiply_adds_per_us, bytes / 55e3);
  return 2 + us / std::max(device.multiprocessors, 1);
}

double CostCpu(const Problem& p, const DeviceInfo& d) {
  return Cost(p, d, !p.prefill() ? 33e3 : p.kda() ? 60e3 : 64e3);
}

double CostCpuBf16(const Problem& p, const DeviceInfo& d) { return Cost(p, d, p.kda() ? 115e3 : 155e3); }

size_t Workspace16(const Problem& p, const DeviceInfo& d) {
  return HeadsWorkspaceBytes(d.multiprocessors, ScratchFloats(p, true));
}

size_t Workspace32(const Problem& p, const DeviceInfo& d) {
  return HeadsWorkspaceBytes(d.multiprocessors, ScratchFloats(p, false));
}

/// Longest first, so that the last tasks to start are short.
void BuildTasks(const SequencePlan& plan, int64_t checkpoint_every, std::vector<SequenceTask>* tasks) {
  std::vector<int64_t> checkpoint_rows(static_cast<size_t>(plan.sequences()) + 1, 0);
  for (int32_t n = 0; n < plan.sequences() && checkpoint_every > 0; ++n) {
    checkpoint_rows[n + 1] = checkpoint_rows[n] + (plan.offsets()[n + 1] - plan.offsets()[n]) / checkpoint_every;
  }
  for (const int32_t n : plan.order()) {
    tasks->push_back(
        {plan.offsets()[n], plan.offsets()[n + 1], n, plan.read_slots()[n], plan.write_slots()[n], checkpoint_rows[n]});
  }
}

}  // namespace

size_t HeadsWorkspaceBytes(int threads, int64_t scratch_floats) {
  return static_cast<size_t>(std::max(threads, 1) * PadTo(scratch_floats, 64)) * sizeof(float) + 64;
}

Status RunHeads(Stream& stream, const Problem& p, const Args& a, Workspace workspace, int64_t scratch_floats,
                HeadBody chunks, int64_t heads_per_task) {
  ThreadPool& pool = stream.pool();
  const size_t need = HeadsWorkspaceBytes(pool.threads(), scratch_floats);
  if (workspace.bytes < need) {
    return Status::Resource(std::string(Name(p.op)) + " cpu: workspace of " + std::to_string(workspace.bytes) +
                            " bytes, but it needs " + std::to_string(need));
  }
  auto* scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace.data) + 63) & ~uintptr_t{63});
  // One per thread that runs streams, for all of its layers and operators.
  static thread_local PlanCache<std::vector<SequenceTask>> cache;
  const std::vector<SequenceTask>& sequences = cache.Get(
      *a.plan, p.checkpoint_every, [&](std::vector<SequenceTask>& t) { BuildTasks(*a.plan, p.checkpoint_every, &t); });
  int64_t group = heads_per_task;
  // A divisor of hv, and enough tasks for threads to even out.
  while (group > 1 &&
         (p.hv % group != 0 || static_cast<int64_t>(sequences.size()) * (p.hv / group) < 2 * pool.threads())) {
    --group;
  }
  const int64_t per_sequence = p.hv / group, tasks = static_cast<int64_t>(sequences.size()) * per_sequence;
  const int64_t panels = PadTo(p.v, kPanel) / kPanel;
  // Splitting V repeats the work on q, k and gates, so only as far as threads would idle.
  const int64_t splits = tasks == 0 ? 1 : std::clamp<int64_t>((pool.threads() + tasks - 1) / tasks, 1, panels);
  const int64_t per_split = (panels + splits - 1) / splits * kPanel;
  pool.ParallelFor(tasks * splits, [&](int64_t task, int worker) {
    HeadCall call;
    call.problem = &p;
    call.args = &a;
    call.sequence = sequences[static_cast<size_t>(task / (per_sequence * splits))];
    call.head = task / splits % per_sequence * group;
    call.heads = group;
    call.v_begin = task % splits * per_split;
    call.v_end = std::min<int64_t>(call.v_begin + per_split, p.v);
    if (call.v_begin >= call.v_end) return;
    call.scratch = scratch + worker * PadTo(scratch_floats, 64);
    // Chunks for the shortest prompts, too, although tokens alone would be up to 6 times faster there (0.03 against
    // 0.16 ms for one token of 16 heads): a prompt split at multiples of the chunk must give what it gives in one
    // piece, bit for bit, whatever is left for the last piece.
    if (p.prefill() && call.sequence.end > call.sequence.begin) return chunks(call);
    call.heads = 1;
    for (int64_t i = 0; i < group; ++i, ++call.head) RunTokens(call);
  });
  return Status::Ok();
}

const DeltaBackend kCpu = {
    .name = "cpu",
    .description = "SIMD on the CPU, fp32 arithmetic: chunks in prefill, rows of the state in decode",
    .check = CheckCpu,
    .workspace_bytes = Workspace32,
    .cost_us = CostCpu,
    .run = [](Stream& s, const Problem& p, const Args& a, Workspace w) { return Run(s, p, a, w, false); },
};

const DeltaBackend kCpuBf16 = {
    .name = "cpu_bf16",
    .description = "SIMD on the CPU, products with the state in bf16 (AVX-512 BF16), sums in fp32",
    .check = CheckCpuBf16,
    .workspace_bytes = Workspace16,
    .cost_us = CostCpuBf16,
    .run = [](Stream& s, const Problem& p, const Args& a, Workspace w) { return Run(s, p, a, w, true); },
};

}  // namespace fluvial::ops::delta_rule
