// SPDX-License-Identifier: Apache-2.0
// The blocked driver of the room's own kernels: cuts (M, N, K) for the caches and the threads, converts x when the
// kernel wants another type, adds the bias and rounds.
//
// Weights are never copied: a task takes some rows of w, which then lie in L2 (or come from memory once), and walks
// over all rows of x in tiles that stay in L1. README.md has the reasoning and the measured figures.
#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/gemm/backends.h"
#include "ops/gemm/kernels.h"

namespace fluvial::ops::gemm {
namespace {

// Rows of x per task: bounds the fp32 scratch. A multiple of every kernel's tile.
constexpr int64_t kMaxRows = 256;
// Rows of w per task: a multiple of the widths of all tiles (3, 6, 8).
constexpr int64_t kRowStep = 24;
constexpr int64_t kMaxColumns = 120;
// Bytes of w that a task holds in L2 while x passes by.
constexpr int64_t kWeightBytes = 256 << 10;
// Enough tasks that the last ones balance.
constexpr int64_t kTasksPerThread = 6;
// x is converted in the calling thread up to this many elements: waking the pool costs more.
constexpr int64_t kSerialConvert = 16384;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Blocking {
  int64_t rows = 0;     // of x per task
  int64_t columns = 0;  // rows of w per task
};

Blocking Cut(const Problem& p, const Kernel& kernel, int threads) {
  Blocking b;
  b.rows = std::min(p.m, kMaxRows);
  // Few rows: the whole width of w is read once, so the task's share counts all of K. Many rows: one block of K.
  const int64_t width = (p.m <= kernel.tile_m ? p.k : std::min(p.k, kernel.k_block)) * int64_t(SizeOf(p.w));
  b.columns = std::clamp(kWeightBytes / std::max<int64_t>(width, 1) / kRowStep * kRowStep, kRowStep, kMaxColumns);
  const int64_t row_tasks = CeilDiv(p.m, b.rows);
  while (b.columns > kRowStep && row_tasks * CeilDiv(p.n, b.columns) < kTasksPerThread * threads) b.columns -= kRowStep;
  return b;
}

// Layout of the workspace: x as the kernel reads it (when it must be converted), then one fp32 tile per thread.
size_t ConvertedBytes(const Problem& p, const Kernel& kernel) {
  return kernel.x == p.x ? 0 : Arena::Aligned(size_t(p.m) * size_t(p.k) * sizeof(float));
}
size_t TileBytes(const Problem& p) {
  return Arena::Aligned(size_t(std::min(p.m, kMaxRows)) * size_t(kMaxColumns) * sizeof(float));
}
size_t Bytes(const Problem& p, const Kernel& kernel, int threads) {
  return ConvertedBytes(p, kernel) + TileBytes(p) * size_t(threads);
}

template <class T>
T* Offset(void* p, int64_t elements, DType dtype) {
  return reinterpret_cast<T*>(static_cast<char*>(p) + elements * int64_t(SizeOf(dtype)));
}

Status RunBlocked(Stream& stream, const Problem& p, const Args& a, Workspace workspace, const Kernel& kernel) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  if (p.m == 0 || p.n == 0) return Status::Ok();
  ThreadPool& pool = stream.pool();
  const int threads = pool.threads();
  Arena arena(workspace.data, workspace.bytes);

  const void* x = a.x.data;
  int64_t xs = a.x.stride(0);
  if (kernel.x != p.x) {
    FLUVIAL_ASSIGN_OR_RETURN(void* room, arena.Take(ConvertedBytes(p, kernel)));
    float* converted = static_cast<float*>(room);
    auto convert = [&](int64_t i, int) {
      ToFloatRow(Offset<const void>(a.x.data, i * a.x.stride(0), p.x), p.x, p.k, converted + i * p.k);
    };
    if (p.m * p.k <= kSerialConvert) {
      for (int64_t i = 0; i < p.m; ++i) convert(i, 0);
    } else {
      pool.ParallelFor(p.m, convert);
    }
    x = converted;
    xs = p.k;
  }
  FLUVIAL_ASSIGN_OR_RETURN(void* tiles, arena.Take(TileBytes(p) * size_t(threads)));

  const Blocking cut = Cut(p, kernel, threads);
  const int64_t row_tasks = CeilDiv(p.m, cut.rows);
  const int64_t column_tasks = CeilDiv(p.n, cut.columns);
  pool.ParallelFor(row_tasks * column_tasks, [&](int64_t task, int worker) {
    // Consecutive tasks share rows of w across the blocks of x, so that w leaves memory once.
    const int64_t i0 = task % row_tasks * cut.rows;
    const int64_t j0 = task / row_tasks * cut.columns;
    const int64_t m = std::min(cut.rows, p.m - i0);
    const int64_t n = std::min(cut.columns, p.n - j0);
    float* c = static_cast<float*>(tiles) + worker * int64_t(TileBytes(p) / sizeof(float));
    // K = 0 still runs one (empty) block: it writes the zeros.
    for (int64_t l0 = 0; l0 == 0 || l0 < p.k; l0 += kernel.k_block) {
      kernel.block(Offset<const void>(const_cast<void*>(x), i0 * xs + l0, kernel.x), xs,
                   Offset<const void>(a.w.data, j0 * a.w.stride(0) + l0, p.w), a.w.stride(0), m, n,
                   std::min(kernel.k_block, p.k - l0), c, n, l0 == 0);
    }
    const void* bias = p.has_bias ? Offset<const void>(a.bias.data, j0, p.bias) : nullptr;
    for (int64_t i = 0; i < m; ++i) {
      FinishRow(c + i * n, bias, p.bias, n, Offset<void>(a.y.data, (i0 + i) * a.y.stride(0) + j0, p.y), p.y);
    }
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
