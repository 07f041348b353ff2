// SPDX-License-Identifier: Apache-2.0
// bench_delta_rule [--threads N] [--backend NAME] [--seconds S] LINE...
// One process, one table row per problem line: active (on-CPU), best and median time; rates are of the active time.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ops/delta_rule/bench.h"

namespace {

using fluvial::ops::delta_rule::Backends;
using fluvial::ops::delta_rule::Measure;
using fluvial::ops::delta_rule::ParseProblemLine;

int Fail(const fluvial::Status& status) {
  std::fprintf(stderr, "bench_delta_rule: %s\n", status.message().c_str());
  return status.code() == fluvial::Code::kInvalidArgument ? 2 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;
  double seconds = 0.5;
  std::string backend = "cpu";
  std::vector<std::string> lines;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (i + 1 < argc && arg == "--threads")
      threads = std::atoi(argv[++i]);
    else if (i + 1 < argc && arg == "--backend")
      backend = argv[++i];
    else if (i + 1 < argc && arg == "--seconds")
      seconds = std::atof(argv[++i]);
    else
      lines.push_back(arg);
  }
  const auto stream = fluvial::MakeCpuStream(threads);
  std::printf("%-12s %12s %12s %12s %10s %10s  problem\n", "backend", "active us", "best us", "median us", "Gmadd/s",
              "GB/s");
  for (const std::string& text : lines) {
    const auto line = ParseProblemLine(text);
    if (!line.ok()) return Fail(line.status());
    bool found = false;
    const auto list = Backends(line->problem.op);
    std::vector<fluvial::ops::delta_rule::DeltaBackend> candidates(list.begin(), list.end());
    candidates.push_back(fluvial::ops::delta_rule::kTokenLoopPeer);
    for (const auto& b : candidates) {
      if (b.name != backend) continue;
      found = true;
      const auto m = Measure(*stream, b, *line, 3, seconds);
      if (!m.ok()) return Fail(m.status());
      std::printf("%-12s %12.1f %12.1f %12.1f %10.1f %10.1f  %s\n", backend.c_str(), m->best_active_us, m->best_us,
                  m->median_us, m->multiply_adds / m->best_active_us * 1e-3, m->bytes / m->best_active_us * 1e-3,
                  text.c_str());
    }
    if (!found) return Fail(fluvial::Status::InvalidArgument("there is no backend '" + backend + "'"));
  }
  return 0;
}
