// SPDX-License-Identifier: Apache-2.0
// Internal to the room: what the blocked driver (cpu.cc) knows of a compute kernel.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace fluvial::ops::gemm {

/// Columns of a scratch tile come in groups of this many.
inline constexpr int64_t kColumnGroup = 16;

/// For i < m, j < n:  c[i*ldc + j] (= when `first`, += otherwise)  sum over l < k of x[i*xs + l] * w[j*ws + l].
/// xs, ws, ldc count elements; ldc is a multiple of kColumnGroup and columns up to it may be overwritten. The sum of
/// one (i, j) depends on k and the data alone, never on m, n, the position or the strides: that is what makes a row of
/// a batch equal to the row alone.
using BlockKernel = void (*)(const void* x, int64_t xs, const void* w, int64_t ws, int64_t m, int64_t n, int64_t k,
                             float* c, int64_t ldc, bool first);

/// Memory to prefetch while multiplying: `lines` cache lines from each of `rows` rows. Only a hint; rows = 0 for none.
struct Ahead {
  const char* base = nullptr;
  int64_t pitch = 0;  ///< bytes between rows
  int64_t rows = 0;
  int64_t lines = 0;
  bool near = false;  ///< into L1 (needed at once) rather than L2
};

/// The next rows of x, for tiles that have no weights to fetch: at the end of a tile, `left` rows are still to come.
inline Ahead AheadOfX(const void* next, int64_t pitch_bytes, int64_t left, int64_t rows, int64_t bytes) {
  return {static_cast<const char*>(next), pitch_bytes, left < rows ? left : rows, (bytes + 63) / 64 + 1, false};
}

/// Walks an Ahead in `steps` calls of Next, a few lines at a time: a burst would fill the core's miss buffers and stall
/// it.
class Prefetcher {
 public:
  Prefetcher(const Ahead& a, int64_t steps)
      : a_(a), stride_(a.lines > 0 ? (steps + a.lines - 1) / a.lines : 1), last_line_((a.lines - 1) * 64) {}
  void Next() {
    for (int64_t r = row_; r < a_.rows; r += stride_) {
      const char* at = a_.base + r * a_.pitch + line_;
      if (a_.near) {
        __builtin_prefetch(at, 0, 3);
      } else {
        __builtin_prefetch(at, 0, 2);
      }
    }
    if (line_ < last_line_) {
      line_ += 64;
    } else {
      line_ = 0;
      ++row_;
    }
  }

 private:
  Ahead a_;
  int64_t stride_;
  int64_t last_line_;
  int64_t row_ = 0;
  int64_t line_ = 0;
};

/// Two ways to the same bits. Few rows: `block`, dot products along k, weights read where they lie. Many rows: weights
/// transposed into panels, one output per lane; the panel and the copy of x list k by lane (all k = l mod the lanes,
/// then the next l), so that each lane's sum runs over the same products in the same order as a lane of `block`.
struct Kernel {
  BlockKernel block = nullptr;
  DType x = DType::kF32;  ///< the type in which it reads x: the driver converts rows when needed
  /// K is cut into blocks of this many elements, each summed by itself and then added to the running fp32 sum. Part
  /// of the definition of the result, so it must not depend on the problem.
  int64_t k_block = 1024;
  int64_t tile_rows = 8;  ///< rows of x whose block stays in L1 while the rows of w stream by

  // The second way; null and 0 where there is none.
  int64_t many_rows = 0;  ///< from this many rows of x on, transposing weights pays
  int64_t columns = 0;    ///< rows of w in a panel
  int64_t step = 1;       ///< elements of k per register of `block`: a block's k is padded with zeros to a multiple
  /// out <- one block of a row of x (type `dtype`, k elements), in the kernel's type, by lane.
  void (*arrange)(const void* x, DType dtype, int64_t k, void* out) = nullptr;
  /// panel <- w[0..n)[0..k), by lane; zeros up to a multiple of `step` and of 16 columns.
  void (*pack)(const void* w, int64_t ws, int64_t n, int64_t k, void* panel) = nullptr;
  /// total[i][j] (= when `first`, += otherwise) the sum over the block. Rows of x are xs elements apart, rows of total
  /// `columns`; written up to a multiple of 16 columns. `ahead` is fetched meanwhile.
  void (*multiply)(const void* x, int64_t xs, const void* panel, int64_t m, int64_t n, int64_t k, float* total,
                   bool first, const Ahead& ahead) = nullptr;
};

/// fp32 FMA with fp32, bf16 or fp16 weights (Highway, best instruction set of this machine).
Kernel SimdKernel(DType w);

/// Name of the instruction set that SimdKernel uses, e.g. "AVX3".
std::string_view SimdTargetName();

/// x rows to fp32: `k` elements each.
void ToFloatRow(const void* x, DType dtype, int64_t k, float* out);

/// y[i*ys + j] = round(c[i*ldc + j] + bias[j]) for i < m, j < n; bias may be null.
void FinishTile(const float* c, int64_t ldc, const void* bias, DType bias_dtype, int64_t m, int64_t n, void* y,
                int64_t ys, DType y_dtype);

/// True when this CPU and operating system run AVX512-BF16 and this build has the kernel.
bool HaveBf16Kernel();

/// bf16 x bf16 by vdpbf16ps. Danger: only when HaveBf16Kernel().
Kernel Bf16Kernel();

}  // namespace fluvial::ops::gemm
