// SPDX-License-Identifier: Apache-2.0
// The cpu body: cuts a step into blocks of rows, shares long rows among threads by spans of keys, and appends to pages.
//
// The cut only decides who computes what; the arithmetic of a row is fixed (cpu_simd.h), so neither the batch nor the
// number of threads changes a bit.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "base/arena.h"
#include "ops/common/view_check.h"
#include "ops/paged_attention/bodies.h"
#include "ops/paged_attention/cpu_simd.h"
#include "ops/paged_attention/pieces.h"

namespace fluvial::ops::paged_attention {
namespace internal {
namespace {

constexpr int64_t kPartialBudget = int64_t{64} << 20;  // bytes for spans of shared rows

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// How rows are grouped: at most kMaxRows, heads of one kv head first.
struct Cut {
  explicit Cut(const Problem& p) {
    const int64_t group = p.hq / p.hkv;
    head_chunks = CeilDiv(group, kMaxRows);
    heads = CeilDiv(group, head_chunks);
    queries = std::max<int64_t>(1, std::min(kMaxRows / heads, std::max<int64_t>(p.max_length, 1)));
    padded = PaddedDim(p.d_v);
  }
  int64_t rows() const { return heads * queries; }
  int64_t head_chunks = 0, heads = 0, queries = 0, padded = 0;
};

/// One block of rows, whole (span = -1) or one span of its keys.
struct Task {
  int32_t sequence = 0, kv_head = 0, head_chunk = 0;
  int32_t span = -1;
  int64_t query = 0;    ///< first query of the block
  int64_t partial = 0;  ///< index of the span's Partial
};

struct Sizes {
  int64_t tasks = 0;     ///< most tasks
  int64_t partials = 0;  ///< most Partials
  int64_t shared = 0;    ///< most blocks that are shared
  int64_t scratch_floats = 0, partial_floats = 0;
  size_t bytes = 0;

  Sizes(const Problem& p, const Cut& cut, int threads) {
    const int64_t blocks = p.hkv * cut.head_chunks * (CeilDiv(p.tokens, cut.queries) + p.sequences);
    const int64_t least = p.hkv * cut.head_chunks * CeilDiv(p.tokens, cut.queries);
    const int64_t spans = CeilDiv(std::max<int64_t>(p.max_kv_length, 1), kSpan);
    partial_floats = Partial::Floats(cut.rows(), cut.padded);
    // A block is shared when it is more than 1 / (2 threads) of the work, so at most 2 * threads blocks are.
    if (threads > 1 && spans > 1 && least < 4 * threads) {
      const int64_t affordable = kPartialBudget / (partial_floats * int64_t{sizeof(float)});
      shared = std::min({2 * int64_t{threads}, blocks, affordable / spans});
      partials = shared * spans;
    }
    tasks = blocks + partials;
    scratch_floats = Scratch::Floats(cut.rows(), p.d_qk, cut.padded);
    bytes = Arena::Aligned(tasks * sizeof(Task)) + Arena::Aligned(shared * sizeof(Task)) +
            Arena::Aligned(partials * partial_floats * sizeof(float)) +
            threads * Arena::Aligned(scratch_floats * sizeof(float));
  }
};

class Run {
 public:
  Run(const Problem& p, const Args& a, std::span<const Piece> pieces) : p_(p), a_(a), pieces_(pieces), cut_(p) {}

  Status operator()(Stream& stream, Arena& arena) {
    const int threads = stream.pool().threads();
    const Sizes sizes(p_, cut_, threads);
    FLUVIAL_ASSIGN_OR_RETURN(void* tasks, arena.Take(sizes.tasks * sizeof(Task)));
    FLUVIAL_ASSIGN_OR_RETURN(void* shared, arena.Take(sizes.shared * sizeof(Task)));
    FLUVIAL_ASSIGN_OR_RETURN(void* partials, arena.Take(sizes.partials * sizes.partial_floats * sizeof(float)));
    const size_t scratch_bytes = Arena::Aligned(sizes.scratch_floats * sizeof(float));
    FLUVIAL_ASSIGN_OR_RETURN(void* scratch, arena.Take(threads * scratch_bytes));
    tasks_ = static_cast<Task*>(tasks);
    shared_ = static_cast<Task*>(shared);
    partials_ = static_cast<float*>(partials);
    partial_floats_ = sizes.partial_floats;
    MakeTasks(threads, sizes.shared);

    auto scratch_of = [&](int worker) {
      return Scratch::At(reinterpret_cast<float*>(static_cast<char*>(scratch) + worker * scratch_bytes), cut_.rows(),
                         p_.d_qk, cut_.padded);
    };
    stream.pool().ParallelFor(task_count_, [&](int64_t i, int worker) {
      const Task& task = tasks_[i];
      const Block block = MakeBlock(task);
      const Scratch w = scratch_of(worker);
      LoadQueries(block, w);
      if (task.span >= 0) return AttendSpan(block, task.span, w, PartialAt(task.partial));
      const int64_t spans = CeilDiv(block.keys(), kSpan);
      if (spans == 1) {
        AttendSpan(block, 0, w, w.total);
      } else {
        Clear(block.rows(), cut_.padded, w.total);
        for (int64_t s = 0; s < spans; ++s) {
          AttendSpan(block, s, w, w.span);
          Merge(block.rows(), cut_.padded, w.total, w.span);
        }
      }
      Finish(block, w.total);
    });
    stream.pool().ParallelFor(shared_count_, [&](int64_t i, int worker) {
      const Block block = MakeBlock(shared_[i]);
      const Scratch w = scratch_of(worker);
      Clear(block.rows(), cut_.padded, w.total);
      for (int64_t s = 0; s < CeilDiv(block.keys(), kSpan); ++s) {
        Merge(block.rows(), cut_.padded, w.total, PartialAt(shared_[i].partial + s));
      }
      Finish(block, w.total);
    });
    return Status::Ok();
  }

 private:
  Partial PartialAt(int64_t i) const { return Partial::At(partials_ + i * partial_floats_, cut_.rows(), cut_.padded); }

  const Piece& At(int32_t n) const { return pieces_[static_cast<size_t>(n)]; }

  /// Query-key pairs of the block that starts at `query`.
  int64_t Work(int32_t n, int64_t query) const {
    const int64_t last = std::min(query + cut_.queries, At(n).length);
    return (last - query) * (At(n).context + last);
  }

  /// Blocks of long rows first: they bound the end of the step.
  void MakeTasks(int threads, int64_t max_shared) {
    const int64_t total = std::max<int64_t>(1, TotalWork());
    int64_t partial = 0;
    task_count_ = shared_count_ = 0;
    const int64_t copies = p_.hkv * cut_.head_chunks;
    for (int32_t n = 0; n < static_cast<int32_t>(pieces_.size()); ++n) {
      // Backwards: the last block of a prompt sees the most keys.
      for (int64_t block = CeilDiv(At(n).length, cut_.queries) - 1; block >= 0; --block) {
        const int64_t query = block * cut_.queries;
        const int64_t keys = At(n).context + std::min(query + cut_.queries, At(n).length);
        const int64_t spans = CeilDiv(keys, kSpan);
        const bool large = spans > 1 && Work(n, query) * copies > 0 && Work(n, query) * 2 * threads > total;
        for (int64_t c = 0; c < copies; ++c) {
          Task task{
              n, static_cast<int32_t>(c / cut_.head_chunks), static_cast<int32_t>(c % cut_.head_chunks), -1, query, 0};
          if (large && shared_count_ < max_shared) {
            task.partial = partial;
            shared_[shared_count_++] = task;
            for (int64_t s = 0; s < spans; ++s) {
              task.span = static_cast<int32_t>(s);
              task.partial = partial++;
              tasks_[task_count_++] = task;
            }
          } else {
            tasks_[task_count_++] = task;
          }
        }
      }
    }
    std::stable_sort(tasks_, tasks_ + task_count_,
                     [this](const Task& x, const Task& y) { return TaskWork(x) > TaskWork(y); });
  }

  int64_t TaskWork(const Task& t) const {
    const int64_t work = Work(t.sequence, t.query);
    if (t.span < 0) return work;
    const int64_t keys = At(t.sequence).context + std::min(t.query + cut_.queries, At(t.sequence).length);
    return work / CeilDiv(keys, kSpan);
  }

  int64_t TotalWork() const {
    int64_t total = 0;
    for (int32_t n = 0; n < static_cast<int32_t>(pieces_.size()); ++n) {
      for (int64_t q = 0; q < At(n).length; q += cut_.queries) total += Work(n, q);
    }
    return total * p_.hkv * cut_.head_chunks;
  }

  Block MakeBlock(const Task& t) const {
    const Piece& piece = At(t.sequence);
    const int64_t group = p_.hq / p_.hkv, head0 = t.head_chunk * cut_.heads;
    const int64_t token = piece.token + t.query, head = t.kv_head * group + head0;
    Block b;
    b.queries = std::min(cut_.queries, piece.length - t.query);
    b.heads = std::min(cut_.heads, group - head0);
    b.position = piece.context + t.query;
    b.d_qk = p_.d_qk;
    b.d_v = p_.d_v;
    b.page_size = p_.page_size;
    b.pages = piece.pages;
    b.k = View(a_.k_pages, t.kv_head);
    b.v = View(a_.v_pages, t.kv_head);
    b.kv = p_.kv;
    b.scale = p_.Scale();
    b.io = p_.io;
    b.q_token = a_.q.strides[0];
    b.q_head = a_.q.strides[1];
    b.q = static_cast<const char*>(a_.q.data) + (token * b.q_token + head * b.q_head) * int64_t(SizeOf(p_.io));
    b.out_token = a_.out.strides[0];
    b.out_head = a_.out.strides[1];
    b.out = static_cast<char*>(a_.out.data) + (token * b.out_token + head * b.out_head) * int64_t(SizeOf(p_.io));
    if (p_.lse) {
      b.lse_token = a_.lse.strides[0];
      b.lse_head = a_.lse.strides[1];
      b.lse = static_cast<float*>(a_.lse.data) + token * b.lse_token + head * b.lse_head;
    }
    return b;
  }

  PageView View(const TensorView& v, int64_t kv_head) const {
    return {static_cast<const char*>(v.data) + kv_head * v.strides[1] * int64_t(SizeOf(v.dtype)), v.strides[0],
            v.strides[2]};
  }

  const Problem& p_;
  const Args& a_;
  const std::span<const Piece> pieces_;
  const Cut cut_;
  Task* tasks_ = nullptr;
  Task* shared_ = nullptr;
  float* partials_ = nullptr;
  int64_t partial_floats_ = 0, task_count_ = 0, shared_count_ = 0;
};

}  // namespace

Check CpuCheck(const Problem& p, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  if (p.rounding != Rounding::kOnce && p.io != DType::kF32) {
    return Check::Refuse("rounds once, but rounding=eager with io=" + std::string(Name(p.io)) + " is asked for");
  }
  return Check::Accept();
}

size_t PiecesWorkspace(const Problem& p, const DeviceInfo& device) {
  return Sizes(p, Cut(p), std::max(1, device.multiprocessors)).bytes;
}

Status RunPieces(Stream& stream, const Problem& p, const Args& a, std::span<const Piece> pieces, Arena& arena) {
  return Run(p, a, pieces)(stream, arena);
}

size_t CpuWorkspace(const Problem& p, const DeviceInfo& device) {
  return Arena::Aligned(static_cast<size_t>(p.sequences) * sizeof(Piece)) + PiecesWorkspace(p, device);
}

double CpuCost(const Problem& p, const DeviceInfo& device) {
  // Measured on one Zen 5 core (README.md): 160 GFLOP/s where there are many rows, 10 GB/s of cache where there are
  // few.
  const double flops = 2.0 * static_cast<double>(p.pairs) * p.hq * (p.d_qk + p.d_v);
  const double keys = static_cast<double>(p.pairs) / static_cast<double>(std::max<int64_t>(p.max_length, 1));
  const double bytes = keys * p.hkv * (p.d_qk + p.d_v) * static_cast<double>(SizeOf(p.kv));
  return 2.0 + std::max(flops / 160e3, bytes / 10e3) / std::max(1, device.multiprocessors);
}

Status CpuRun(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  Arena arena(workspace.data, workspace.bytes);
  FLUVIAL_ASSIGN_OR_RETURN(void* memory, arena.Take(static_cast<size_t>(p.sequences) * sizeof(Piece)));
  Piece* pieces = static_cast<Piece*>(memory);
  const KvPlan& plan = *a.plan;
  for (int32_t n = 0; n < p.sequences; ++n) {
    const int64_t first = plan.offsets()[n];
    pieces[n] = {first, plan.offsets()[n + 1] - first, plan.contexts()[n], plan.pages(n).data()};
  }
  return RunPieces(stream, p, a, {pieces, static_cast<size_t>(p.sequences)}, arena);
}

}  // namespace internal

namespace {

/// Calls row(token, page, row of the page) for every new token, on the stream's threads.
template <class Row>
void ForEachNewRow(Stream& stream, const KvPlan& plan, const Row& row) {
  constexpr int64_t kTokens = 16;  // per task
  for (int32_t n = 0; n < plan.sequences(); ++n) {
    const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first;
    const auto pages = plan.pages(n);
    stream.pool().ParallelFor((length + kTokens - 1) / kTokens, [&](int64_t task, int) {
      const int64_t end = std::min(length, (task + 1) * kTokens);
      for (int64_t i = task * kTokens; i < end; ++i) {
        const int64_t position = plan.contexts()[n] + i;
        row(first + i, pages[position / plan.page_size()], position % plan.page_size());
      }
    });
  }
}

void CopyRow(const TensorView& from, int64_t source, const TensorView& to, int64_t target, int64_t width) {
  internal::ConvertRow(static_cast<const char*>(from.data) + source * int64_t(SizeOf(from.dtype)), from.dtype,
                       static_cast<char*>(to.data) + target * int64_t(SizeOf(to.dtype)), to.dtype, width);
}

Status CheckCpu(Stream& stream, const char* what) {
  if (stream.device().kind == DeviceKind::kCpu) return Status::Ok();
  return Status::Refused(std::string(kOpName) + ": " + what + " runs on the CPU only, the device is " +
                         stream.device().Arch());
}

}  // namespace

Status AppendKv(Stream& stream, const Problem& p, const AppendArgs& a) {
  FLUVIAL_RETURN_IF_ERROR(CheckCpu(stream, "AppendKv"));
  ForEachNewRow(stream, *a.plan, [&](int64_t token, int64_t page, int64_t row) {
    for (const auto& [from, to] : {std::pair{&a.k, &a.k_pages}, std::pair{&a.v, &a.v_pages}}) {
      for (int64_t h = 0; h < p.hkv; ++h) {
        CopyRow(*from, token * from->strides[0] + h * from->strides[1], *to,
                page * to->strides[0] + h * to->strides[1] + row * to->strides[2], from->dims[2]);
      }
    }
  });
  return Status::Ok();
}

Status AppendRows(Stream& stream, const TensorView& rows, const TensorView& pages, const KvPlan& plan) {
  FLUVIAL_RETURN_IF_ERROR(CheckCpu(stream, "AppendRows"));
  const int64_t width = rows.rank == 2 ? rows.dims[1] : 0, count = pages.rank == 3 ? pages.dims[0] : 0;
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "rows", rows, rows.dtype, {plan.tokens(), width}));
  FLUVIAL_RETURN_IF_ERROR(CheckView(kOpName, "pages", pages, pages.dtype, {count, plan.page_size(), width}));
  if (!IsFloating(rows.dtype) || !IsFloating(pages.dtype)) {
    return Status::InvalidArgument(std::string(kOpName) + ": rows are " + rows.ToString() + " and pages " +
                                   pages.ToString() + ", both must be fp32, bf16 or fp16");
  }
  if (plan.max_page() >= count) {
    return Status::InvalidArgument(std::string(kOpName) + ": the plan uses page " + std::to_string(plan.max_page()) +
                                   ", but the cache has " + std::to_string(count) + " pages");
  }
  ForEachNewRow(stream, plan, [&](int64_t token, int64_t page, int64_t row) {
    CopyRow(rows, token * rows.strides[0], pages, page * pages.strides[0] + row * pages.strides[1], width);
  });
  return Status::Ok();
}

}  // namespace fluvial::ops::paged_attention
