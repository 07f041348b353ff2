// SPDX-License-Identifier: Apache-2.0
// Speed of the backends of paged_attention on this machine, answers checked against the reference first.
//
//   bench_paged_attention [--threads T] [--repeats R] [--seconds S] [--backend NAME] [--problem LINE]... [--check 0|1]
//
// Prints per problem: median and best wall time, best active CPU time per thread, GFLOP/s of 2 (Dqk + Dv) per query-key
// pair and head, GB/s of keys and values read once per query block of a decode step, and the ratio to the probes.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ops/common/bench_kit.h"
#include "ops/paged_attention/test_kit.h"

namespace fluvial::ops::paged_attention {
namespace {

// Named after the models whose shapes they are.
const char* const kSuite[] = {
    // Qwen3.5 / Qwen3-Next full attention layers: D = 256.
    "paged_attention hq=16 hkv=2 dqk=256 dv=256 page=16 io=bf16 lens=512",
    "paged_attention hq=16 hkv=2 dqk=256 dv=256 page=16 io=bf16 lens=256 ctx=3840",
    "paged_attention hq=16 hkv=2 dqk=256 dv=256 page=16 io=bf16 lens=1 ctx=4095",
    "paged_attention hq=8 hkv=2 dqk=256 dv=256 page=16 io=bf16 lens=8x1 ctx=8x1023",
    // Qwen3-VL 8B: D = 128, 4 queries per key head.
    "paged_attention hq=32 hkv=8 dqk=128 dv=128 page=16 io=bf16 lens=512",
    "paged_attention hq=32 hkv=8 dqk=128 dv=128 page=16 io=bf16 lens=1 ctx=4095",
    "paged_attention hq=32 hkv=8 dqk=128 dv=128 page=16 io=fp32 lens=512",
    "paged_attention hq=32 hkv=8 dqk=128 dv=128 page=16 io=fp32 lens=1 ctx=4095",
    // Kimi-Linear MLA with expanded heads: one query per key head.
    "paged_attention hq=32 hkv=32 dqk=192 dv=128 page=16 io=bf16 lens=512",
    "paged_attention hq=32 hkv=32 dqk=192 dv=128 page=16 io=bf16 lens=1 ctx=2047",
};

struct Options {
  int threads = 0, repeats = 5;
  double seconds = 0.3;
  std::string backend = "cpu";
  std::vector<std::string> problems;
  bool check = true;
};

double LargestDifference(const test::Call& a, const test::Call& b) {
  double worst = 0;
  const Problem& p = a.problem;
  for (int64_t i = 0; i < p.tokens * p.hq * p.d_v; ++i) {
    const double d = std::abs(LoadAsDouble(a.out.data(), p.io, i) - LoadAsDouble(b.out.data(), p.io, i));
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

int Main(const Options& options) {
  auto stream = MakeCpuStream(options.threads);
  ThreadPool& pool = stream->pool();
  const Probe probe = ProbeMachine(pool);
  std::printf("%s\n", ops::Describe(probe, pool).c_str());
  int failures = 0;
  for (const std::string& text : options.problems) {
    auto line = ParseProblemLine(text);
    if (!line.ok()) {
      std::fprintf(stderr, "%s\n", line.status().message().c_str());
      return 2;
    }
    auto choice = Choose(line->problem, stream->device(), options.backend);
    if (!choice.ok()) {
      std::fprintf(stderr, "%s\n", choice.status().message().c_str());
      return 4;
    }
    test::CallSetup setup;
    setup.problem = line->problem;
    setup.lengths = line->lengths;
    setup.contexts = line->contexts;
    setup.seed = line->seed;
    test::Call call(setup);
    auto plan = KvPlan::Make(*stream, call.problem.page_size, call.spec);
    const AttentionBackend& backend = *choice->backend;
    call.args.plan = &*plan;
    call.workspace.resize(backend.workspace_bytes(call.problem, stream->device()));
    Status status;
    const Timing t = TimeRepeats(
        [&] { status = backend.run(*stream, call.problem, call.args, {call.workspace.data(), call.workspace.size()}); },
        pool.threads(), options.repeats, options.seconds);
    const Problem& p = call.problem;
    const double flops = 2.0 * static_cast<double>(p.pairs) * p.hq * (p.d_qk + p.d_v);
    double keys = 0;
    for (size_t i = 0; i < line->lengths.size(); ++i) {
      keys += static_cast<double>(line->lengths[i] > 0 ? line->lengths[i] + line->contexts[i] : 0);
    }
    const double bytes = keys * p.hkv * (p.d_qk + p.d_v) * static_cast<double>(SizeOf(p.kv));
    const double gflops = flops / t.best_active_us * 1e-3, gbs = bytes / t.best_active_us * 1e-3;
    std::printf(
        "%s\n  %s: median %.1f us, best %.1f us, active %.1f us/thread; %.1f GFLOP/s (%.2f of fma), %.1f GB/s "
        "of keys and values (%.2f of read)\n",
        text.c_str(), std::string(backend.name).c_str(), t.median_us, t.best_us, t.best_active_us, gflops,
        gflops / probe.fma_gflops, gbs, gbs / probe.read_gbs);
    if (options.check) {
      test::Call want(setup);
      const Status reference = Execute(*stream, Backends().back(), want);
      const double difference = LargestDifference(call, want);
      const bool good = status.ok() && reference.ok() && difference <= (p.io == DType::kF32 ? 1e-5 : 1e-2);
      std::printf("  largest difference to the reference: %.2e%s\n", difference, good ? "" : "  WRONG");
      failures += !good;
    }
    std::fflush(stdout);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fluvial::ops::paged_attention

int main(int argc, char** argv) {
  fluvial::ops::paged_attention::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") options.threads = std::atoi(value.c_str());
    if (key == "--repeats") options.repeats = std::atoi(value.c_str());
    if (key == "--seconds") options.seconds = std::atof(value.c_str());
    if (key == "--backend") options.backend = value;
    if (key == "--problem") options.problems.push_back(value);
    if (key == "--check") options.check = value != "0";
  }
  if (options.problems.empty()) {
    for (const char* line : fluvial::ops::paged_attention::kSuite) options.problems.emplace_back(line);
  }
  return fluvial::ops::paged_attention::Main(options);
}
