// SPDX-License-Identifier: Apache-2.0
// Two figures of serving on this machine:
//   serving_bench MODEL prefix [prefix=3000] [suffix=16] [threads=0] [repeats=3] [interval=-1]
//     time to the first token of prompts that share a prefix, the first reuse and later ones, against an engine without
//     the cache; and of a prompt that shares nothing, with and without it (what the cache costs those)
//   serving_bench MODEL batch [requests=16] [prompt=32] [answer=48] [threads=0] [repeats=3]
//     answer tokens per second of several requests together against one, beside what the linear layers alone allow
//
// Every figure comes by the clock and by CPU time per thread, which other load on the machine disturbs less; the load
// average is printed. Nothing is asserted.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/log.h"
#include "device/device.h"
#include "engine/sequence.h"
#include "fluvial/engine.h"
#include "models/blocks.h"
#include "models/operators.h"
#include "weights/safetensors.h"

namespace fluvial {
namespace {

using engine::Clock;
using engine::Seconds;

struct Time {
  double wall = 1e30;
  double cpu = 1e30;  // seconds per thread
  void Keep(const Time& other) {
    wall = std::min(wall, other.wall);
    cpu = std::min(cpu, other.cpu);
  }
};

template <class F>
Time Measure(int threads, F&& f) {
  const Clock::time_point start = Clock::now();
  const std::clock_t cpu = std::clock();
  f();
  Time t;
  t.wall = Seconds(start, Clock::now());
  t.cpu = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / threads;
  return t;
}

std::vector<int32_t> Ids(std::mt19937& random, int n, int64_t vocab) {
  std::vector<int32_t> out;
  for (int i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
  return out;
}

std::unique_ptr<Engine> Load(const EngineOptions& options) {
  auto engine = Engine::Load(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    std::exit(3);
  }
  std::printf("%s\n", (*engine)->info().memory.c_str());
  return std::move(engine).value();
}

Request Greedy(std::vector<int32_t> prompt, int answer) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = answer;
  r.ignore_eos = true;
  r.sampling.temperature = 0;
  return r;
}

/// Runs requests and checks that they ended well; the first one's completion.
Completion Run(Engine& engine, const std::vector<Request>& requests) {
  auto answers = engine.Generate(requests);
  for (const Completion& c : answers.ok() ? *answers : std::vector<Completion>()) {
    if (!c.status.ok()) {
      std::fprintf(stderr, "%s\n", c.status.message().c_str());
      std::exit(1);
    }
  }
  if (!answers.ok()) {
    std::fprintf(stderr, "%s\n", answers.status().message().c_str());
    std::exit(1);
  }
  return std::move((*answers)[0]);
}

int Prefix(EngineOptions options, int prefix, int suffix, int repeats, int interval, int threads) {
  if (interval >= 0) options.prefix_cache_interval = interval;
  options.max_num_seqs = 1;
  options.max_model_len = prefix + suffix + 64;
  options.enable_prefix_caching = true;
  const auto cached = Load(options);
  options.enable_prefix_caching = false;
  const auto plain = Load(options);
  const int64_t vocab = plain->info().vocab_size;
  std::mt19937 random(1);
  const auto ask = [&](std::vector<int32_t> ids) {
    const std::vector<int32_t> tail = Ids(random, suffix, vocab);
    ids.insert(ids.end(), tail.begin(), tail.end());
    return Greedy(ids, 8);
  };
  bool equal = true;
  // One token, timed; then the whole answer, compared.
  const auto first_token = [&](Engine& engine, Request request, int64_t* tokens) {
    request.max_tokens = 1;
    return Measure(threads, [&] { *tokens = Run(engine, {request}).cached_tokens; });
  };
  Time without, cold, first, later;
  int64_t first_tokens = 0, later_tokens = 0, none = 0;
  for (int i = 0; i < repeats; ++i) {
    const std::vector<int32_t> shared = Ids(random, prefix, vocab);
    const Request requests[3] = {ask(shared), ask(shared), ask(shared)};
    without.Keep(first_token(*plain, requests[0], &none));
    cold.Keep(first_token(*cached, requests[0], &none));
    first.Keep(first_token(*cached, requests[1], &first_tokens));
    later.Keep(first_token(*cached, requests[2], &later_tokens));
    const Completion a = Run(*plain, {requests[2]}), b = Run(*cached, {requests[2]});
    for (size_t t = 0; t < a.tokens.size(); ++t) equal = equal && a.tokens[t].id == b.tokens[t].id;
  }
  const auto line = [&](const char* what, const Time& t, int64_t tokens) {
    std::printf("%-34s %5lld tokens cached  %.3f s (%.3f by CPU time)  %.1f x (%.1f x)\n", what,
                static_cast<long long>(tokens), t.wall, t.cpu, without.wall / t.wall, without.cpu / t.cpu);
  };
  std::printf("first token of %d + %d tokens, best of %d:\n", prefix, suffix, repeats);
  line("without the cache", without, 0);
  line("with it, nothing shared", cold, none);
  line("first reuse of the prefix", first, first_tokens);
  line("later reuse", later, later_tokens);
  std::printf("answers with and without: %s\n", equal ? "identical" : "DIFFERENT");
  return equal ? 0 : 1;
}

/// Seconds of all linear layers of the checkpoint, once, for M rows.
Time Linears(const std::string& model, int64_t m, int threads, int repeats) {
  auto file = weights::SafetensorsFile::Open(model + "/model.safetensors");
  const auto stream = MakeCpuStream(threads);
  auto operators = models::Operators::Create(stream->device(), {});
  if (!file.ok() || !operators.ok()) return {};
  std::vector<TensorView> matrices;
  bool head = false;
  for (const auto& e : file->entries()) head = head || e.name.find("lm_head") != std::string::npos;
  int64_t widest = 1, deepest = 1;
  for (const auto& e : file->entries()) {
    const bool embedding = e.name.find("embed") != std::string::npos;
    if (e.shape.size() != 2 || (embedding && head)) continue;  // a tied embedding is the head
    matrices.emplace_back(const_cast<uint8_t*>(file->Data(e)), e.dtype,
                          std::initializer_list<int64_t>{e.shape[0], e.shape[1]});
    widest = std::max(widest, e.shape[0]);
    deepest = std::max(deepest, e.shape[1]);
  }
  const DType io = matrices.empty() ? DType::kF32 : matrices[0].dtype;
  std::vector<char> x(static_cast<size_t>(m * deepest) * SizeOf(io)),
      y(static_cast<size_t>(m * widest) * sizeof(float));
  size_t bytes = 0;
  for (const TensorView& w : matrices) {
    auto one = operators->LinearBytes(models::LinearProblem(m, w, io));
    if (one.ok()) bytes = std::max(bytes, Arena::Aligned(*one));
  }
  auto workspace = Buffer::Allocate(DeviceKind::kCpu, bytes + 256);
  Time best;
  for (int r = 0; r < repeats + 1; ++r) {
    const Time t = Measure(stream->pool().threads(), [&] {
      for (const TensorView& w : matrices) {
        Arena arena(workspace->data(), workspace->bytes());
        const Status status = operators->Linear(*stream, TensorView(x.data(), io, {m, w.dim(1)}), w, {},
                                                TensorView(y.data(), io, {m, w.dim(0)}), arena);
        if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
      }
    });
    if (r > 0) best.Keep(t);  // the first pass packs weights and brings pages in
  }
  return best;
}

int Together(EngineOptions options, int requests, int prompt, int answer, int repeats, int threads) {
  options.max_num_seqs = requests;
  options.max_model_len = prompt + answer + 1;
  const auto engine = Load(options);
  std::mt19937 random(1);
  Time step[2];
  const int counts[2] = {1, requests};
  for (int r = 0; r < repeats; ++r) {
    for (int which = 0; which < 2; ++which) {
      for (int i = 0; i < counts[which]; ++i) {
        const auto id = engine->Submit(Greedy(Ids(random, prompt, engine->info().vocab_size), answer), {},
                                       [](uint64_t, Completion c) {
                                         if (!c.status.ok()) std::fprintf(stderr, "%s\n", c.status.message().c_str());
                                       });
        if (!id.ok()) return 1;
      }
      Time sum{0, 0};
      int64_t steps = 0;
      for (bool more = true; more;) {
        const EngineStats before = engine->stats();
        const Time t = Measure(threads, [&] { more = *engine->Step(); });
        const EngineStats after = engine->stats();
        // Steps in which everybody answers.
        if (after.decode_step_tokens - before.decode_step_tokens != counts[which]) continue;
        sum.wall += t.wall;
        sum.cpu += t.cpu;
        ++steps;
      }
      sum.wall /= static_cast<double>(steps);
      sum.cpu /= static_cast<double>(steps);
      std::printf("repeat %d: %d at once: step %.1f ms (%.1f by CPU time), %.1f tokens/s (%.1f)\n", r, counts[which],
                  sum.wall * 1e3, sum.cpu * 1e3, counts[which] / sum.wall, counts[which] / sum.cpu);
      step[which].Keep(sum);
    }
  }
  const Time gemm1 = Linears(options.model, 1, options.threads, repeats);
  const Time gemm = Linears(options.model, requests, options.threads, repeats);
  const auto ratio = [&](double one, double many) { return requests * one / many; };
  std::printf("best: 1 request %.1f tokens/s, %d together %.1f tokens/s: %.2f x by the clock, %.2f x by CPU time\n",
              1 / step[0].wall, requests, requests / step[1].wall, ratio(step[0].wall, step[1].wall),
              ratio(step[0].cpu, step[1].cpu));
  std::printf(
      "linear layers alone: M = 1 %.1f ms (%.1f by CPU time), M = %d %.1f ms (%.1f): they would allow %.2f x "
      "(%.2f x)\n",
      gemm1.wall * 1e3, gemm1.cpu * 1e3, requests, gemm.wall * 1e3, gemm.cpu * 1e3, ratio(gemm1.wall, gemm.wall),
      ratio(gemm1.cpu, gemm.cpu));
  return 0;
}

}  // namespace
}  // namespace fluvial

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode != "prefix" && mode != "batch") {
    std::fprintf(stderr,
                 "usage: serving_bench MODEL prefix [prefix=3000] [suffix=16] [threads=0] [repeats=3] [interval=-1]\n"
                 "       serving_bench MODEL batch [requests=16] [prompt=32] [answer=48] [threads=0] [repeats=3]\n");
    return 2;
  }
  const auto arg = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  fluvial::SetLogSink(
      [](fluvial::LogLevel, std::string_view line) {
        std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
      },
      fluvial::LogLevel::kWarning);
  double load[3] = {};
  if (getloadavg(load, 3) > 0) std::printf("load average %.1f\n", load[0]);
  fluvial::EngineOptions options;
  options.model = argv[1];
  const bool prefix = mode == "prefix";
  options.threads = arg(prefix ? 5 : 6, 0);
  const int threads = fluvial::ThreadPool(options.threads).threads();
  if (prefix) return fluvial::Prefix(options, arg(3, 3000), arg(4, 16), arg(6, 3), arg(7, -1), threads);
  return fluvial::Together(options, arg(3, 16), arg(4, 32), arg(5, 48), arg(7, 3), threads);
}
