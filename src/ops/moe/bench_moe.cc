// SPDX-License-Identifier: Apache-2.0
// Speed of the backends of moe on this machine, beside dense GEMMs of the same multiply-adds.
//
//   bench_moe [--threads T] [--repeats R] [--seconds S] [--backend NAME] [--problem LINE]...
//
// Answers are checked against the reference first. Prints per problem: median and best wall time, GFLOP/s, GB/s of the
// weights of the experts that were named, and two peers, run by ops/gemm through the same pool:
//   dense        a feed-forward layer as wide as the K experts of a token: gate_up [2KI, H], down [H, KI], m = T. As
//   many
//                multiply-adds, but E/K times fewer weights to read.
//   dense, same weights   gate_up [2I * active, H] and down [H * active, I] with m = T*K/active: as many multiply-adds
//   and
//                as many weights; what grouping itself costs.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/common/bench_kit.h"
#include "ops/gemm/gemm.h"
#include "ops/moe/test_kit.h"

namespace fluvial::ops::moe {
namespace {

const char* const kSuite[] = {
    // 64 experts, 8 per token: small enough for the last-level cache, then far beyond it.
    "moe m=64 e=64 top=8 h=512 i=256 io=bf16 w=bf16",
    "moe m=64 e=64 top=8 h=1024 i=512 io=bf16 w=bf16",
    "moe m=64 e=64 top=8 h=2048 i=1024 io=bf16 w=bf16",
    "moe m=64 e=64 top=8 h=512 i=256 io=fp32 w=fp32",
    "moe m=64 e=64 top=8 h=1024 i=512 io=fp32 w=fp32",
    // A layer of Qwen3.5-35B-A3B: one token, a batch, a prompt.
    "moe m=1 e=256 top=8 h=2048 i=512 io=bf16 w=bf16",
    "moe m=16 e=256 top=8 h=2048 i=512 io=bf16 w=bf16",
    "moe m=1024 e=256 top=8 h=2048 i=512 io=bf16 w=bf16",
    // Input-major weights, as Qwen3-VL-30B-A3B has them.
    "moe m=1 e=128 top=8 h=2048 i=768 io=bf16 w=bf16 gate_up=input down=input",
    "moe m=64 e=128 top=8 h=2048 i=768 io=bf16 w=bf16 gate_up=input down=input",
};

struct Options {
  int threads = 0, repeats = 7;
  double seconds = 0.5;
  std::string backend = "cpu";
  std::vector<std::string> problems;
};

/// Values in a hurry: a table of normal numbers, already of the type.
void FillFast(const TensorView& t, uint64_t seed) {
  constexpr int64_t kTable = 4099;
  std::vector<char> table(size_t(kTable) * SizeOf(t.dtype));
  test_kit::Random rng(seed);
  for (int64_t i = 0; i < kTable; ++i) StoreFromDouble(table.data(), t.dtype, i, 0.02 * rng.Normal());
  const int64_t n = t.elements(), size = int64_t(SizeOf(t.dtype));
  for (int64_t i = 0; i < n; i += kTable) {
    std::memcpy(static_cast<char*>(t.data) + i * size, table.data(), size_t(std::min(kTable, n - i) * size));
  }
}

/// Best time of y = x w^T twice: gate_up and down, with several copies of the weights when they are few.
Result<Timing> TimeDense(Stream& stream, int64_t m, int64_t gate_up, int64_t hidden, int64_t down_rows, int64_t inter,
                         DType io, DType w, const Options& o) {
  const int64_t weights = (gate_up * hidden + down_rows * inter) * int64_t(SizeOf(w));
  const int64_t copies = std::max<int64_t>(1, (int64_t{96} << 20) / weights);
  std::vector<test_kit::HostTensor> a, b;
  for (int64_t c = 0; c < copies; ++c) {
    a.emplace_back(w, std::vector<int64_t>{gate_up, hidden}, 0, 8);
    b.emplace_back(w, std::vector<int64_t>{down_rows, inter}, 0, 8);
    FillFast(a.back().view(), 3);
    FillFast(b.back().view(), 4);
  }
  test_kit::HostTensor x(io, {m, hidden}), mid(io, {m, std::max(gate_up, inter)}), y(io, {m, down_rows});
  FillFast(x.view(), 5);
  FillFast(mid.view(), 6);
  gemm::Linear linear(stream.device(), io == DType::kBF16 && w == DType::kBF16 ? "auto" : "cpu");
  gemm::Args first, second;
  first.x = x.view();
  first.y = mid.view();
  first.y.dims[1] = gate_up;
  second.x = mid.view();
  second.x.dims[1] = inter;
  second.y = y.view();
  first.w = a[0].view();
  second.w = b[0].view();
  FLUVIAL_ASSIGN_OR_RETURN(const size_t one, linear.WorkspaceBytes(gemm::ProblemOf(first)));
  FLUVIAL_ASSIGN_OR_RETURN(const size_t two, linear.WorkspaceBytes(gemm::ProblemOf(second)));
  FLUVIAL_ASSIGN_OR_RETURN(const Buffer room, Buffer::Allocate(DeviceKind::kCpu, std::max(one, two)));
  Status status;
  size_t copy = 0;
  const Timing t = TimeRepeats(
      [&] {
        copy = (copy + 1) % a.size();
        first.w = a[copy].view();
        second.w = b[copy].view();
        for (const gemm::Args& g : {first, second}) {
          const Status s = linear.Run(stream, g, {room.data(), room.bytes()});
          if (!s.ok()) status = s;
        }
      },
      stream.pool().threads(), o.repeats, o.seconds);
  FLUVIAL_RETURN_IF_ERROR(status);
  return t;
}

/// Two sampled tokens against the reference: relative to the largest output. Not a test of precision; tests are.
Status CheckAnswer(Stream& stream, test::Case& c, int64_t token) {
  Problem p = c.p;
  p.tokens = 1;
  test::Case alone(p);
  Args a = alone.args();
  a.experts = c.experts;
  for (int64_t h = 0; h < p.hidden; ++h) alone.x.Set(0, h, c.x.Get(token, h));
  for (int32_t k = 0; k < p.per_token; ++k) {
    alone.Id(0, k) = c.Id(token, k);
    alone.weights.Set(0, k, c.weights.Get(token, k));
  }
  FLUVIAL_RETURN_IF_ERROR(alone.Run("reference", stream, a));
  double worst = 0, largest = 0;
  for (int64_t h = 0; h < p.hidden; ++h) {
    worst = std::max(worst, std::abs(alone.y.Get(0, h) - c.y.Get(token, h)));
    largest = std::max(largest, std::abs(alone.y.Get(0, h)));
  }
  if (!(worst <= 0.02 * largest)) {
    return Status::Failed("WRONG: " + std::to_string(worst) + " of " + std::to_string(largest));
  }
  return Status::Ok();
}

Status BenchOne(Stream& stream, const Problem& p, const Options& o) {
  FLUVIAL_ASSIGN_OR_RETURN(const auto choice, Choose(p, stream.device(), o.backend));
  test::Case c(p);
  FillFast(c.x.view(), 1);
  for (auto& t : c.tensors) FillFast(t.view(), 2);
  test_kit::Random rng(1);
  c.RandomIds(rng);
  test::Case::Fill(c.weights, [&] { return rng.Uniform(); });
  std::vector<bool> named(size_t(p.experts));
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int32_t k = 0; k < p.per_token; ++k) named[size_t(c.Id(t, k))] = true;
  }
  const int64_t active = std::count(named.begin(), named.end(), true);

  const size_t bytes = choice.backend->workspace_bytes(p, stream.device());
  FLUVIAL_ASSIGN_OR_RETURN(const Buffer room, Buffer::Allocate(DeviceKind::kCpu, bytes));
  const Args args = c.args();
  FLUVIAL_RETURN_IF_ERROR(choice.backend->run(stream, p, args, {room.data(), bytes}));
  FLUVIAL_RETURN_IF_ERROR(CheckAnswer(stream, c, 0));
  FLUVIAL_RETURN_IF_ERROR(CheckAnswer(stream, c, p.tokens - 1));
  const Timing t = TimeRepeats([&] { (void)choice.backend->run(stream, p, args, {room.data(), bytes}); },
                               stream.pool().threads(), o.repeats, o.seconds);
  const double flops = 6.0 * double(p.tokens) * p.per_token * double(p.hidden) * double(p.inter);
  const double weights = 3.0 * double(active) * double(p.hidden) * double(p.inter) * double(SizeOf(p.w));
  std::printf(
      "%s\n  %-22s median %9.1f us  best %9.1f  active %9.1f  %7.1f GFLOP/s  %6.2f GB/s  (%lld experts named)\n",
      p.ToString().c_str(), std::string(choice.backend->name).c_str(), t.median_us, t.best_us, t.best_active_us,
      flops / t.best_us / 1e3, weights / t.best_us / 1e3, static_cast<long long>(active));
  const int64_t rows = std::max<int64_t>(1, p.tokens * p.per_token / active);
  struct Peer {
    const char* name;
    int64_t m, gate_up, down_rows, inter;
  };
  for (const Peer& peer : {Peer{"dense", p.tokens, 2 * p.per_token * p.inter, p.hidden, p.per_token * p.inter},
                           Peer{"dense, same weights", rows, 2 * p.inter * active, p.hidden * active, p.inter}}) {
    FLUVIAL_ASSIGN_OR_RETURN(
        const Timing d, TimeDense(stream, peer.m, peer.gate_up, p.hidden, peer.down_rows, peer.inter, p.io, p.w, o));
    const double work =
        2.0 * double(peer.m) * (double(peer.gate_up) * double(p.hidden) + double(peer.down_rows) * double(peer.inter));
    // Whole rows per expert: scaled to the same multiply-adds.
    const double scale = flops / work;
    std::printf(
        "  %-22s median %9.1f us  best %9.1f  active %9.1f  %7.1f GFLOP/s  moe takes %.2fx (best), %.2fx (active)\n",
        peer.name, d.median_us * scale, d.best_us * scale, d.best_active_us * scale, work / d.best_us / 1e3,
        t.best_us / (d.best_us * scale), t.best_active_us / (d.best_active_us * scale));
  }
  return Status::Ok();
}

int Main(const Options& o) {
  auto stream = MakeCpuStream(o.threads);
  const Probe probe = ProbeMachine(stream->pool());
  std::printf("%s, %s\n", stream->device().name.c_str(), ops::Describe(probe, stream->pool()).c_str());
  for (const std::string& line : o.problems) {
    auto parsed = ParseProblemLine(line);
    const Status s = parsed.ok() ? BenchOne(*stream, parsed->problem, o) : parsed.status();
    if (!s.ok()) {
      std::fprintf(stderr, "%s: %s\n", line.c_str(), s.message().c_str());
      return 1;
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace fluvial::ops::moe

int main(int argc, char** argv) {
  fluvial::ops::moe::Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--threads") o.threads = std::atoi(value.c_str());
    if (key == "--repeats") o.repeats = std::atoi(value.c_str());
    if (key == "--seconds") o.seconds = std::atof(value.c_str());
    if (key == "--backend") o.backend = value;
    if (key == "--problem") o.problems.push_back(value);
  }
  if (argc % 2 == 0) {
    std::fprintf(stderr,
                 "usage: bench_moe [--threads T] [--repeats R] [--seconds S] [--backend NAME] [--problem LINE]...\n");
    return 2;
  }
  if (o.problems.empty()) o.problems.assign(std::begin(fluvial::ops::moe::kSuite), std::end(fluvial::ops::moe::kSuite));
  return fluvial::ops::moe::Main(o);
}
