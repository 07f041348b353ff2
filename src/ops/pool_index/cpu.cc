// SPDX-License-Identifier: Apache-2.0
// The cpu body: pooled keys once per sequence, then blocks of queries against all pools in one gemm, whose rows do not
// depend on their company.
#include "base/arena.h"
#include "ops/gemm/gemm.h"
#include "ops/pool_index/bodies.h"
#include "ops/pool_index/pool_simd.h"

namespace fluvial::ops::pool_index::internal {
namespace {

constexpr int64_t kQueries = 8;     // scored together
constexpr int64_t kPools = 4096;    // scored together
constexpr int64_t kPoolTask = 256;  // pools per task of the cheap loops

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

gemm::Problem ScoreProblem(const Problem& p, int64_t queries, int64_t pools) {
  gemm::Problem g;
  g.m = queries * p.heads;
  g.n = pools;
  g.k = p.dim;
  g.x = g.w = p.io;
  g.y = DType::kF32;
  return g;
}

const gemm::GemmBackend* ScoreBody(const gemm::Problem& g, const DeviceInfo& device) {
  for (const gemm::GemmBackend& b : gemm::Backends()) {
    if ((b.name == "cpu_bf16" || b.name == "cpu") && b.check(g, device).ok()) return &b;
  }
  return nullptr;
}

/// Scratch of one sequence, taken from an arena or counted.
struct PoolScratch {
  void* keys = nullptr;      ///< io [pools, dim]
  float* dots = nullptr;     ///< [kQueries * heads, kPools]
  float* scores = nullptr;   ///< [kQueries, pools]
  int32_t* order = nullptr;  ///< [kQueries, pools]
  void* gemm = nullptr;
  size_t gemm_bytes = 0, bytes = 0;
  int64_t pools = 0;
  Status status;

  PoolScratch(const Problem& p, const DeviceInfo& device, Arena* arena) : pools(p.max_kv_length / p.pool) {
    const int64_t queries = std::min(kQueries, p.max_length), block = std::min(kPools, pools);
    keys = Take(arena, pools * p.dim * static_cast<int64_t>(SizeOf(p.io)));
    dots = static_cast<float*>(Take(arena, queries * p.heads * block * 4));
    scores = static_cast<float*>(Take(arena, queries * pools * 4));
    order = static_cast<int32_t*>(Take(arena, queries * pools * 4));
    const gemm::Problem g = ScoreProblem(p, queries, block);
    if (const auto* body = ScoreBody(g, device)) gemm_bytes = body->workspace_bytes(g, device);
    gemm = Take(arena, static_cast<int64_t>(gemm_bytes));
  }

 private:
  void* Take(Arena* arena, int64_t size) {
    bytes += Arena::Aligned(static_cast<size_t>(size));
    if (arena == nullptr || !status.ok()) return nullptr;
    Result<void*> data = arena->Take(static_cast<size_t>(size));
    if (data.ok()) return *data;
    status = data.status();
    return nullptr;
  }
};

/// Whether every pool that any query sees is kept.
bool KeepsAll(const Problem& p, int64_t keys) { return keys / p.pool <= p.keep; }

class SequenceRunner {
 public:
  SequenceRunner(Stream& stream, const Problem& p, const Args& a, const PoolScratch& s, int32_t n)
      : stream_(stream), p_(p), a_(a), s_(s), pages_(a.plan->pages(n)) {
    first_ = a.plan->offsets()[n];
    length_ = a.plan->offsets()[n + 1] - first_;
    context_ = a.plan->contexts()[n];
  }

  Status operator()() {
    PoolKeys();
    for (int64_t i = 0; i < length_; i += kQueries) {
      const int64_t queries = std::min(kQueries, length_ - i);
      FLUVIAL_RETURN_IF_ERROR(Score(i, queries));
      stream_.pool().ParallelFor(queries, [&](int64_t q, int) {
        WriteList(p_, a_, first_ + i + q, context_ + i + q, s_.scores + q * s_.pools, s_.order + q * s_.pools);
      });
    }
    return Status::Ok();
  }

 private:
  void PoolKeys() {
    const int64_t pools = (context_ + length_) / p_.pool, element = static_cast<int64_t>(SizeOf(p_.io));
    stream_.pool().ParallelFor(CeilDiv(pools, kPoolTask), [&](int64_t task, int) {
      const void* rows[kMaxPool];
      for (int64_t m = task * kPoolTask; m < std::min(pools, (task + 1) * kPoolTask); ++m) {
        for (int64_t i = 0; i < p_.pool; ++i) {
          const int64_t j = m * p_.pool + i;
          const int64_t row = pages_[static_cast<size_t>(j / p_.page_size)] * a_.pages.strides[0] +
                              j % p_.page_size * a_.pages.strides[1];
          rows[i] = static_cast<const char*>(a_.pages.data) + row * element;
        }
        PoolKey(rows, p_.io, p_.pool, p_.dim, a_.ape.as<float>(), static_cast<char*>(s_.keys) + m * p_.dim * element);
      }
    });
  }

  /// scores of `queries` queries from query i of the sequence on, for the pools that the last of them sees.
  Status Score(int64_t i, int64_t queries) {
    const int64_t pools = (context_ + i + queries) / p_.pool;
    const float scale = 1.0f / std::sqrt(static_cast<float>(p_.dim));
    const float head_scale = 1.0f / std::sqrt(static_cast<float>(p_.heads));
    for (int64_t begin = 0; begin < pools; begin += kPools) {
      const int64_t count = std::min(kPools, pools - begin);
      const gemm::Problem g = ScoreProblem(p_, queries, count);
      const gemm::GemmBackend* body = ScoreBody(g, stream_.device());
      if (body == nullptr) return Status::Refused(std::string(kOpName) + ": no gemm scores " + g.ToString());
      gemm::Args args;
      const int64_t element = static_cast<int64_t>(SizeOf(p_.io));
      args.x = TensorView(static_cast<char*>(a_.q.data) + (first_ + i) * p_.heads * p_.dim * element, p_.io,
                          {queries * p_.heads, p_.dim});
      args.w = TensorView(static_cast<char*>(s_.keys) + begin * p_.dim * element, p_.io, {count, p_.dim});
      args.y = TensorView(s_.dots, DType::kF32, {queries * p_.heads, count});
      FLUVIAL_RETURN_IF_ERROR(body->run(stream_, g, args, {s_.gemm, s_.gemm_bytes}));
      const int64_t tasks = CeilDiv(count, kPoolTask);
      stream_.pool().ParallelFor(queries * tasks, [&](int64_t task, int) {
        const int64_t q = task / tasks, from = task % tasks * kPoolTask, to = std::min(count, from + kPoolTask);
        float* score = s_.scores + q * s_.pools + begin;
        std::fill(score + from, score + to, 0.0f);
        for (int64_t h = 0; h < p_.heads; ++h) {
          const float w = head_scale * static_cast<float>(LoadAsDouble(a_.weights.data, p_.io,
                                                                       (first_ + i + q) * a_.weights.strides[0] + h));
          AddScores(s_.dots + (q * p_.heads + h) * count + from, scale, w, to - from, score + from);
        }
      });
    }
    return Status::Ok();
  }

  Stream& stream_;
  const Problem& p_;
  const Args& a_;
  const PoolScratch& s_;
  std::span<const int32_t> pages_;
  int64_t first_ = 0, length_ = 0, context_ = 0;
};

}  // namespace

Check CpuCheck(const Problem&, const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCpu) return Check::Accept();
  return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
}

size_t CpuWorkspace(const Problem& p, const DeviceInfo& device) {
  return KeepsAll(p, p.max_kv_length) ? 0 : PoolScratch(p, device, nullptr).bytes;
}

double CpuCost(const Problem& p, const DeviceInfo& device) {
  if (KeepsAll(p, p.max_kv_length)) return 1.0;
  const double flops = 2.0 * static_cast<double>(p.pairs) / p.pool * p.heads * p.dim;
  return 5.0 + flops / 150e3 / std::max(1, device.multiprocessors);
}

Status CpuRun(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  Arena arena(workspace.data, workspace.bytes);
  const KvPlan& plan = *a.plan;
  for (int32_t n = 0; n < p.sequences; ++n) {
    const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first, context = plan.contexts()[n];
    if (length == 0) continue;
    if (KeepsAll(p, context + length)) {
      for (int64_t i = 0; i < length; ++i) WriteList<float>(p, a, first + i, context + i, nullptr, nullptr);
      continue;
    }
    const size_t mark = arena.used();
    const PoolScratch scratch(p, stream.device(), &arena);
    FLUVIAL_RETURN_IF_ERROR(scratch.status);
    FLUVIAL_RETURN_IF_ERROR(SequenceRunner(stream, p, a, scratch, n)());
    arena.Rewind(mark);
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::pool_index::internal
