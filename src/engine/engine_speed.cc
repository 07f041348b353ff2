// SPDX-License-Identifier: Apache-2.0
// Measures one checkpoint on this machine: engine_speed MODEL [prompt tokens] [answer tokens] [threads] [repeats]
//
// Prints every repeat and the best: prompt tokens per second, answer tokens per second, the bytes of weights that each
// answer token reads, and beside them the read bandwidth of this machine over the same mapped file - the ceiling of
// decode. Nothing is asserted: speed is a figure, not a test.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
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

/// GB/s of summing the whole file with the pool; the best of `repeats`.
double ReadBandwidth(const std::string& path, fluvial::ThreadPool& pool, int repeats) {
  auto file = fluvial::weights::MappedFile::Open(path);
  if (!file.ok()) return 0;
  constexpr int64_t kBlock = int64_t{1} << 20;
  const int64_t blocks = static_cast<int64_t>(file->bytes()) / kBlock;
  const auto* words = reinterpret_cast<const uint64_t*>(file->data());
  std::vector<uint64_t> sums(static_cast<size_t>(pool.threads()) * 64);
  double best = 0;
  for (int r = 0; r < repeats + 1; ++r) {
    const auto start = Clock::now();
    pool.ParallelFor(blocks, [&](int64_t b, int worker) {
      const uint64_t* p = words + b * kBlock / 8;
      uint64_t s[8] = {};
      for (int64_t i = 0; i < kBlock / 8; i += 8) {
        for (int j = 0; j < 8; ++j) s[j] += p[i + j];
      }
      for (const uint64_t x : s) sums[static_cast<size_t>(worker) * 64] += x;
    });
    const double gbs = static_cast<double>(blocks * kBlock) / Seconds(start, Clock::now()) * 1e-9;
    if (r > 0) best = std::max(best, gbs);  // the first pass brings the pages in
  }
  volatile uint64_t keep = sums[0];
  (void)keep;
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: engine_speed MODEL [prompt=512] [answer=64] [threads=0] [repeats=5]\n");
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
  double best_prefill = 0, best_decode = 0;
  for (int r = 0; r < repeats; ++r) {
    const auto before = (*engine)->stats();
    auto done = (*engine)->Generate({request});
    if (!done.ok() || !(*done)[0].status.ok()) return 1;
    const auto after = (*engine)->stats();
    const double prefill = static_cast<double>(after.prefill_step_tokens - before.prefill_step_tokens) /
                           (after.prefill_seconds - before.prefill_seconds);
    const double decode = static_cast<double>(after.decode_step_tokens - before.decode_step_tokens) /
                          (after.decode_seconds - before.decode_seconds);
    std::printf("repeat %d: prefill %.1f tokens/s, decode %.2f tokens/s\n", r, prefill, decode);
    best_prefill = std::max(best_prefill, prefill);
    best_decode = std::max(best_decode, decode);
  }
  const auto stats = (*engine)->stats();
  fluvial::ThreadPool pool(threads);
  const double bandwidth = ReadBandwidth(options.model + "/model.safetensors", pool, 3);
  const double weight_gb = static_cast<double>(stats.weight_bytes) * 1e-9;
  std::printf(
      "load %.2f s, weights %.3f GB, workspace %.1f MB, states %.1f MB, peak memory %.3f GB (%.0f %% of weights)\n",
      stats.load_seconds, weight_gb, static_cast<double>(stats.workspace_bytes) * 1e-6,
      static_cast<double>(stats.state_bytes) * 1e-6, static_cast<double>(stats.peak_memory_bytes) * 1e-9,
      static_cast<double>(stats.peak_memory_bytes) / static_cast<double>(stats.weight_bytes) * 100);
  std::printf(
      "best: prefill %.1f tokens/s; decode %.2f tokens/s = %.2f GB/s of weights, read bandwidth %.2f GB/s: %.0f %%\n",
      best_prefill, best_decode, best_decode * weight_gb, bandwidth, best_decode * weight_gb / bandwidth * 100);
  return 0;
}
