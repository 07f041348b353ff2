// SPDX-License-Identifier: Apache-2.0
// Speed of the backends of causal_conv1d on this machine.
//
//   bench_causal_conv1d [--threads T] [--repeats R] [--seconds S] [--backend NAME] [--problem LINE]...
//
// Prints per problem: median and best wall time, best active CPU time per thread, GB/s of inputs read and outputs
// written once (weights and states included), and the ratio to the copy probe. Small problems stay in the caches, so
// their ratio may exceed 1.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/causal_conv1d/test_kit.h"
#include "ops/common/bench_kit.h"

namespace fluvial::ops::causal_conv1d {
namespace {

// Named after the models whose shapes they are.
const char* const kSuite[] = {
    // Qwen3.5 0.8B and Qwen3-Next: GDN, bf16 weights, rounded twice.
    "causal_conv1d c=6144 w=4 io=bf16 rounding=eager lens=2048",
    "causal_conv1d c=8192 w=4 io=bf16 rounding=eager lens=2048",
    "causal_conv1d c=8192 w=4 io=bf16 rounding=eager lens=1",
    "causal_conv1d c=8192 w=4 io=bf16 rounding=eager lens=64x1",
    "causal_conv1d c=8192 w=4 io=fp32 lens=2048",
    // Kimi-Linear: KDA, fp32 weights.
    "causal_conv1d c=12288 w=4 io=bf16 weight=fp32 lens=2048",
    "causal_conv1d c=12288 w=4 io=bf16 weight=fp32 lens=1",
    "causal_conv1d c=12288 w=4 io=bf16 weight=fp32 lens=8x300",
};

struct Options {
  int threads = 0, repeats = 5;
  double seconds = 0.3;
  std::string backend = "cpu";
  std::vector<std::string> problems;
};

int Main(const Options& options) {
  auto stream = MakeCpuStream(options.threads);
  ThreadPool& pool = stream->pool();
  const Probe probe = ProbeMachine(pool);
  std::printf("%s\n", ops::Describe(probe, pool).c_str());
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
    setup.seed = line->seed;
    auto plan = test::MakePlan(*stream, setup);
    test::Call call(setup, *plan);
    Status status = Validate(call.problem, call.args);
    const Timing t = TimeRepeats(
        [&] {
          if (status.ok()) status = choice->backend->run(*stream, call.problem, call.args, {});
        },
        pool.threads(), options.repeats, options.seconds);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 1;
    }
    const Problem& p = call.problem;
    const double c = p.channels, io = static_cast<double>(SizeOf(p.io));
    const double bytes = 2 * static_cast<double>(p.tokens) * c * io +
                         c * p.width * static_cast<double>(SizeOf(p.weight)) +
                         2.0 * p.sequences * (p.width - 1) * c * static_cast<double>(SizeOf(p.state));
    const double gbs = bytes / t.best_active_us * 1e-3 / pool.threads();
    std::printf(
        "%s\n  %s: median %.1f us, best %.1f us, active %.1f us/thread; %.1f GB/s per thread, %.3f ns per output "
        "and thread (%.2f of copy)\n",
        text.c_str(), std::string(choice->backend->name).c_str(), t.median_us, t.best_us, t.best_active_us, gbs,
        t.best_active_us * 1e3 * pool.threads() / (static_cast<double>(p.tokens) * c),
        gbs * pool.threads() / probe.copy_gbs);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace fluvial::ops::causal_conv1d

int main(int argc, char** argv) {
  fluvial::ops::causal_conv1d::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") options.threads = std::atoi(value.c_str());
    if (key == "--repeats") options.repeats = std::atoi(value.c_str());
    if (key == "--seconds") options.seconds = std::atof(value.c_str());
    if (key == "--backend") options.backend = value;
    if (key == "--problem") options.problems.push_back(value);
  }
  if (options.problems.empty()) {
    for (const char* line : fluvial::ops::causal_conv1d::kSuite) options.problems.emplace_back(line);
  }
  return fluvial::ops::causal_conv1d::Main(options);
}
