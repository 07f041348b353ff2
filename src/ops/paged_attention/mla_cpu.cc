// SPDX-License-Identifier: Apache-2.0
// The cpu bodies of latent attention. Both forms end in the paged kernels of this room (pieces.h): the absorbed form
// with one KV head over the cache rows themselves, the expanded form with keys and values of a few heads at a time in
// one big page. Selected keys are pages of one row.
#include <algorithm>
#include <limits>
#include <string>

#include "base/arena.h"
#include "ops/gemm/gemm.h"
#include "ops/paged_attention/cpu_simd.h"
#include "ops/paged_attention/mla_bodies.h"
#include "ops/paged_attention/pieces.h"

namespace fluvial::ops::mla_attention::internal {
namespace {

using paged_attention::internal::ConvertRow;
using paged_attention::internal::Piece;
using paged_attention::internal::PiecesWorkspace;
using paged_attention::internal::RunPieces;
using Paged = paged_attention::Problem;

constexpr int64_t kChunk = 128;                         // queries absorbed at a time
constexpr int64_t kExpandedBudget = int64_t{64} << 20;  // bytes of expanded keys and values, where one head allows it
constexpr int32_t kOnePage = std::numeric_limits<int32_t>::max();  // page size of a buffer that is one page
constexpr int32_t kPageZero[1] = {0};

int64_t Bytes(DType t) { return static_cast<int64_t>(SizeOf(t)); }
const char* At(const TensorView& v, int64_t element) {
  return static_cast<const char*>(v.data) + element * Bytes(v.dtype);
}
char* MutableAt(const TensorView& v, int64_t element) { return static_cast<char*>(v.data) + element * Bytes(v.dtype); }

/// Queries from which on the expanded form is the cheaper one, whatever the context. Per key and head, absorbed costs
/// 2 rank + rope multiply-adds for each query; expanded costs nope + rope + v for each and rank (nope + v) once, which
/// the gemm does faster (kGemmAdvantage, measured: README.md).
int64_t Crossover(const Problem& p) {
  constexpr double kGemmAdvantage = 1.5;
  const double saved = 2.0 * p.rank - p.nope - p.v;
  if (saved <= 0) return std::numeric_limits<int64_t>::max();
  return 1 + static_cast<int64_t>(static_cast<double>(p.rank) * (p.nope + p.v) / kGemmAdvantage / saved);
}

/// Whether every query of sequence n sees all its keys: no selection, or lists that leave nothing out.
bool SeesAll(const Problem& p, const Args& a, int32_t n) {
  if (p.selected == 0) return true;
  const KvPlan& plan = *a.plan;
  const int32_t* counts = static_cast<const int32_t*>(a.counts.data);
  int64_t keys = plan.contexts()[n];
  for (int64_t t = plan.offsets()[n]; t < plan.offsets()[n + 1]; ++t) {
    if (counts[t] != ++keys) return false;
  }
  return true;
}

bool Expands(const Problem& p, const Args& a, Form form, int32_t n) {
  if (form != Form::kByLength) return form == Form::kExpanded;
  return a.plan->offsets()[n + 1] - a.plan->offsets()[n] >= Crossover(p) && SeesAll(p, a, n);
}

/// `p` for sequences that see all their keys: with selection no longer ones than a list holds.
Problem DenseProblem(const Problem& p) {
  Problem dense = p;
  if (p.selected > 0) {
    dense.selected = 0;
    dense.max_kv_length = std::min<int64_t>(p.max_kv_length, p.selected);
    dense.max_length = std::min<int64_t>(p.max_length, p.selected);
  }
  return dense;
}

/// The paged problem of a chunk of absorbed queries.
Paged AbsorbedProblem(const Problem& p) {
  Paged a;
  a.hq = p.heads;
  a.hkv = 1;
  a.d_qk = p.rank + p.rope;
  a.d_v = p.rank;
  a.page_size = p.selected > 0 ? 1 : p.page_size;
  a.io = DType::kF32;
  a.kv = p.kv;
  a.scale = p.Scale();
  a.tokens = std::min(p.tokens, kChunk);
  a.sequences = static_cast<int32_t>(a.tokens);
  a.max_length = p.selected > 0 ? 1 : std::min(p.max_length, kChunk);
  a.max_kv_length = p.selected > 0 ? p.selected : p.max_kv_length;
  return a;
}

int64_t HeadsAtOnce(const Problem& p) {
  const int64_t one = std::max<int64_t>(1, p.max_kv_length) * (p.nope + p.rope + p.v) * Bytes(p.io);
  return std::clamp<int64_t>(kExpandedBudget / one, 1, p.heads);
}

/// The paged problem of one sequence with `heads` expanded heads.
Paged ExpandedProblem(const Problem& p, int64_t heads) {
  Paged a;
  a.hq = a.hkv = static_cast<int32_t>(heads);
  a.d_qk = p.nope + p.rope;
  a.d_v = p.v;
  a.page_size = kOnePage;
  a.io = a.kv = p.io;
  a.scale = p.Scale();
  a.tokens = a.max_length = p.max_length;
  a.sequences = 1;
  a.max_kv_length = p.max_kv_length;
  return a;
}

gemm::Problem ExpandProblem(const Problem& p, int64_t keys, int64_t columns) {
  gemm::Problem g;
  g.m = keys;
  g.n = columns;
  g.k = p.rank;
  g.x = p.kv;
  g.w = p.weight;
  g.y = p.io;
  return g;
}

/// A gemm body whose rows do not depend on their company: the first of the list's own ones that takes the types.
const gemm::GemmBackend* ExpandBody(const gemm::Problem& g, const DeviceInfo& device) {
  for (const gemm::GemmBackend& b : gemm::Backends()) {
    if ((b.name == "cpu_bf16" || b.name == "cpu") && b.check(g, device).ok()) return &b;
  }
  return nullptr;
}

size_t ExpandGemmBytes(const Problem& p, const DeviceInfo& device) {
  size_t bytes = 0;
  for (const int64_t columns : {p.nope, p.v}) {
    const gemm::Problem g = ExpandProblem(p, p.max_kv_length, columns);
    if (const auto* body = ExpandBody(g, device)) bytes = std::max(bytes, body->workspace_bytes(g, device));
  }
  return bytes;
}

/// Tensors of the absorbed form, taken from an arena or counted.
struct AbsorbedScratch {
  float *q = nullptr, *o = nullptr;  ///< [kChunk, heads, rank+rope], [kChunk, heads, rank]
  float* rows = nullptr;             ///< per worker: kAbsorbRows rows of nope or v columns
  Piece* pieces = nullptr;           ///< [kChunk]
  int64_t* tokens = nullptr;         ///< [kChunk] row of q and out
  int32_t* tables = nullptr;         ///< [kChunk, selected]
  size_t bytes = 0;
  Status status;

  AbsorbedScratch(const Problem& p, int threads, Arena* arena) {
    const int64_t n = std::min(p.tokens, kChunk);
    Take(arena, q, n * p.heads * (p.rank + p.rope));
    Take(arena, o, n * p.heads * p.rank);
    Take(arena, rows, threads * RowsOfWorker(p));
    Take(arena, pieces, n);
    Take(arena, tokens, n);
    Take(arena, tables, n * p.selected);
  }
  static int64_t RowsOfWorker(const Problem& p) { return kAbsorbRows * std::max(p.nope, p.v); }

 private:
  template <class T>
  void Take(Arena* arena, T*& to, int64_t count) {
    const size_t size = static_cast<size_t>(count) * sizeof(T);
    bytes += Arena::Aligned(size);
    if (arena == nullptr || !status.ok()) return;
    Result<void*> data = arena->Take(size);
    if (data.ok()) {
      to = static_cast<T*>(*data);
    } else {
      status = data.status();
    }
  }
};

class AbsorbedRunner {
 public:
  AbsorbedRunner(Stream& stream, const Problem& p, const Args& a, Arena& arena)
      : stream_(stream), p_(p), a_(a), arena_(arena), scratch_(p, stream.pool().threads(), &arena) {}

  const Status& status() const { return scratch_.status; }

  /// Queries of one sequence; whole chunks run as they fill.
  Status Add(int32_t n) {
    const KvPlan& plan = *a_.plan;
    const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first;
    for (int64_t i = 0; i < length;) {
      const int64_t take = p_.selected > 0 ? 1 : std::min(length - i, kChunk - count_);
      Piece& piece = scratch_.pieces[pieces_++];
      piece = {count_, take, plan.contexts()[n] + i, plan.pages(n).data()};
      if (p_.selected > 0) Select(first + i, count_, piece);
      for (int64_t j = 0; j < take; ++j) scratch_.tokens[count_ + j] = first + i + j;
      count_ += take;
      i += take;
      if (count_ == kChunk) FLUVIAL_RETURN_IF_ERROR(Flush());
    }
    return Status::Ok();
  }

  Status Flush() {
    if (count_ == 0) return Status::Ok();
    ForRows([&](int64_t head, int64_t row, int64_t rows, float* x) { AbsorbRows(head, row, rows, x); });
    const Paged problem = AbsorbedProblem(p_);
    paged_attention::Args args;
    args.q = TensorView(scratch_.q, DType::kF32, {count_, p_.heads, Width()});
    args.out = TensorView(scratch_.o, DType::kF32, {count_, p_.heads, p_.rank});
    const TensorView& pages = a_.pages;
    if (p_.selected > 0) {
      args.k_pages = TensorView(pages.data, p_.kv, {pages.dims[0] * p_.page_size, 1, 1, Width()});
    } else {
      args.k_pages = TensorView(pages.data, p_.kv, {pages.dims[0], 1, p_.page_size, Width()},
                                {pages.strides[0], 0, pages.strides[1], 1});
    }
    args.v_pages = args.k_pages;
    args.v_pages.dims[3] = p_.rank;
    const size_t mark = arena_.used();
    FLUVIAL_RETURN_IF_ERROR(RunPieces(stream_, problem, args, {scratch_.pieces, static_cast<size_t>(pieces_)}, arena_));
    arena_.Rewind(mark);
    ForRows([&](int64_t head, int64_t row, int64_t rows, float* x) { ProjectRows(head, row, rows, x); });
    count_ = pieces_ = 0;
    return Status::Ok();
  }

 private:
  int64_t Width() const { return p_.rank + p_.rope; }

  /// Row `row`'s keys as pages of one row.
  void Select(int64_t token, int64_t row, Piece& piece) const {
    const int32_t* positions = static_cast<const int32_t*>(a_.selected.data) + token * p_.selected;
    const int32_t count = static_cast<const int32_t*>(a_.counts.data)[token];
    int32_t* table = scratch_.tables + row * p_.selected;
    for (int32_t i = 0; i < count; ++i) {
      table[i] = piece.pages[positions[i] / p_.page_size] * p_.page_size + positions[i] % p_.page_size;
    }
    piece.pages = table;
    piece.context = count - 1;
  }

  template <class Fn>
  void ForRows(const Fn& fn) {
    const int64_t blocks = (count_ + kAbsorbRows - 1) / kAbsorbRows;
    // Heads outermost: a worker's neighbouring tasks share the head's weights.
    stream_.pool().ParallelFor(p_.heads * blocks, [&](int64_t task, int worker) {
      const int64_t row = task % blocks * kAbsorbRows;
      fn(task / blocks, row, std::min(kAbsorbRows, count_ - row),
         scratch_.rows + worker * AbsorbedScratch::RowsOfWorker(p_));
    });
  }

  const void* Weight(int64_t head, int64_t row) const {
    return At(a_.kv_b, (head * (p_.nope + p_.v) + row) * a_.kv_b.strides[0]);
  }

  void AbsorbRows(int64_t head, int64_t row, int64_t rows, float* x) {
    const int64_t to_pitch = p_.heads * Width();
    float* to = scratch_.q + row * to_pitch + head * Width();
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t q = scratch_.tokens[row + r] * a_.q.strides[0] + head * a_.q.strides[1];
      ConvertRow(At(a_.q, q), p_.io, x + r * p_.nope, DType::kF32, p_.nope);
      ConvertRow(At(a_.q, q + p_.nope), p_.io, to + r * to_pitch + p_.rank, DType::kF32, p_.rope);
    }
    Absorb(x, p_.nope, rows, Weight(head, 0), p_.weight, a_.kv_b.strides[0], p_.nope, p_.rank, to, to_pitch);
  }

  void ProjectRows(int64_t head, int64_t row, int64_t rows, float* x) {
    const int64_t from_pitch = int64_t{p_.heads} * p_.rank;
    Project(scratch_.o + row * from_pitch + head * p_.rank, from_pitch, rows, Weight(head, p_.nope), p_.weight,
            a_.kv_b.strides[0], p_.rank, p_.v, x, p_.v);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t out = scratch_.tokens[row + r] * a_.out.strides[0] + head * a_.out.strides[1];
      ConvertRow(x + r * p_.v, DType::kF32, MutableAt(a_.out, out), p_.io, p_.v);
    }
  }

  Stream& stream_;
  const Problem& p_;
  const Args& a_;
  Arena& arena_;
  AbsorbedScratch scratch_;
  int64_t count_ = 0, pieces_ = 0;
};

/// One sequence in the expanded form.
Status ExpandSequence(Stream& stream, const Problem& p, const Args& a, int32_t n, Arena& arena) {
  const KvPlan& plan = *a.plan;
  const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first, context = plan.contexts()[n];
  const int64_t keys = context + length, d_qk = p.nope + p.rope, heads = HeadsAtOnce(p);
  const size_t mark = arena.used();
  FLUVIAL_ASSIGN_OR_RETURN(void* latents_data, arena.Take(static_cast<size_t>(keys * p.rank * Bytes(p.kv))));
  FLUVIAL_ASSIGN_OR_RETURN(void* k_data, arena.Take(static_cast<size_t>(keys * heads * d_qk * Bytes(p.io))));
  FLUVIAL_ASSIGN_OR_RETURN(void* v_data, arena.Take(static_cast<size_t>(keys * heads * p.v * Bytes(p.io))));
  const TensorView latents(latents_data, p.kv, {keys, p.rank});
  const auto pages = plan.pages(n);
  auto cached = [&](int64_t position) {
    return pages[position / p.page_size] * a.pages.strides[0] + position % p.page_size * a.pages.strides[1];
  };
  constexpr int64_t kKeys = 64;  // per task
  auto for_keys = [&](auto&& fn) {
    stream.pool().ParallelFor((keys + kKeys - 1) / kKeys, [&](int64_t task, int) {
      for (int64_t j = task * kKeys; j < std::min(keys, (task + 1) * kKeys); ++j) fn(j);
    });
  };
  for_keys([&](int64_t j) { ConvertRow(At(a.pages, cached(j)), p.kv, MutableAt(latents, j * p.rank), p.kv, p.rank); });

  auto expand = [&](int64_t weight_row, int64_t columns, const TensorView& y) -> Status {
    const gemm::Problem g = ExpandProblem(p, keys, columns);
    const gemm::GemmBackend* body = ExpandBody(g, stream.device());
    if (body == nullptr) return Status::Refused(std::string(kOpName) + ": no gemm expands " + g.ToString());
    gemm::Args args;
    args.x = latents;
    args.w = TensorView(const_cast<char*>(At(a.kv_b, weight_row * a.kv_b.strides[0])), p.weight, {columns, p.rank},
                        {a.kv_b.strides[0], 1});
    args.y = y;
    const size_t bytes = body->workspace_bytes(g, stream.device()), gemm_mark = arena.used();
    FLUVIAL_ASSIGN_OR_RETURN(void* scratch, arena.Take(bytes));
    FLUVIAL_RETURN_IF_ERROR(body->run(stream, g, args, {scratch, bytes}));
    arena.Rewind(gemm_mark);
    return Status::Ok();
  };
  for (int64_t head = 0; head < p.heads; head += heads) {
    const int64_t group = std::min<int64_t>(heads, p.heads - head);
    const TensorView k(k_data, p.io, {1, group, keys, d_qk}, {0, d_qk, group * d_qk, 1});
    const TensorView v(v_data, p.io, {1, group, keys, p.v}, {0, p.v, group * p.v, 1});
    for (int64_t h = 0; h < group; ++h) {
      const int64_t row = (head + h) * (p.nope + p.v);
      FLUVIAL_RETURN_IF_ERROR(
          expand(row, p.nope, TensorView(MutableAt(k, h * d_qk), p.io, {keys, p.nope}, {group * d_qk, 1})));
      FLUVIAL_RETURN_IF_ERROR(
          expand(row + p.nope, p.v, TensorView(MutableAt(v, h * p.v), p.io, {keys, p.v}, {group * p.v, 1})));
    }
    if (p.rope > 0) {
      for_keys([&](int64_t j) {
        for (int64_t h = 0; h < group; ++h) {
          ConvertRow(At(a.pages, cached(j) + p.rank), p.kv, MutableAt(k, (j * group + h) * d_qk + p.nope), p.io,
                     p.rope);
        }
      });
    }
    paged_attention::Args args;
    args.q = TensorView(MutableAt(a.q, head * a.q.strides[1]), p.io, {p.tokens, group, d_qk},
                        {a.q.strides[0], a.q.strides[1], 1});
    args.out = TensorView(MutableAt(a.out, head * a.out.strides[1]), p.io, {p.tokens, group, p.v},
                          {a.out.strides[0], a.out.strides[1], 1});
    args.k_pages = k;
    args.v_pages = v;
    const Piece piece{first, length, context, kPageZero};
    const size_t paged_mark = arena.used();
    FLUVIAL_RETURN_IF_ERROR(RunPieces(stream, ExpandedProblem(p, group), args, {&piece, 1}, arena));
    arena.Rewind(paged_mark);
  }
  arena.Rewind(mark);
  return Status::Ok();
}

size_t ExpandedBytes(const Problem& p, const DeviceInfo& device) {
  const int64_t keys = p.max_kv_length, heads = HeadsAtOnce(p), d_qk = p.nope + p.rope;
  size_t paged = 0;
  for (const int64_t group : {heads, int64_t{p.heads} % heads}) {
    if (group > 0) paged = std::max(paged, PiecesWorkspace(ExpandedProblem(p, group), device));
  }
  return Arena::Aligned(static_cast<size_t>(keys * p.rank * Bytes(p.kv))) +
         Arena::Aligned(static_cast<size_t>(keys * heads * d_qk * Bytes(p.io))) +
         Arena::Aligned(static_cast<size_t>(keys * heads * p.v * Bytes(p.io))) +
         std::max(Arena::Aligned(ExpandGemmBytes(p, device)), Arena::Aligned(paged));
}

size_t AbsorbedBytes(const Problem& p, const DeviceInfo& device) {
  const int threads = std::max(1, device.multiprocessors);
  return AbsorbedScratch(p, threads, nullptr).bytes + Arena::Aligned(PiecesWorkspace(AbsorbedProblem(p), device));
}

Status RunForm(Stream& stream, const Problem& p, const Args& a, Workspace workspace, Form form) {
  if (p.tokens == 0) return Status::Ok();
  Arena arena(workspace.data, workspace.bytes);
  const KvPlan& plan = *a.plan;
  auto length = [&](int32_t n) { return plan.offsets()[n + 1] - plan.offsets()[n]; };
  const Problem dense = DenseProblem(p);
  bool absorbs = false;
  for (int32_t n = 0; n < p.sequences; ++n) {
    if (length(n) == 0) continue;
    if (Expands(p, a, form, n)) {
      FLUVIAL_RETURN_IF_ERROR(ExpandSequence(stream, dense, a, n, arena));
    } else {
      absorbs = true;
    }
  }
  if (!absorbs) return Status::Ok();
  AbsorbedRunner runner(stream, p, a, arena);
  FLUVIAL_RETURN_IF_ERROR(runner.status());
  for (int32_t n = 0; n < p.sequences; ++n) {
    if (length(n) > 0 && !Expands(p, a, form, n)) FLUVIAL_RETURN_IF_ERROR(runner.Add(n));
  }
  return runner.Flush();
}

/// Multiply-adds per key, head and query, at the rates of the paged kernels and of the gemm (README.md).
double Cost(const Problem& p, const DeviceInfo& device, Form form) {
  const double pairs = p.selected > 0 ? static_cast<double>(p.tokens) * p.selected : static_cast<double>(p.pairs);
  const double keys = static_cast<double>(p.pairs) / static_cast<double>(std::max<int64_t>(p.max_length, 1));
  const double absorbed = pairs * (2.0 * p.rank + p.rope) + static_cast<double>(p.tokens) * p.rank * (p.nope + p.v);
  const double expanded = pairs * (p.nope + p.rope + p.v) + keys * p.rank * (p.nope + p.v) / 1.5;
  const double flops = 2.0 * p.heads *
                       (form == Form::kAbsorbed || p.selected > 0 ? absorbed
                        : form == Form::kExpanded                 ? expanded
                                                                  : std::min(absorbed, expanded));
  // `cpu` is either of them, sequence by sequence; the pure forms are for those who name them.
  return (form == Form::kByLength ? 2.0 : 3.0) + flops / 200e3 / std::max(1, device.multiprocessors);
}

Check OnCpu(const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCpu) return Check::Accept();
  return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
}

}  // namespace

Check AbsorbedCheck(const Problem&, const DeviceInfo& device) { return OnCpu(device); }
size_t AbsorbedWorkspace(const Problem& p, const DeviceInfo& device) { return AbsorbedBytes(p, device); }
double AbsorbedCost(const Problem& p, const DeviceInfo& device) { return Cost(p, device, Form::kAbsorbed); }
Status AbsorbedRun(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  return RunForm(stream, p, a, workspace, Form::kAbsorbed);
}

Check ExpandedCheck(const Problem& p, const DeviceInfo& device) {
  if (p.selected > 0) {
    return Check::Refuse("expands every key, but selected=" + std::to_string(p.selected) +
                         " keys per query are listed");
  }
  return OnCpu(device);
}
size_t ExpandedWorkspace(const Problem& p, const DeviceInfo& device) { return ExpandedBytes(p, device); }
double ExpandedCost(const Problem& p, const DeviceInfo& device) { return Cost(p, device, Form::kExpanded); }
Status ExpandedRun(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  return RunForm(stream, p, a, workspace, Form::kExpanded);
}

Check CpuCheck(const Problem&, const DeviceInfo& device) { return OnCpu(device); }
size_t CpuWorkspace(const Problem& p, const DeviceInfo& device) {
  const Problem dense = DenseProblem(p);
  const bool may_expand = dense.max_length >= Crossover(p);
  return std::max(AbsorbedBytes(p, device), may_expand ? ExpandedBytes(dense, device) : 0);
}
double CpuCost(const Problem& p, const DeviceInfo& device) { return Cost(p, device, Form::kByLength); }
Status CpuRun(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  return RunForm(stream, p, a, workspace, Form::kByLength);
}

}  // namespace fluvial::ops::mla_attention::internal
