// SPDX-License-Identifier: Apache-2.0
// Speed of the CPU backends of vision_attention on this machine, beside its probes.
//
//   bench_vision_attention [--threads T] [--repeats R] [--seconds S] [--backend A,B] [--problem LINE]...
//
// Prints per problem: median and best wall time, best active CPU time per thread, GFLOP/s of 4 D per query-key pair and
// head, the ratio to fp32 FMA, and the bytes of workspace. tools/peers/torch_vision_attention.py times torch.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/common/bench_kit.h"
#include "ops/common/test_kit.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {
namespace {

const char* const kShapes[] = {
    "vision_attention heads=16 d=80 lens=64x64",
    "vision_attention heads=16 d=80 lens=1024x64",
    "vision_attention heads=16 d=80 lens=1024,4096,256,2048,576,192",
    "vision_attention heads=16 d=80 lens=4096",
    "vision_attention heads=16 d=80 lens=16384",
    "vision_attention heads=16 d=72 lens=8x1024",
    "vision_attention heads=16 d=72 lens=4096",
};

struct Options {
  int threads = 0, repeats = 3;
  double seconds = 0.3;
  std::string backends = "cpu_bf16,cpu";
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
    const Problem& p = line->problem;
    test_kit::HostTensor qkv(p.io, {p.tokens, 3, p.heads, p.d}), out(p.io, {p.tokens, p.heads, p.d});
    test_kit::Random random(line->seed);
    for (int64_t i = 0; i < p.tokens; ++i) {
      for (int64_t e = 0; e < qkv.row_elements(); ++e) qkv.Set(i, e, random.Uniform(-2, 2));
    }
    Args a;
    TensorView* views[] = {&a.q, &a.k, &a.v};
    const TensorView all = qkv.view();
    for (int64_t i = 0; i < 3; ++i) {
      *views[i] = TensorView(static_cast<char*>(all.data) + i * all.strides[1] * static_cast<int64_t>(SizeOf(p.io)),
                             p.io, {p.tokens, p.heads, p.d}, {all.strides[0], p.d, 1});
    }
    a.out = out.view();
    auto plan = SequencePlan::Make(*stream, {line->lengths, {}, {}});
    a.plan = &*plan;
    if (const Status s = Validate(p, a); !s.ok()) {
      std::fprintf(stderr, "%s\n", s.message().c_str());
      return 1;
    }
    for (const VisionBackend& b : Backends()) {
      if (("," + options.backends + ",").find("," + std::string(b.name) + ",") == std::string::npos) continue;
      if (const Check c = b.check(p, stream->device()); !c.ok()) {
        std::printf("%s\n  %s: %s\n", text.c_str(), std::string(b.name).c_str(), c.reason().c_str());
        continue;
      }
      std::vector<char> workspace(b.workspace_bytes(p, stream->device()));
      Status status;
      const Timing t = TimeRepeats([&] { status = b.run(*stream, p, a, {workspace.data(), workspace.size()}); },
                                   pool.threads(), options.repeats, options.seconds);
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().c_str());
        return 1;
      }
      const double gflops = 4.0 * static_cast<double>(p.pairs) * p.heads * p.d / t.best_active_us * 1e-3;
      std::printf(
          "%s\n  %s: median %.0f us, best %.0f us, active %.0f us/thread; %.0f GFLOP/s (%.2f of fma), %.2f us per "
          "token, "
          "workspace %.2f MB\n",
          text.c_str(), std::string(b.name).c_str(), t.median_us, t.best_us, t.best_active_us, gflops,
          gflops / probe.fma_gflops, t.best_active_us / static_cast<double>(p.tokens),
          static_cast<double>(workspace.size()) * 1e-6);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace fluvial::ops::vision_attention

int main(int argc, char** argv) {
  fluvial::ops::vision_attention::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") options.threads = std::atoi(value.c_str());
    if (key == "--repeats") options.repeats = std::atoi(value.c_str());
    if (key == "--seconds") options.seconds = std::atof(value.c_str());
    if (key == "--backend") options.backends = value;
    if (key == "--problem") options.problems.push_back(value);
  }
  if (options.problems.empty()) {
    for (const char* line : fluvial::ops::vision_attention::kShapes) options.problems.emplace_back(line);
  }
  return fluvial::ops::vision_attention::Main(options);
}
