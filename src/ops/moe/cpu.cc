// SPDX-License-Identifier: Apache-2.0
// Tokens grouped by expert, one GEMM per expert and piece, threads over the pieces.
//
// A block of tokens at a time: (1) count and place the rows of each expert, (2) copy its rows of x together, (3) gate
// and up, activation, (4) down, (5) the weighted sum of each token's rows. Only experts that somebody named are
// touched, and in a step of few tokens their weights stream by once. GEMMs run in the worker that holds the piece, so
// they see one thread; which piece a worker takes changes no bits.
#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "ops/elementwise/elementwise.h"
#include "ops/gemm/gemm.h"
#include "ops/moe/backends.h"
#include "ops/moe/combine.h"
#include "ops/moe/turn.h"

namespace fluvial::ops::moe {
namespace {

// Tokens of a block: bounds the workspace. Weights are read once per block, and a block is long enough for that to cost
// little (with 512 experts and 10 per token each expert has 20 rows).
constexpr int64_t kBlockTokens = 1024;
// Rows of one expert in a piece: bounds a GEMM's scratch and shares out an expert that everybody wants.
constexpr int64_t kPieceRows = 256;
// Pieces per thread to aim for, by cutting outputs; a cut is a multiple of this many columns.
constexpr int64_t kPiecesPerThread = 4;
constexpr int64_t kCutColumns = 64;
// Columns of an input-major weight that are turned at a time.
constexpr int64_t kTurnColumns = 96;

/// Elements between turned rows: an odd number of cache lines, or the rows of a power-of-two K share few sets of L1.
int64_t TurnPitch(int64_t k, int64_t size) { return ((k * size + 63) / 64 | 1) * 64 / size; }
// Vectors and rows this cheap are not worth waking the pool for.
constexpr int64_t kSerialElements = 16384;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The calling worker alone. A pool of one thread keeps no state, so all workers may share it.
class SerialStream : public Stream {
 public:
  const DeviceInfo& device() const override { return info_; }
  Status Synchronize() override { return Status::Ok(); }
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_{1};
  DeviceInfo info_ = CpuDeviceInfo(1);
};

SerialStream& Serial() {
  static SerialStream& stream = *new SerialStream;
  return stream;
}

gemm::Problem GemmProblem(const Problem& p, int64_t m, int64_t n, int64_t k) {
  gemm::Problem g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.x = g.y = p.io;
  g.w = p.w;
  return g;
}

/// The body for all GEMMs of a problem: the fastest of the room's own. Not oneDNN: its threads are not ours, and its
/// sums depend on the batch.
const gemm::GemmBackend* InnerGemm(const Problem& p) {
  const gemm::GemmBackend* best = nullptr;
  const gemm::Problem typical = GemmProblem(p, 8, p.inter, p.hidden);
  const DeviceInfo& device = Serial().device();
  double best_us = 0;
  for (const gemm::GemmBackend& b : gemm::Backends()) {
    if (!b.name.starts_with("cpu") || !b.check(typical, device).ok()) continue;
    const double us = b.cost_us(typical, device);
    if (best == nullptr || us < best_us) {
      best = &b;
      best_us = us;
    }
  }
  return best;
}

bool Turns(const Problem& p) { return p.gate_up == Layout::kInputMajor || p.down == Layout::kInputMajor; }

/// The parts of the workspace; one list for its size and its use.
struct Room {
  int64_t* offsets = nullptr;  // E + 1: first row of an expert
  int64_t* pieces = nullptr;   // E + 1: first piece of an expert
  int32_t* tokens = nullptr;   // row -> token of the block
  int32_t* rows = nullptr;     // token, slot -> row, or -1
  char* x = nullptr;           // rows of x; then outputs of the experts
  char* gate_up = nullptr;     // [rows, 2I]
  char* workers = nullptr;     // per worker: GEMM scratch, then turned weights
  size_t gemm_bytes = 0;
  size_t worker_bytes = 0;
};

template <class TakeFn>
Room Lay(const Problem& p, const gemm::GemmBackend& inner, int threads, TakeFn take) {
  const int64_t block = std::min(p.tokens, kBlockTokens), rows = block * p.per_token;
  const int64_t piece = std::min(rows, kPieceRows);
  const size_t size = SizeOf(p.io);
  const DeviceInfo& device = Serial().device();
  Room r;
  r.offsets = static_cast<int64_t*>(take((size_t(p.experts) + 1) * sizeof(int64_t)));
  r.pieces = static_cast<int64_t*>(take((size_t(p.experts) + 1) * sizeof(int64_t)));
  r.tokens = static_cast<int32_t*>(take(size_t(rows) * sizeof(int32_t)));
  r.rows = static_cast<int32_t*>(take(size_t(rows) * sizeof(int32_t)));
  r.x = static_cast<char*>(take(size_t(rows) * size_t(p.hidden) * size));
  r.gate_up = static_cast<char*>(take(size_t(rows) * size_t(2 * p.inter) * size));
  r.gemm_bytes = Arena::Aligned(std::max(inner.workspace_bytes(GemmProblem(p, piece, 2 * p.inter, p.hidden), device),
                                         inner.workspace_bytes(GemmProblem(p, piece, p.hidden, p.inter), device)));
  r.worker_bytes = r.gemm_bytes;
  if (Turns(p)) {
    const auto w = int64_t(SizeOf(p.w));
    r.worker_bytes += Arena::Aligned(size_t(kTurnColumns * TurnPitch(std::max(p.hidden, p.inter), w) * w));
  }
  r.workers = static_cast<char*>(take(r.worker_bytes * size_t(threads)));
  return r;
}

Check CheckCpuBody(const Problem& p, const DeviceInfo& device) {
  if (Check c = CheckCpu(device); !c.ok()) return c;
  if (InnerGemm(p) == nullptr) {
    return Check::Refuse("no gemm body of this room's own takes x=" + std::string(Name(p.io)) +
                         " w=" + std::string(Name(p.w)));
  }
  return Check::Accept();
}

size_t WorkspaceBytes(const Problem& p, const DeviceInfo& device) {
  size_t bytes = 0;
  Lay(p, *InnerGemm(p), std::max(1, device.multiprocessors), [&](size_t n) -> void* {
    bytes += Arena::Aligned(n);
    return nullptr;
  });
  return bytes;
}

/// Rows of one expert, and which part of their outputs.
struct Piece {
  int64_t expert, row, rows, column, columns;
};

class Call {
 public:
  Call(Stream& stream, const Problem& p, const Args& a, const gemm::GemmBackend& inner, const Room& room)
      : stream_(stream), p_(p), a_(a), inner_(inner), room_(room), size_(int64_t(SizeOf(p.io))) {}

  Status Block(int64_t begin, int64_t count) {
    FLUVIAL_RETURN_IF_ERROR(Place(begin, count));
    Gather(begin);
    ForEachPiece(p_.inter, [&](const Piece& piece, int worker) { GateUp(piece, worker); });
    ForEachPiece(p_.hidden, [&](const Piece& piece, int worker) { Down(piece, worker); });
    FLUVIAL_RETURN_IF_ERROR(status_);
    Sum(begin, count);
    return Status::Ok();
  }

 private:
  int32_t Id(int64_t token, int64_t slot) const {
    return static_cast<const int32_t*>(a_.ids.data)[token * a_.ids.stride(0) + slot];
  }
  float Weight(int64_t token, int64_t slot) const {
    return static_cast<const float*>(a_.weights.data)[token * a_.weights.stride(0) + slot];
  }

  /// Rows in order of expert, then token.
  Status Place(int64_t begin, int64_t count) {
    std::fill(room_.offsets, room_.offsets + p_.experts + 1, int64_t{0});
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t k = 0; k < p_.per_token; ++k) {
        const int32_t id = Id(begin + t, k);
        if (id >= p_.experts) {
          return Status::InvalidArgument("moe: ids[" + std::to_string(begin + t) + "," + std::to_string(k) +
                                         "]=" + std::to_string(id) + ": must lie below " + std::to_string(p_.experts));
        }
        if (id >= 0) ++room_.offsets[id + 1];
      }
    }
    for (int64_t e = 0; e < p_.experts; ++e) room_.offsets[e + 1] += room_.offsets[e];
    rows_ = room_.offsets[p_.experts];
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t k = 0; k < p_.per_token; ++k) {
        const int32_t id = Id(begin + t, k);
        int32_t& row = room_.rows[t * p_.per_token + k];
        row = -1;
        if (id < 0) continue;
        // The start of an expert moves to its end, which is the start of the next.
        row = static_cast<int32_t>(room_.offsets[id]++);
        room_.tokens[row] = static_cast<int32_t>(t);
      }
    }
    for (int64_t e = p_.experts; e > 0; --e) room_.offsets[e] = room_.offsets[e - 1];
    room_.offsets[0] = room_.pieces[0] = 0;
    for (int64_t e = 0; e < p_.experts; ++e) {
      room_.pieces[e + 1] = room_.pieces[e] + CeilDiv(room_.offsets[e + 1] - room_.offsets[e], kPieceRows);
    }
    return Status::Ok();
  }

  void Gather(int64_t begin) {
    const int64_t bytes = p_.hidden * size_, pitch = a_.x.stride(0) * size_;
    Parallel(rows_, p_.hidden, [&](int64_t row, int) {
      std::memcpy(room_.x + row * bytes, static_cast<const char*>(a_.x.data) + (begin + room_.tokens[row]) * pitch,
                  size_t(bytes));
    });
  }

  template <class Fn>
  void Parallel(int64_t count, int64_t elements, Fn&& fn) {
    if (count * elements <= kSerialElements) {
      for (int64_t i = 0; i < count; ++i) fn(i, 0);
    } else {
      stream_.pool().ParallelFor(count, fn);
    }
  }

  /// Pieces in order of expert, row, column, so that neighbours share weights.
  template <class Fn>
  void ForEachPiece(int64_t columns, Fn&& fn) {
    const int64_t whole = room_.pieces[p_.experts];
    if (whole == 0) return;
    const int threads = stream_.pool().threads();
    int64_t cuts = threads == 1 ? 1 : CeilDiv(kPiecesPerThread * threads, whole);
    cuts = std::clamp<int64_t>(cuts, 1, std::max<int64_t>(1, columns / kCutColumns));
    const int64_t width = CeilDiv(CeilDiv(columns, cuts), 16) * 16;
    cuts = CeilDiv(columns, width);
    stream_.pool().ParallelFor(whole * cuts, [&](int64_t index, int worker) {
      const int64_t piece = index / cuts, cut = index % cuts;
      Piece out;
      out.expert = std::upper_bound(room_.pieces, room_.pieces + p_.experts + 1, piece) - room_.pieces - 1;
      out.row = room_.offsets[out.expert] + (piece - room_.pieces[out.expert]) * kPieceRows;
      out.rows = std::min(kPieceRows, room_.offsets[out.expert + 1] - out.row);
      out.column = cut * width;
      out.columns = std::min(width, columns - out.column);
      fn(out, worker);
    });
  }

  void GateUp(const Piece& c, int worker) {
    const ExpertWeights& w = a_.experts[static_cast<size_t>(c.expert)];
    const TensorView x(room_.x + c.row * p_.hidden * size_, p_.io, {c.rows, p_.hidden});
    const TensorView both(room_.gate_up + c.row * 2 * p_.inter * size_, p_.io, {c.rows, 2 * p_.inter});
    const auto columns = [&](int64_t begin, int64_t count) {
      TensorView v = both;
      v.data = static_cast<char*>(v.data) + begin * size_;
      v.dims[1] = count;
      return v;
    };
    const TensorView gate = columns(c.column, c.columns), up = columns(p_.inter + c.column, c.columns);
    const char* after = static_cast<const char*>(w.gate.data) + p_.inter * w.gate.stride(0) * int64_t(SizeOf(p_.w));
    if (c.columns == p_.inter && p_.gate_up == Layout::kOutputMajor && w.up.data == after &&
        w.up.stride(0) == w.gate.stride(0)) {
      TensorView fused = w.gate;
      fused.dims[0] = 2 * p_.inter;
      Multiply(x, fused, both, worker);
    } else {
      Linear(x, w.gate, p_.gate_up, c.column, gate, worker);
      Linear(x, w.up, p_.gate_up, c.column, up, worker);
    }
    elementwise::GluArgs glu;
    if (p_.limit > 0) {
      glu.form = elementwise::GluArgs::Form::kClamped;
      glu.limit = p_.limit;
    }
    glu.gate = gate;
    glu.up = up;
    glu.y = gate;
    Keep(elementwise::Glu(Serial(), glu));
  }

  void Down(const Piece& c, int worker) {
    const ExpertWeights& w = a_.experts[static_cast<size_t>(c.expert)];
    const TensorView act(room_.gate_up + c.row * 2 * p_.inter * size_, p_.io, {c.rows, p_.inter}, {2 * p_.inter, 1});
    // Rows of x are not needed any more.
    const TensorView out(room_.x + (c.row * p_.hidden + c.column) * size_, p_.io, {c.rows, c.columns}, {p_.hidden, 1});
    Linear(act, w.down, p_.down, c.column, out, worker);
  }

  /// y = x w[column..column + columns of y)^T.
  void Linear(const TensorView& x, const TensorView& w, Layout layout, int64_t column, const TensorView& y,
              int worker) {
    const int64_t n = y.dim(1), k = w.dim(1), size = int64_t(SizeOf(p_.w));
    if (layout == Layout::kOutputMajor) {
      Multiply(x, TensorView(static_cast<char*>(w.data) + column * w.stride(0) * size, p_.w, {n, k}, {w.stride(0), 1}),
               y, worker);
      return;
    }
    const int64_t pitch = TurnPitch(k, size);
    char* turned = room_.workers + room_.worker_bytes * size_t(worker) + room_.gemm_bytes;
    for (int64_t j = 0; j < n; j += kTurnColumns) {
      const int64_t m = std::min(kTurnColumns, n - j);
      const char* from = static_cast<const char*>(w.data) + (column + j) * size;
      Turn(from, w.stride(1), k, m, size_t(size), turned, pitch);
      TensorView part = y;
      part.data = static_cast<char*>(y.data) + j * size_;
      part.dims[1] = m;
      Multiply(x, TensorView(turned, p_.w, {m, k}, {pitch, 1}), part, worker);
    }
  }

  void Multiply(const TensorView& x, const TensorView& w, const TensorView& y, int worker) {
    gemm::Args args;
    args.x = x;
    args.w = w;
    args.y = y;
    Keep(inner_.run(Serial(), GemmProblem(p_, x.dim(0), w.dim(0), w.dim(1)), args,
                    {room_.workers + room_.worker_bytes * size_t(worker), room_.gemm_bytes}));
  }

  void Sum(int64_t begin, int64_t count) {
    Parallel(count, p_.hidden * p_.per_token, [&](int64_t t, int) {
      // Rows rise with the expert's id, and within one with the slot.
      std::array<std::pair<int32_t, float>, kMaxPerToken> order;
      int64_t n = 0;
      for (int64_t k = 0; k < p_.per_token; ++k) {
        const int32_t row = room_.rows[t * p_.per_token + k];
        if (row < 0) continue;
        int64_t at = n++;
        for (; at > 0 && order[size_t(at - 1)].first > row; --at) order[size_t(at)] = order[size_t(at - 1)];
        order[size_t(at)] = {row, Weight(begin + t, k)};
      }
      std::array<Part, kMaxPerToken> parts;
      for (int64_t i = 0; i < n; ++i) {
        parts[size_t(i)] = {room_.x + order[size_t(i)].first * p_.hidden * size_, order[size_t(i)].second};
      }
      Combine(parts.data(), n, p_.io, p_.hidden, static_cast<char*>(a_.y.data) + (begin + t) * a_.y.stride(0) * size_);
    });
  }

  /// The first error of any worker.
  void Keep(const Status& status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
  }

  Stream& stream_;
  const Problem& p_;
  const Args& a_;
  const gemm::GemmBackend& inner_;
  const Room& room_;
  const int64_t size_;
  int64_t rows_ = 0;
  std::mutex mutex_;
  Status status_;
};

Status RunCpu(Stream& stream, const Problem& p, const Args& a, Workspace workspace) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  if (p.tokens == 0) return Status::Ok();
  const gemm::GemmBackend* inner = InnerGemm(p);
  if (inner == nullptr) return Status::Refused("moe: no gemm body takes this problem");
  Arena arena(workspace.data, workspace.bytes);
  Status taken;
  const Room room = Lay(p, *inner, stream.pool().threads(), [&](size_t bytes) -> void* {
    Result<void*> piece = arena.Take(bytes);
    if (piece.ok()) return *piece;
    if (taken.ok()) taken = piece.status();
    return nullptr;
  });
  FLUVIAL_RETURN_IF_ERROR(taken);
  Call call(stream, p, a, *inner, room);
  for (int64_t begin = 0; begin < p.tokens; begin += kBlockTokens) {
    FLUVIAL_RETURN_IF_ERROR(call.Block(begin, std::min(kBlockTokens, p.tokens - begin)));
  }
  return Status::Ok();
}

double Cost(const Problem& p, const DeviceInfo& device) {
  // What the GEMMs cost if every named expert has its fair share of the rows.
  const double active = std::max(1.0, ExpectedActive(p));
  const auto rows = static_cast<int64_t>(std::max(1.0, double(p.tokens) * p.per_token / active));
  const gemm::GemmBackend* inner = InnerGemm(p);
  DeviceInfo one = device;
  one.multiprocessors = 1;
  const double expert = inner->cost_us(GemmProblem(p, rows, 2 * p.inter, p.hidden), one) +
                        inner->cost_us(GemmProblem(p, rows, p.hidden, p.inter), one);
  return 3 + active * expert / std::max(1, device.multiprocessors);
}

}  // namespace

const MoeBackend& CpuBackend() {
  static constexpr MoeBackend backend = {
      "cpu", "tokens grouped by expert, a gemm per named expert, weights in place", CheckCpuBody, WorkspaceBytes, Cost,
      RunCpu};
  return backend;
}

}  // namespace fluvial::ops::moe
