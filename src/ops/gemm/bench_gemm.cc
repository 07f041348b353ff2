// SPDX-License-Identifier: Apache-2.0
// Speed of every backend of gemm on this machine, answers checked first.
//
//   bench_gemm [--threads T] [--repeats R] [--suite decode|prefill|all] [--problem LINE] [--backend A,B]
//              [--clock median|best|cpu]
//
// Prints per problem and backend: median and best microseconds, GFLOP/s, GB/s of weights, the share of the machine's
// read bandwidth (probed first), and the ratio to the best oneDNN form (plain or packed). Several copies of the weight
// are used in turn, so that it comes from memory as in a model and not from a cache.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "ops/gemm/gemm.h"

namespace fluvial::ops::gemm {
namespace {

// CPU seconds of all threads of this process.
double CpuNow() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// GB/s of reading a buffer far larger than any cache with all threads; best of several passes.
double ProbeBandwidth(ThreadPool& pool) {
  constexpr size_t kBytes = size_t{512} << 20;
  constexpr int64_t kPieces = 64;
  std::vector<uint64_t> buffer(kBytes / 8, 1);
  std::vector<uint64_t> sums(kPieces);
  double best = 0;
  for (int pass = 0; pass < 6; ++pass) {
    const double start = Now();
    pool.ParallelFor(kPieces, [&](int64_t i, int) {
      const uint64_t* p = buffer.data() + i * int64_t(buffer.size()) / kPieces;
      uint64_t s[8] = {};
      for (int64_t l = 0; l < int64_t(buffer.size()) / kPieces; l += 8) {
        for (int u = 0; u < 8; ++u) s[u] += p[l + u];
      }
      for (uint64_t v : s) sums[i] += v;
    });
    best = std::max(best, double(kBytes) / (Now() - start) / 1e9);
  }
  // The sums must be used, or there is nothing to read for.
  if (std::count(sums.begin(), sums.end(), 0) != 0) std::abort();
  return best;
}

// Bytes that start `offset` bytes after a multiple of 256.
class Aligned {
 public:
  explicit Aligned(size_t bytes, size_t offset = 0) : bytes_(bytes + 256 + offset), offset_(offset) {}
  char* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (256 - at % 256) % 256 + offset_;
  }

 private:
  std::vector<char> bytes_;
  size_t offset_;
};

// Where weights lie in a mapped safetensors file: after a header padded to 8 bytes.
constexpr size_t kFileOffset = 8;

struct Data {
  Data(const Problem& p, int copies)
      : p(p), x(p.m * p.k * SizeOf(p.x)), y(p.m * p.n * SizeOf(p.y)), bias(p.n * sizeof(float)) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    auto fill = [&](Aligned& v, DType t, int64_t n) {
      for (int64_t i = 0; i < n; ++i) StoreFromDouble(v.data(), t, i, normal(rng));
    };
    fill(x, p.x, p.m * p.k);
    const size_t weight_bytes = p.n * p.k * SizeOf(p.w);
    for (int i = 0; i < copies; ++i) w.emplace_back(weight_bytes, kFileOffset);
    fill(w[0], p.w, p.n * p.k);
    for (int i = 1; i < copies; ++i) std::memcpy(w[i].data(), w[0].data(), weight_bytes);
    fill(bias, p.bias, p.n);
  }
  Args args(int copy) {
    Args a;
    a.x = TensorView(x.data(), p.x, {p.m, p.k});
    a.w = TensorView(w[copy % w.size()].data(), p.w, {p.n, p.k});
    a.y = TensorView(y.data(), p.y, {p.m, p.n});
    if (p.has_bias) a.bias = TensorView(bias.data(), p.bias, {p.n});
    return a;
  }
  // Largest error of sampled outputs over its bound (K + 2 roundings of fp32, then one of y).
  double WorstOverBound() {
    double worst = 0;
    std::mt19937 rng(2);
    for (int s = 0; s < 64; ++s) {
      const int64_t i = int64_t(rng()) % p.m, j = int64_t(rng()) % p.n;
      double want = p.has_bias ? LoadAsDouble(bias.data(), p.bias, j) : 0, size = std::abs(want);
      for (int64_t l = 0; l < p.k; ++l) {
        const double v = LoadAsDouble(x.data(), p.x, i * p.k + l) * LoadAsDouble(w[0].data(), p.w, j * p.k + l);
        want += v, size += std::abs(v);
      }
      const double sum = double(p.k + 2) * 0x1p-24 * size;
      const double unit = p.y == DType::kF32 ? 0x1p-24 : p.y == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      worst = std::max(
          worst, std::abs(LoadAsDouble(y.data(), p.y, i * p.n + j) - want) / (sum + unit * (std::abs(want) + sum)));
    }
    return worst;
  }
  Problem p;
  Aligned x, y, bias;
  std::vector<Aligned> w;
};

struct Timing {
  double median_us = 0, best_us = 0, cpu_us = 0;
  double By(const std::string& clock) const { return clock == "best" ? best_us : clock == "cpu" ? cpu_us : median_us; }
};

template <class Fn>
Timing Time(int repeats, int threads, Fn&& fn) {
  std::vector<double> us;
  double cpu = 1e30;
  // Alternating oneDNN and our pool would time the other's spinning threads: settle first.
  const double settle = Now() + 0.02;
  for (int i = 0; Now() < settle || i < 3; ++i) fn(i);
  for (int i = 0; i < repeats; ++i) {
    const double start = Now(), cpu_start = CpuNow();
    fn(i);
    us.push_back((Now() - start) * 1e6);
    cpu = std::min(cpu, (CpuNow() - cpu_start) * 1e6 / threads);
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[0], cpu};
}

struct Options {
  int threads = 0;
  int repeats = 15;
  std::string suite = "all";
  std::string backends;
  std::string clock = "median";
  std::vector<std::string> problems;
};

void Report(const std::string& name, const Problem& p, const Timing& t, const Options& o, double bandwidth,
            double peer_us) {
  const double us = t.By(o.clock);
  const double flops = 2.0 * double(p.m) * double(p.n) * double(p.k);
  const double bytes = double(p.n) * double(p.k) * double(SizeOf(p.w));
  std::printf("  %-14s median %9.1f us  best %9.1f  cpu %9.1f  %7.1f GFLOP/s  %6.2f GB/s  %5.1f %% of read",
              name.c_str(), t.median_us, t.best_us, t.cpu_us, flops / us / 1e3, bytes / us / 1e3,
              100 * bytes / us / 1e3 / bandwidth);
  if (peer_us > 0) std::printf("  %5.2fx oneDNN", peer_us / us);
  std::printf("\n");
}

bool Bench(Stream& stream, const Problem& p, const Options& o, double bandwidth) {
  std::printf("%s\n", p.ToString().c_str());
  const int64_t weight_bytes = p.n * p.k * int64_t(SizeOf(p.w));
  const int copies = int(std::clamp<int64_t>((int64_t{160} << 20) / std::max<int64_t>(weight_bytes, 1), 1, 64));
  Data data(p, copies);
  bool right = true;
  double peer = 0;
  auto wanted = [&](const std::string& name) {
    return o.backends.empty() || ("," + o.backends + ",").find("," + name + ",") != std::string::npos;
  };
  auto measure = [&](const std::string& name, const GemmBackend& b, const Problem& q, auto&& args) {
    const size_t room_bytes = b.workspace_bytes(q, stream.device());
    Aligned room(room_bytes);
    const Status s = b.run(stream, q, args(0), {room.data(), room_bytes});
    const double worst = s.ok() ? data.WorstOverBound() : 1e9;
    if (worst > 1) {
      std::printf("  %-14s WRONG (%.2f of the bound) %s\n", name.c_str(), worst, s.message().c_str());
      right = false;
      return;
    }
    const Timing t = Time(o.repeats, stream.pool().threads(),
                          [&](int i) { (void)b.run(stream, q, args(i), {room.data(), room_bytes}); });
    if (name.rfind("onednn", 0) == 0) peer = peer == 0 ? t.By(o.clock) : std::min(peer, t.By(o.clock));
    Report(name, p, t, o, bandwidth, name.rfind("onednn", 0) == 0 ? 0 : peer);
  };
  // oneDNN first: the others are compared with its best form.
  for (const bool onednn : {true, false}) {
    for (const GemmBackend& b : Backends()) {
      const std::string name(b.name);
      if ((name == "onednn") != onednn || name == "reference" || !wanted(name)) continue;
      const Check check = b.check(p, stream.device());
      if (!check.ok()) {
        std::printf("  %-14s refused: %s\n", name.c_str(), check.reason().c_str());
        continue;
      }
      measure(name, b, p, [&](int i) { return data.args(i); });
      if (name != "onednn") continue;
      std::vector<std::shared_ptr<const PackedWeight>> packed;
      for (int i = 0; i < copies; ++i) {
        auto w = Pack(name, data.args(i).w, p.x, p.y, p.m);
        if (!w.ok()) break;
        packed.push_back(*w);
      }
      if (packed.empty()) continue;
      Problem q = p;
      q.packed = true;
      measure("onednn packed", b, q, [&](int i) {
        Args a = data.args(i);
        a.packed = packed[i % packed.size()].get();
        return a;
      });
    }
  }
  return right;
}

std::vector<std::string> Suite(const std::string& suite) {
  // Qwen3.5-0.8B: mlp gate/up and down, linear attention in_proj_qkv and out_proj; then a larger model's mlp.
  const std::pair<int, int> shapes[] = {{3584, 1024}, {1024, 3584}, {6144, 1024}, {1024, 2048}, {9216, 2560}};
  std::vector<std::string> lines;
  for (const char* types : {"x=bf16 w=bf16 y=bf16", "x=fp32 w=fp32 y=fp32", "x=fp32 w=bf16 y=fp32"}) {
    for (const auto& [n, k] : shapes) {
      auto add = [&](int m) {
        lines.push_back("gemm m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k) + " " +
                        types);
      };
      if (suite != "prefill") {
        for (int m : {1, 2, 4, 8, 16}) add(m);
      }
      if (suite != "decode") {
        for (int m : {64, 256, 1024}) add(m);
      }
    }
  }
  return lines;
}

int Main(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (value == nullptr || key.rfind("--", 0) != 0) {
      std::fprintf(stderr,
                   "usage: bench_gemm [--threads T] [--repeats R] [--suite decode|prefill|all] [--problem LINE] "
                   "[--backend A,B] [--clock median|best|cpu]\n");
      return 2;
    }
    if (key == "--threads") o.threads = std::atoi(value);
    if (key == "--repeats") o.repeats = std::max(1, std::atoi(value));
    if (key == "--suite") o.suite = value;
    if (key == "--backend") o.backends = value;
    if (key == "--clock") o.clock = value;
    if (key == "--problem") o.problems.push_back(value);
    ++i;
  }
  if (o.problems.empty()) o.problems = Suite(o.suite);
  auto stream = MakeCpuStream(o.threads);
  const double bandwidth = ProbeBandwidth(stream->pool());
  std::printf("%s, %d threads, read bandwidth %.1f GB/s\n", stream->device().name.c_str(), stream->pool().threads(),
              bandwidth);
  bool right = true;
  for (const std::string& line : o.problems) {
    auto parsed = ParseProblemLine(line);
    if (!parsed.ok()) {
      std::fprintf(stderr, "%s\n", parsed.status().message().c_str());
      return 2;
    }
    right &= Bench(*stream, parsed->problem, o, bandwidth);
    std::fflush(stdout);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace fluvial::ops::gemm

int main(int argc, char** argv) { return fluvial::ops::gemm::Main(argc, argv); }
