// SPDX-License-Identifier: Apache-2.0
// The blocked driver of the room's own kernels: cuts (M, N, K) for the caches and the threads, converts x when the
// kernel wants another type, adds the bias and rounds.
//
// No second copy of the weights is kept. Few rows of x: weights stream by where they lie. Many: a task transposes some
// rows of w into a panel and multiplies all its rows of x with it. Both give the same bits. README.md has the reasoning
// and the measured figures.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "ops/gemm/backends.h"
#include "ops/gemm/kernels.h"

namespace fluvial::ops::gemm {
namespace {

// Rows of x per task: bounds the fp32 sums. More rows mean that a panel is packed less often.
constexpr int64_t kMaxRows = 768;
constexpr int64_t kMinRows = 96;
// Rows of w per task where they stream by.
constexpr int64_t kMaxColumns = 8 * kColumnGroup;
// Bytes of w that such a task holds in L2 while x passes by.
constexpr int64_t kWeightBytes = 256 << 10;
// Enough tasks that the last ones balance.
constexpr int64_t kTasksPerThread = 6;
// x is converted in the calling thread up to this many elements: waking the pool costs more.
constexpr int64_t kSerialConvert = 16384;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Cut {
  int64_t rows = 0;     // of x per task
  int64_t columns = 0;  // rows of w per task
};

Cut CutForPanels(const Problem& p, const Kernel& kernel, int threads) {
  Cut cut = {std::min(p.m, kMaxRows), kernel.columns};
  // Halves that stay multiples of the tallest tile.
  while (cut.rows >= 2 * kMinRows && CeilDiv(p.n, cut.columns) * CeilDiv(p.m, cut.rows) < kTasksPerThread * threads) {
    cut.rows = CeilDiv(cut.rows / 2, 8) * 8;
  }
  return cut;
}

Cut CutForStreaming(const Problem& p, const Kernel& kernel, int threads) {
  // One tile of x: w is read once, so the task's share counts all of K. More: one block of K stays in L2.
  const int64_t width = (p.m <= kernel.tile_rows ? p.k : std::min(p.k, kernel.k_block)) * int64_t(SizeOf(p.w));
  int64_t groups =
      std::clamp<int64_t>(kWeightBytes / std::max<int64_t>(width * kColumnGroup, 1), 1, kMaxColumns / kColumnGroup);
  const Cut cut = {std::min(p.m, kMaxRows), 0};
  while (groups > 1 && CeilDiv(p.m, cut.rows) * CeilDiv(p.n, groups * kColumnGroup) < kTasksPerThread * threads)
    --groups;
  return {cut.rows, groups * kColumnGroup};
}

bool UsesPanels(const Problem& p, const Kernel& kernel) { return kernel.pack != nullptr && p.m >= kernel.many_rows; }

// Rows of the copy of x: whole cache lines, an odd number of them, so that rows of a tile do not compete for few sets
// of L1; room for k padded to a multiple of the step.
int64_t CopyPitch(const Problem& p, const Kernel& kernel) {
  const int64_t line = 64 / int64_t(SizeOf(kernel.x));
  return (CeilDiv(p.k, line) | 1) * line;
}

// Layout of the workspace: the copy of x, then per thread a tile of sums and a panel. The parts that a problem does not
// use are counted all the same, so that a smaller problem never needs more.
size_t CopyBytes(const Problem& p, const Kernel& kernel) {
  return Arena::Aligned(size_t(p.m) * size_t(CopyPitch(p, kernel)) * SizeOf(kernel.x));
}
size_t SumBytes(const Problem& p) {
  return Arena::Aligned(size_t(std::min(p.m, kMaxRows)) * size_t(kMaxColumns) * sizeof(float));
}
size_t PanelBytes(const Kernel& kernel) {
  constexpr int64_t kLanes = 16, kLine = 64;  // a line after every lane
  return Arena::Aligned(size_t(kernel.k_block * kernel.columns) * SizeOf(kernel.x) + size_t(kLanes * kLine));
}
size_t Bytes(const Problem& p, const Kernel& kernel, int threads) {
  return CopyBytes(p, kernel) + (SumBytes(p) + PanelBytes(kernel)) * size_t(threads);
}

template <class T>
T* Offset(T* p, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(p) + elements * int64_t(SizeOf(dtype)));
}

void CopyX(ThreadPool& pool, const Problem& p, const TensorView& x, const Kernel& kernel, bool by_lane, void* copy) {
  const int64_t pitch = CopyPitch(p, kernel);
  auto row = [&](int64_t i, int) {
    const void* from = Offset<const void>(x.data, i * x.stride(0), p.x);
    void* to = Offset(copy, i * pitch, kernel.x);
    if (!by_lane) {
      ToFloatRow(from, p.x, p.k, static_cast<float*>(to));
      return;
    }
    for (int64_t l = 0; l < p.k; l += kernel.k_block) {
      kernel.arrange(Offset(from, l, p.x), p.x, std::min(kernel.k_block, p.k - l), Offset(to, l, kernel.x));
    }
  };
  if (p.m * p.k <= kSerialConvert) {
    for (int64_t i = 0; i < p.m; ++i) row(i, 0);
  } else {
    pool.ParallelFor(p.m, row);
  }
}

// One task: m rows of x from i0 on with n rows of w from j0 on.
struct Task {
  int64_t i0, m, j0, n;
};

// What all tasks of a call share.
struct Call {
  const Problem& p;
  const Args& a;
  const Kernel& kernel;
  const void* x;
  int64_t xs;

  const void* W(int64_t row, int64_t l) const { return Offset<const void>(a.w.data, row * a.w.stride(0) + l, p.w); }
  const void* X(int64_t row, int64_t l) const { return Offset(x, row * xs + l, kernel.x); }

  void Finish(const Task& t, const float* sums, int64_t pitch) const {
    const void* bias = p.has_bias ? Offset<const void>(a.bias.data, t.j0, p.bias) : nullptr;
    FinishTile(sums, pitch, bias, p.bias, t.m, t.n, Offset(a.y.data, t.i0 * a.y.stride(0) + t.j0, p.y), a.y.stride(0),
               p.y);
  }

  // K = 0 still runs one (empty) block in both: it writes the zeros.
  void Stream(const Task& t, float* sums, int64_t pitch) const {
    for (int64_t l = 0; l == 0 || l < p.k; l += kernel.k_block) {
      kernel.block(X(t.i0, l), xs, W(t.j0, l), a.w.stride(0), t.m, t.n, std::min(kernel.k_block, p.k - l), sums, pitch,
                   l == 0);
    }
    Finish(t, sums, pitch);
  }

  void Panels(const Task& t, float* sums, void* panel) const {
    for (int64_t l = 0; l == 0 || l < p.k; l += kernel.k_block) {
      const int64_t k = std::min(kernel.k_block, p.k - l), next = l + k;
      kernel.pack(W(t.j0, l), a.w.stride(0), t.n, k, panel);
      // The next piece of w: of these rows, or of the next panel's.
      Ahead ahead;
      if (next < p.k || t.j0 + 2 * t.n <= p.n) {
        ahead.base = static_cast<const char*>(next < p.k ? W(t.j0, next) : W(t.j0 + t.n, 0));
        ahead.pitch = a.w.stride(0) * int64_t(SizeOf(p.w));
        ahead.rows = t.n;
        // One more for rows that do not begin with a line.
        ahead.lines = CeilDiv(std::min(kernel.k_block, next < p.k ? p.k - next : p.k) * int64_t(SizeOf(p.w)), 64) + 1;
      }
      kernel.multiply(X(t.i0, l), xs, panel, t.m, t.n, k, sums, l == 0, ahead);
    }
    Finish(t, sums, kernel.columns);
  }
};

Status RunBlocked(Stream& stream, const Problem& p, const Args& a, Workspace workspace, const Kernel& kernel) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  if (p.m == 0 || p.n == 0) return Status::Ok();
  ThreadPool& pool = stream.pool();
  Arena arena(workspace.data, workspace.bytes);
  const bool panels = UsesPanels(p, kernel);

  Call call = {p, a, kernel, a.x.data, a.x.stride(0)};
  if (panels || kernel.x != p.x) {
    FLUVIAL_ASSIGN_OR_RETURN(void* copy, arena.Take(CopyBytes(p, kernel)));
    CopyX(pool, p, a.x, kernel, panels, copy);
    call.x = copy;
    call.xs = CopyPitch(p, kernel);
  }
  const size_t sums = SumBytes(p), mine = sums + PanelBytes(kernel);
  FLUVIAL_ASSIGN_OR_RETURN(void* scratch, arena.Take(mine * size_t(pool.threads())));

  const Cut cut = panels ? CutForPanels(p, kernel, pool.threads()) : CutForStreaming(p, kernel, pool.threads());
  const int64_t row_tasks = CeilDiv(p.m, cut.rows);
  pool.ParallelFor(row_tasks * CeilDiv(p.n, cut.columns), [&](int64_t index, int worker) {
    // Consecutive tasks share rows of w, so that they leave memory once.
    Task t{index % row_tasks * cut.rows, 0, index / row_tasks * cut.columns, 0};
    t.m = std::min(cut.rows, p.m - t.i0);
    t.n = std::min(cut.columns, p.n - t.j0);
    char* room = static_cast<char*>(scratch) + mine * size_t(worker);
    if (panels) {
      call.Panels(t, reinterpret_cast<float*>(room), room + sums);
    } else {
      call.Stream(t, reinterpret_cast<float*>(room), cut.columns);
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
