// SPDX-License-Identifier: Apache-2.0
// Measures one checkpoint on this machine: engine_bench MODEL [prompt tokens] [answer tokens] [threads] [repeats]
//
// Prints every repeat and the best: prompt and answer tokens per second, the bytes of weights that an answer token
// reads, and beside them the read bandwidth of this machine over the same mapped file - the ceiling of decode. Each
// rate comes twice: by the clock, and per second of CPU time and thread, which other load on the machine disturbs less
// (threads=1 makes the two comparable). Nothing is asserted: speed is a figure, not a test.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/sequence.h"
#include "fluvial/engine.h"
#include "weights/mapped_file.h"

namespace {

using fluvial::engine::Clock;
using fluvial::engine::Seconds;

/// Work and the time it took.
struct Phase {
  double amount = 0;
  double wall = 0;
  double cpu = 0;  // seconds of all threads together

  double PerSecond() const { return wall > 0 ? amount / wall : 0; }
  double PerCpuSecond(int threads) const { return cpu > 0 ? amount / (cpu / threads) : 0; }
};

class Timer {
 public:
  void AddTo(Phase& phase, double amount) const {
    phase.amount += amount;
    phase.wall += Seconds(start_, Clock::now());
    phase.cpu += static_cast<double>(std::clock() - cpu_) / CLOCKS_PER_SEC;
  }

 private:
  Clock::time_point start_ = Clock::now();
  std::clock_t cpu_ = std::clock();
};

/// Keeps the best rates of several repeats.
struct Best {
  double wall = 0;
  double cpu = 0;
  void Take(const Phase& p, int threads) {
    wall = std::max(wall, p.PerSecond());
    cpu = std::max(cpu, p.PerCpuSecond(threads));
  }
};

/// GB/s of summing the whole file with the pool.
Best ReadBandwidth(const std::string& path, fluvial::ThreadPool& pool, int repeats) {
  Best best;
  auto file = fluvial::weights::MappedFile::Open(path);
  if (!file.ok()) return best;
  constexpr int64_t kBlock = int64_t{1} << 20;
  const int64_t blocks = static_cast<int64_t>(file->bytes()) / kBlock;
  const auto* words = reinterpret_cast<const uint64_t*>(file->data());
  std::vector<uint64_t> sums(static_cast<size_t>(pool.threads()) * 64);
  for (int r = 0; r < repeats + 1; ++r) {
    const Timer timer;
    pool.ParallelFor(blocks, [&](int64_t b, int worker) {
      const uint64_t* p = words + b * kBlock / 8;
      uint64_t s[8] = {};
      for (int64_t i = 0; i < kBlock / 8; i += 8) {
        for (int j = 0; j < 8; ++j) s[j] += p[i + j];
      }
      for (const uint64_t x : s) sums[static_cast<size_t>(worker) * 64] += x;
    });
    Phase phase;
    timer.AddTo(phase, static_cast<double>(blocks * kBlock) * 1e-9);
    if (r > 0) best.Take(phase, pool.threads());  // the first pass brings the pages in
  }
  volatile uint64_t keep = sums[0];
  (void)keep;
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: engine_bench MODEL [prompt=512] [answer=64] [threads=0] [repeats=5]\n");
    return 2;
  }
  const auto arg = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  const int prompt = arg(2, 512), answer = arg(3, 64), threads = arg(4, 0), repeats = arg(5, 5);
  fluvial::SetLogSink([](fluvial::LogLevel, std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
  fluvial::EngineOptions options;
  options.model = argv[1];
  options.threads = threads;
  options.max_model_len = std::max(prompt + answer + 1, 1024);
  auto engine = fluvial::Engine::Load(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return 3;
  }
  fluvial::Request request;
  std::mt19937 random(1);
  for (int i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>((*engine)->info().vocab_size)));
  }
  request.max_tokens = answer;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  fluvial::ThreadPool pool(threads);
  Best prefill, decode;
  for (int r = 0; r < repeats; ++r) {
    Phase prompt_phase, answer_phase;
    bool failed = false;
    auto id = (*engine)->Submit(request, {}, [&](uint64_t, fluvial::Completion c) { failed = !c.status.ok(); });
    if (!id.ok()) return 1;
    for (bool more = true; more;) {
      const auto before = (*engine)->stats();
      const Timer timer;
      more = *(*engine)->Step();
      const auto after = (*engine)->stats();
      if (after.steps == before.steps) break;
      const bool prompts = after.prefill_step_tokens != before.prefill_step_tokens;
      timer.AddTo(prompts ? prompt_phase : answer_phase,
                  static_cast<double>(after.prefill_step_tokens - before.prefill_step_tokens +
                                      after.decode_step_tokens - before.decode_step_tokens));
    }
    if (failed) return 1;
    std::printf("repeat %d: prefill %.1f tokens/s (%.1f by CPU time), decode %.2f tokens/s (%.2f by CPU time)\n", r,
                prompt_phase.PerSecond(), prompt_phase.PerCpuSecond(pool.threads()), answer_phase.PerSecond(),
                answer_phase.PerCpuSecond(pool.threads()));
    prefill.Take(prompt_phase, pool.threads());
    decode.Take(answer_phase, pool.threads());
  }
  const auto stats = (*engine)->stats();
  const Best bandwidth = ReadBandwidth(options.model + "/model.safetensors", pool, 5);
  const double gb = static_cast<double>(stats.weight_bytes) * 1e-9;
  std::printf(
      "load %.2f s, weights %.3f GB, workspace %.1f MB, states %.1f MB, peak memory %.3f GB (%.0f %% of weights)\n",
      stats.load_seconds, gb, static_cast<double>(stats.workspace_bytes) * 1e-6,
      static_cast<double>(stats.state_bytes) * 1e-6, static_cast<double>(stats.peak_memory_bytes) * 1e-9,
      static_cast<double>(stats.peak_memory_bytes) * 1e-7 / gb);
  std::printf("best, %d threads: prefill %.1f tokens/s (%.1f by CPU time)\n", pool.threads(), prefill.wall,
              prefill.cpu);
  std::printf("  decode %.2f tokens/s = %.2f GB/s of weights; reading the file: %.2f GB/s; ratio %.0f %%\n",
              decode.wall, decode.wall * gb, bandwidth.wall, decode.wall * gb / bandwidth.wall * 100);
  std::printf("  by CPU time: decode %.2f tokens/s = %.2f GB/s; reading: %.2f GB/s; ratio %.0f %%\n", decode.cpu,
              decode.cpu * gb, bandwidth.cpu, decode.cpu * gb / bandwidth.cpu * 100);
  return 0;
}
