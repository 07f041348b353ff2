// SPDX-License-Identifier: Apache-2.0
// The blocked driver of the room's own kernels: cuts (M, N, K) for the caches and the threads, converts x when the
// kernel wants another type, adds the bias and rounds.
//
// No second copy of the weights is kept: a task transposes some rows of w into a panel, piece by piece, and multiplies
// all its rows of x with each piece. That costs little even for one row, which waits for memory anyway. README.md has
// the reasoning and the measured figures.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "ops/gemm/backends.h"
#include "ops/gemm/kernels.h"

namespace fluvial::ops::gemm {
namespace {

// Rows of x per task, at most: bounds the fp32 sums, which lie in L2 with the panel and the piece of x. More rows mean
// that a panel is packed less often.
constexpr int64_t kMaxRows = 768;
constexpr int64_t kMinRows = 96;
// Enough tasks that the last ones balance.
constexpr int64_t kTasksPerThread = 4;
// Elements of k per panel. Few rows: a panel that stays in L1, used at once. Many: fewer trips of the sums to memory.
constexpr int64_t kShortChunk = 128;
constexpr int64_t kLongChunk = 512;
constexpr int64_t kFewRows = 16;
static_assert(kSumBlock % kShortChunk == 0 && kSumBlock == kLongChunk);
// x is converted in the calling thread up to this many elements: waking the pool costs more.
constexpr int64_t kSerialConvert = 16384;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// x as the kernel reads it is a copy when its type differs, or when k is odd and steps are pairs.
bool CopiesX(const Problem& p, const Kernel& kernel) { return kernel.x != p.x || p.k % kernel.pair != 0; }
int64_t CopyPitch(const Problem& p, const Kernel& kernel) { return CeilDiv(p.k, kernel.pair) * kernel.pair; }

// Layout of the workspace: the copy of x, then per thread a panel and two tiles of sums.
size_t CopyBytes(const Problem& p, const Kernel& kernel) {
  return CopiesX(p, kernel) ? Arena::Aligned(size_t(p.m) * size_t(CopyPitch(p, kernel)) * SizeOf(kernel.x)) : 0;
}
size_t PanelBytes(const Kernel& kernel) {
  return Arena::Aligned(size_t(kLongChunk * kernel.columns * kernel.panel_bytes));
}
// Sums of a block are kept apart from the totals only where chunks are shorter than blocks.
size_t BlockBytes(const Kernel& kernel) { return Arena::Aligned(size_t(kFewRows * kernel.columns) * sizeof(float)); }
size_t TotalBytes(const Problem& p, const Kernel& kernel) {
  return Arena::Aligned(size_t(std::min(p.m, kMaxRows) * kernel.columns) * sizeof(float));
}
size_t ScratchBytes(const Problem& p, const Kernel& kernel) {
  return PanelBytes(kernel) + BlockBytes(kernel) + TotalBytes(p, kernel);
}
size_t Bytes(const Problem& p, const Kernel& kernel, int threads) {
  // The copy is counted for every problem, so that a smaller k never needs more than a larger one.
  Problem odd = p;
  odd.k = p.k | 1;
  return std::max(CopyBytes(p, kernel), CopyBytes(odd, kernel)) + ScratchBytes(p, kernel) * size_t(threads);
}

int64_t RowsPerTask(const Problem& p, const Kernel& kernel, int threads) {
  int64_t rows = std::min(p.m, kMaxRows);
  const int64_t panels = CeilDiv(p.n, kernel.columns);
  // Halves that stay multiples of the tallest tile.
  while (rows >= 2 * kMinRows && panels * CeilDiv(p.m, rows) < kTasksPerThread * threads) {
    rows = CeilDiv(rows / 2, 8) * 8;
  }
  return rows;
}

template <class T>
T* Offset(T* p, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(p) + elements * int64_t(SizeOf(dtype));
}

struct Scratch {
  void* panel = nullptr;
  float* block = nullptr;
  float* total = nullptr;
};

// Rows i0..i0+m of x with rows j0..j0+n of w (at most one panel).
void RunTask(const Problem& p, const Args& a, const Kernel& kernel, const void* x, int64_t xs, int64_t i0, int64_t m,
             int64_t j0, int64_t n, const Scratch& s) {
  const int64_t ws = a.w.stride(0);
  const void* w = Offset<const void>(a.w.data, j0 * ws, p.w);
  const int64_t chunk = m <= kFewRows ? kShortChunk : kLongChunk;
  // K = 0 still runs one empty chunk: it writes the zeros.
  for (int64_t l0 = 0; l0 == 0 || l0 < p.k; l0 += chunk) {
    const int64_t k = std::min(chunk, p.k - l0);
    kernel.pack(Offset(w, l0, p.w), ws, n, k, s.panel);
    // The next piece in memory: of these rows, or of the next panel's.
    const int64_t next = l0 + chunk;
    const bool same_rows = next < p.k;
    Ahead ahead;
    if (same_rows || j0 + 2 * n <= p.n) {
      ahead.base = static_cast<const char*>(same_rows ? Offset(w, next, p.w) : Offset(w, n * ws, p.w));
      ahead.pitch = ws * int64_t(SizeOf(p.w));
      ahead.rows = n;
      // One more for rows that do not begin with a line.
      ahead.lines = CeilDiv(std::min(chunk, same_rows ? p.k - next : p.k) * int64_t(SizeOf(p.w)), 64) + 1;
    }
    const bool ends_block = l0 + k == p.k || (l0 + k) % kSumBlock == 0;
    kernel.multiply(Offset<const void>(x, i0 * xs + l0, kernel.x), xs, s.panel, m, n, k, s.block, l0 % kSumBlock == 0,
                    ends_block ? s.total : nullptr, l0 < kSumBlock, ahead);
  }
  const void* bias = p.has_bias ? Offset<const void>(a.bias.data, j0, p.bias) : nullptr;
  FinishTile(s.total, kernel.columns, bias, p.bias, m, n, Offset(a.y.data, i0 * a.y.stride(0) + j0, p.y), a.y.stride(0),
             p.y);
}

Status RunBlocked(Stream& stream, const Problem& p, const Args& a, Workspace workspace, const Kernel& kernel) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  if (p.m == 0 || p.n == 0) return Status::Ok();
  ThreadPool& pool = stream.pool();
  Arena arena(workspace.data, workspace.bytes);

  const void* x = a.x.data;
  int64_t xs = a.x.stride(0);
  if (CopiesX(p, kernel)) {
    const int64_t pitch = CopyPitch(p, kernel);
    FLUVIAL_ASSIGN_OR_RETURN(void* copy, arena.Take(CopyBytes(p, kernel)));
    auto convert = [&](int64_t i, int) {
      const void* from = Offset<const void>(a.x.data, i * a.x.stride(0), p.x);
      void* to = Offset(copy, i * pitch, kernel.x);
      if (kernel.x == p.x) {
        std::memcpy(to, from, size_t(p.k) * SizeOf(p.x));
      } else {
        ToFloatRow(from, p.x, p.k, static_cast<float*>(to));
      }
      std::memset(Offset(to, p.k, kernel.x), 0, size_t(pitch - p.k) * SizeOf(kernel.x));
    };
    if (p.m * p.k <= kSerialConvert) {
      for (int64_t i = 0; i < p.m; ++i) convert(i, 0);
    } else {
      pool.ParallelFor(p.m, convert);
    }
    x = copy;
    xs = pitch;
  }

  const size_t bytes = ScratchBytes(p, kernel);
  FLUVIAL_ASSIGN_OR_RETURN(void* scratch, arena.Take(bytes * size_t(pool.threads())));
  const int64_t rows = RowsPerTask(p, kernel, pool.threads());
  const int64_t row_tasks = CeilDiv(p.m, rows);
  pool.ParallelFor(row_tasks * CeilDiv(p.n, kernel.columns), [&](int64_t task, int worker) {
    // Consecutive tasks share rows of w, so that they leave memory once.
    const int64_t i0 = task % row_tasks * rows, j0 = task / row_tasks * kernel.columns;
    char* mine = static_cast<char*>(scratch) + bytes * size_t(worker);
    const Scratch s = {mine, reinterpret_cast<float*>(mine + PanelBytes(kernel)),
                       reinterpret_cast<float*>(mine + PanelBytes(kernel) + BlockBytes(kernel))};
    RunTask(p, a, kernel, x, xs, i0, std::min(rows, p.m - i0), j0, std::min(kernel.columns, p.n - j0), s);
  });
  return Status::Ok();
}

Check CheckPlain(const Problem& p, const DeviceInfo& device) {
  if (Check c = CheckCpu(device); !c.ok()) return c;
  if (p.packed) return Check::Refuse("reads weights in place, got a packed weight");
  return Check::Accept();
}

Check CheckBf16(const Problem& p, const DeviceInfo& device) {
  if (Check c = CheckPlain(p, device); !c.ok()) return c;
  if (p.x != DType::kBF16 || p.w != DType::kBF16) {
    return Check::Refuse("takes bf16 x and w, got x=" + std::string(Name(p.x)) + " w=" + std::string(Name(p.w)));
  }
  if (!HaveBf16Kernel()) return Check::Refuse("this CPU (or build) has no AVX512-BF16");
  return Check::Accept();
}

size_t CpuWorkspace(const Problem& p, const DeviceInfo& d) {
  return Bytes(p, SimdKernel(p.w), std::max(1, d.multiprocessors));
}
size_t Bf16Workspace(const Problem& p, const DeviceInfo& d) {
  return Bytes(p, Bf16Kernel(), std::max(1, d.multiprocessors));
}
double CpuCost(const Problem& p, const DeviceInfo& d) { return CostUs(CostClass::kCpuFp32, p, d); }
double Bf16Cost(const Problem& p, const DeviceInfo& d) { return CostUs(CostClass::kCpuBf16, p, d); }

Status RunCpu(Stream& s, const Problem& p, const Args& a, Workspace w) {
  return RunBlocked(s, p, a, w, SimdKernel(p.w));
}
Status RunBf16(Stream& s, const Problem& p, const Args& a, Workspace w) { return RunBlocked(s, p, a, w, Bf16Kernel()); }

}  // namespace

const GemmBackend& CpuBackend() {
  static constexpr GemmBackend backend = {
      "cpu", "blocked fp32 FMA (Highway), any types, weights in place", CheckPlain, CpuWorkspace, CpuCost, RunCpu};
  return backend;
}

const GemmBackend& CpuBf16Backend() {
  static constexpr GemmBackend backend = {
      "cpu_bf16", "blocked native bf16 dot products (AVX512-BF16), weights in place",
      CheckBf16,  Bf16Workspace,
      Bf16Cost,   RunBf16};
  return backend;
}

}  // namespace fluvial::ops::gemm
