// SPDX-License-Identifier: Apache-2.0
// Speed of sampling on this machine.
//
//   bench_sampling [--threads T] [--rows N] [--vocab V] [--seconds S]
//
// Prints per set of parameters: median and best time per row, best active CPU time per row, GB/s of logits read once,
// and the ratio to the read probe (rows that fit a cache may exceed 1).
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/hash.h"
#include "ops/common/bench_kit.h"
#include "ops/sampling/sampling.h"

namespace fluvial::ops::sampling {
namespace {

int Main(int threads, int64_t rows, int64_t vocab, double seconds) {
  ThreadPool pool(threads);
  const Probe probe = ProbeMachine(pool);
  std::printf("%s; %lld rows of %lld\n", Describe(probe, pool).c_str(), static_cast<long long>(rows),
              static_cast<long long>(vocab));
  // Peaked like a language model's: a few tokens stand out of a wide floor.
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  for (size_t i = 0; i < logits.size(); ++i) {
    const double u = (static_cast<double>(Mix64(i) >> 11) + 0.5) * 0x1p-53;
    logits[i] = static_cast<float>(-3.0 * std::log(u) - 4.0);
  }
  TokenHistory history;
  for (int32_t i = 0; i < 2000; ++i) history.AddOutput(static_cast<int32_t>(Mix64(i) % static_cast<uint64_t>(vocab)));
  struct Form {
    const char* name;
    Params params;
    bool history;
  };
  std::vector<Form> forms(8);
  forms[0] = {"greedy", {}, false};
  forms[0].params.temperature = 0;
  forms[1] = {"temperature 1", {}, false};
  forms[2] = {"top_k 20, top_p 0.95", {}, false};
  forms[2].params.top_k = 20;
  forms[2].params.top_p = 0.95f;
  forms[3] = {"top_p 0.9", {}, false};
  forms[3].params.top_p = 0.9f;
  forms[4] = {"top_p 0.95, temperature 3 (flat)", {}, false};
  forms[4].params.top_p = 0.95f;
  forms[4].params.temperature = 3;
  forms[5] = {"min_p 0.05", {}, false};
  forms[5].params.min_p = 0.05f;
  forms[6] = {"penalties over 2000 ids, top_k 20, top_p 0.95", {}, true};
  forms[6].params = forms[2].params;
  forms[6].params.repetition_penalty = 1.05f;
  forms[6].params.presence_penalty = 1.5f;
  forms[7] = {"top_k 20, top_p 0.95, logprobs 5", {}, false};
  forms[7].params = forms[2].params;
  forms[7].params.logprobs = 5;
  Sampler sampler(vocab);
  for (const Form& form : forms) {
    std::vector<Row> batch;
    for (int64_t r = 0; r < rows; ++r) {
      Row row;
      row.logits = logits.data() + r * vocab;
      row.params = &form.params;
      row.position = static_cast<uint64_t>(r);
      if (form.history) row.history = &history;
      batch.push_back(row);
    }
    std::vector<Outcome> outcomes(batch.size());
    const Timing t = TimeRepeats([&] { sampler.Sample(pool, batch, outcomes); }, pool.threads(), 5, seconds);
    for (const Outcome& o : outcomes) {
      if (o.verdict != Verdict::kOk) return 1;
    }
    const double n = static_cast<double>(rows), gbs = n * static_cast<double>(vocab) * 4 / t.best_active_us * 1e-3;
    std::printf("%s\n  median %.1f us/row, best %.1f us/row, active %.1f us/row; %.1f GB/s (%.2f of read)\n", form.name,
                t.median_us / n, t.best_us / n, t.best_active_us * pool.threads() / n, gbs, gbs / probe.read_gbs);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace fluvial::ops::sampling

int main(int argc, char** argv) {
  int threads = 0;
  int64_t rows = 8, vocab = 248320;
  double seconds = 0.3;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") threads = std::atoi(value.c_str());
    if (key == "--rows") rows = std::atoll(value.c_str());
    if (key == "--vocab") vocab = std::atoll(value.c_str());
    if (key == "--seconds") seconds = std::atof(value.c_str());
  }
  if (rows < 1 || vocab < 1) return 2;
  return fluvial::ops::sampling::Main(threads, rows, vocab, seconds);
}
