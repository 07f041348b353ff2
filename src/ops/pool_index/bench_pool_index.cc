// SPDX-License-Identifier: Apache-2.0
// Speed of the indexer on this machine.
//
//   bench_pool_index [--threads T] [--repeats R] [--seconds S] [--problem LINE]...
//
// Prints per problem: median and best wall time, best active CPU time per thread, and the GFLOP/s of the scores.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "ops/common/bench_kit.h"
#include "ops/pool_index/pool_index.h"

namespace fluvial::ops::pool_index {
namespace {

// GLM-5.3: decode at several contexts, a piece of a prompt.
const char* const kSuite[] = {
    "pool_index h=32 dim=128 pool=4 keep=512 io=bf16 lens=1 ctx=4095",
    "pool_index h=32 dim=128 pool=4 keep=512 io=bf16 lens=1 ctx=65535",
    "pool_index h=32 dim=128 pool=4 keep=512 io=bf16 lens=8x1 ctx=8x8191",
    "pool_index h=32 dim=128 pool=4 keep=512 io=bf16 lens=512 ctx=7680",
};

int Main(int threads, int repeats, double seconds, const std::vector<std::string>& problems) {
  auto stream = MakeCpuStream(threads);
  const Probe probe = ProbeMachine(stream->pool());
  std::printf("%s\n", ops::Describe(probe, stream->pool()).c_str());
  for (const std::string& text : problems) {
    auto line = ParseProblemLine(text);
    if (!line.ok()) {
      std::fprintf(stderr, "%s\n", line.status().message().c_str());
      return 2;
    }
    const Problem& p = line->problem;
    paged_attention::KvSpec spec;
    spec.lengths = line->lengths;
    spec.contexts = line->contexts;
    int32_t pages = 0;
    for (size_t n = 0; n < spec.lengths.size(); ++n) {
      spec.pages.emplace_back();
      for (int64_t j = 0; j * p.page_size < spec.lengths[n] + spec.contexts[n]; ++j)
        spec.pages.back().push_back(pages++);
    }
    auto plan = KvPlan::Make(*stream, p.page_size, spec);
    std::mt19937 rng(static_cast<uint32_t>(line->seed));
    std::normal_distribution<double> normal;
    const auto random = [&](int64_t elements) {
      std::vector<char> v(static_cast<size_t>(elements) * SizeOf(p.io));
      for (int64_t i = 0; i < elements; ++i) StoreFromDouble(v.data(), p.io, i, normal(rng));
      return v;
    };
    auto q = random(p.tokens * p.heads * p.dim), weights = random(p.tokens * p.heads);
    auto rows = random(int64_t{pages} * p.page_size * 2 * p.dim);
    std::vector<float> ape(static_cast<size_t>(p.pool * p.dim), 0.5f);
    std::vector<int32_t> selected(static_cast<size_t>(p.tokens * p.most())), counts(static_cast<size_t>(p.tokens));
    Args args;
    args.q = TensorView(q.data(), p.io, {p.tokens, p.heads, p.dim});
    args.weights = TensorView(weights.data(), p.io, {p.tokens, p.heads});
    args.pages = TensorView(rows.data(), p.io, {pages, p.page_size, int64_t{2} * p.dim});
    args.ape = TensorView(ape.data(), DType::kF32, {p.pool, p.dim});
    args.selected = TensorView(selected.data(), DType::kI32, {p.tokens, p.most()});
    args.counts = TensorView(counts.data(), DType::kI32, {p.tokens});
    args.plan = &*plan;
    const IndexBackend& backend = Backends().front();
    std::vector<char> workspace(backend.workspace_bytes(p, stream->device()));
    Status status = Validate(p, args);
    const Timing t = TimeRepeats(
        [&] {
          if (status.ok()) status = backend.run(*stream, p, args, {workspace.data(), workspace.size()});
        },
        stream->pool().threads(), repeats, seconds);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 1;
    }
    const double flops = 2.0 * static_cast<double>(p.pairs) / p.pool * p.heads * p.dim;
    std::printf("%s\n  %s: median %.0f us, best %.0f us, active %.0f us/thread; %.0f GFLOP/s of scores\n", text.c_str(),
                std::string(backend.name).c_str(), t.median_us, t.best_us, t.best_active_us,
                flops / t.best_active_us * 1e-3);
  }
  return 0;
}

}  // namespace
}  // namespace fluvial::ops::pool_index

int main(int argc, char** argv) {
  int threads = 0, repeats = 5;
  double seconds = 0.3;
  std::vector<std::string> problems;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") threads = std::atoi(value.c_str());
    if (key == "--repeats") repeats = std::atoi(value.c_str());
    if (key == "--seconds") seconds = std::atof(value.c_str());
    if (key == "--problem") problems.push_back(value);
  }
  if (problems.empty()) {
    for (const char* line : fluvial::ops::pool_index::kSuite) problems.emplace_back(line);
  }
  return fluvial::ops::pool_index::Main(threads, repeats, seconds, problems);
}
