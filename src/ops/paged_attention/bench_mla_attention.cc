// SPDX-License-Identifier: Apache-2.0
// Speed of the forms of latent attention on this machine.
//
//   bench_mla_attention [--threads T] [--repeats R] [--seconds S] [--problem LINE]... [--check 0|1]
//
// Prints per problem and backend: median and best wall time, best active CPU time per thread, the GFLOP/s of its own
// form, and for a decode step the GB/s of cache rows, read once per call; --check 1 (default) compares the forms with
// each other.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/common/bench_kit.h"
#include "ops/paged_attention/mla_test_kit.h"

namespace fluvial::ops::mla_attention {
namespace {

// Kimi-Linear (32 heads, 128 + 64 / 128), GLM-5.3 (64 heads, 256 / 256) and its selection.
const char* const kSuite[] = {
    "mla_attention h=32 nope=128 rope=64 v=128 rank=512 io=bf16 lens=1 ctx=8191",
    "mla_attention h=32 nope=128 rope=64 v=128 rank=512 io=bf16 lens=16x1 ctx=16x1023",
    "mla_attention h=32 nope=128 rope=64 v=128 rank=512 io=bf16 lens=16 ctx=2032",
    "mla_attention h=32 nope=128 rope=64 v=128 rank=512 io=bf16 lens=32 ctx=2016",
    "mla_attention h=32 nope=128 rope=64 v=128 rank=512 io=bf16 lens=64 ctx=1984",
    "mla_attention h=32 nope=128 rope=64 v=128 rank=512 io=bf16 lens=128 ctx=1920",
    "mla_attention h=32 nope=128 rope=64 v=128 rank=512 io=bf16 lens=1024",
    "mla_attention h=64 nope=256 rope=0 v=256 rank=512 io=bf16 lens=1 ctx=4095",
    "mla_attention h=64 nope=256 rope=0 v=256 rank=512 io=bf16 lens=512",
    "mla_attention h=64 nope=256 rope=0 v=256 rank=512 io=bf16 selected=2051 lens=1 ctx=8191",
};

struct Options {
  int threads = 0, repeats = 3;
  double seconds = 0.2;
  std::vector<std::string> problems;
  bool check = true;
};

double LargestDifference(const test::Call& a, const test::Call& b) {
  double worst = 0;
  const Problem& p = a.problem;
  for (int64_t i = 0; i < p.tokens * p.heads * p.v; ++i) {
    const double d = std::abs(LoadAsDouble(a.out.data(), p.io, i) - LoadAsDouble(b.out.data(), p.io, i));
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

/// Every key of a pool of 4 in turn, as many as a list holds.
std::vector<int32_t> SomeKeys(int64_t position, int64_t most) {
  std::vector<int32_t> list;
  const int64_t step = std::max<int64_t>(1, position / std::max<int64_t>(most, 1) + 1);
  for (int64_t j = 0; j <= position && static_cast<int64_t>(list.size()) < most; j += step) {
    list.push_back(static_cast<int32_t>(j));
  }
  return list;
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
    test::CallSetup setup;
    setup.problem = line->problem;
    setup.lengths = line->lengths;
    setup.contexts = line->contexts;
    setup.seed = line->seed;
    setup.select = [&](int64_t, int64_t position) { return SomeKeys(position, line->problem.selected); };
    std::printf("%s\n", text.c_str());
    test::Call call(setup), first(setup);
    bool have_first = false;
    auto plan = KvPlan::Make(*stream, call.problem.page_size, call.spec);
    call.args.plan = &*plan;
    const Problem& p = call.problem;
    double keys = 0;
    for (size_t i = 0; i < line->lengths.size(); ++i) keys += static_cast<double>(line->lengths[i] + line->contexts[i]);
    for (const MlaBackend& backend : Backends()) {
      if (backend.name == "reference" || !backend.check(p, stream->device()).ok()) continue;
      call.workspace.resize(backend.workspace_bytes(p, stream->device()));
      Status status;
      const Timing t = TimeRepeats(
          [&] { status = backend.run(*stream, p, call.args, {call.workspace.data(), call.workspace.size()}); },
          pool.threads(), options.repeats, options.seconds);
      const bool expanded = backend.name == "cpu_expanded";
      const double pairs = p.selected > 0 ? static_cast<double>(p.tokens) * p.selected : static_cast<double>(p.pairs);
      const double flops =
          2.0 * p.heads *
          (expanded ? pairs * (p.nope + p.rope + p.v) + keys * p.rank * (p.nope + p.v)
                    : pairs * (2 * p.rank + p.rope) + static_cast<double>(p.tokens) * p.rank * (p.nope + p.v));
      const double bytes = keys * (p.rank + p.rope) * static_cast<double>(SizeOf(p.kv));
      std::printf("  %-13s median %.0f us, best %.0f us, active %.0f us/thread", std::string(backend.name).c_str(),
                  t.median_us, t.best_us, t.best_active_us);
      if (backend.name != "cpu") {
        std::printf("; %.0f GFLOP/s (%.2f of fma)", flops / t.best_active_us * 1e-3,
                    flops / t.best_active_us * 1e-3 / probe.fma_gflops);
      }
      if (p.max_length == 1) std::printf(", %.1f GB/s of cache rows", bytes / t.best_active_us * 1e-3);
      std::printf("\n");
      if (!have_first) first.out = call.out;
      const double difference = LargestDifference(call, first);
      have_first = true;
      if (!options.check) continue;
      // |v| < 1; both forms are within a few roundings of io.
      const bool good = status.ok() && difference <= (p.io == DType::kF32 ? 1e-4 : 3e-2);
      if (!good) std::printf("  differs from the first backend by %.2e  WRONG\n", difference);
      failures += !good;
    }
    std::fflush(stdout);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fluvial::ops::mla_attention

int main(int argc, char** argv) {
  fluvial::ops::mla_attention::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") options.threads = std::atoi(value.c_str());
    if (key == "--repeats") options.repeats = std::atoi(value.c_str());
    if (key == "--seconds") options.seconds = std::atof(value.c_str());
    if (key == "--problem") options.problems.push_back(value);
    if (key == "--check") options.check = value != "0";
  }
  if (options.problems.empty()) {
    for (const char* line : fluvial::ops::mla_attention::kSuite) options.problems.emplace_back(line);
  }
  return fluvial::ops::mla_attention::Main(options);
}
