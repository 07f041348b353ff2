// SPDX-License-Identifier: Apache-2.0
// Internal to the room: what the blocked driver (cpu.cc) knows of a compute kernel.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace fluvial::ops::gemm {

/// Memory to prefetch while multiplying: `lines` cache lines from each of `rows` rows. Only a hint; rows = 0 for none.
struct Ahead {
  const char* base = nullptr;
  int64_t pitch = 0;  ///< bytes between rows
  int64_t rows = 0;
  int64_t lines = 0;
};

/// One register-blocked kernel: packs some rows of w into a panel, then multiplies rows of x with it.
///
/// The sum of an output runs over k in order, one fp32 accumulator, in blocks of kSumBlock; the sums of the blocks are
/// added in order. Nothing else decides a result: not m, n, strides, chunk sizes or threads.
struct Kernel {
  DType x = DType::kF32;    ///< the type in which it reads x: the driver converts rows when needed
  int64_t columns = 16;     ///< rows of w in a panel, a multiple of `vector`
  int64_t vector = 16;      ///< outputs per register
  int64_t pair = 1;         ///< elements of k per step; the driver hands over multiples, but for the last chunk
  int64_t panel_bytes = 4;  ///< of a panel per element of k and column, at most

  /// panel <- w[0..n)[0..k), rows missing to a multiple of `vector` and elements to a multiple of `pair` are zero.
  void (*pack)(const void* w, int64_t ws, int64_t n, int64_t k, void* panel) = nullptr;

  /// For i < m and the panel's n columns: s = (first_chunk ? 0 : block[i][j]) + sum over k. Then, when `total` is null,
  /// block[i][j] = s; else total[i][j] = first_block ? s : total[i][j] + s. Rows of block and total are `columns` apart
  /// and written up to the next multiple of `vector`. x rows are xs elements apart and have k elements, rounded up to
  /// `pair` readable ones of which the last may be anything finite. `ahead` is spread over the steps of the first rows.
  void (*multiply)(const void* x, int64_t xs, const void* panel, int64_t m, int64_t n, int64_t k, float* block,
                   bool first_chunk, float* total, bool first_block, const Ahead& ahead) = nullptr;
};

/// The next rows of x, for tiles that have no weights to fetch: at the end of a tile, `left` rows are still to come.
inline Ahead AheadOfX(const void* next, int64_t pitch_bytes, int64_t left, int64_t rows, int64_t bytes) {
  return {static_cast<const char*>(next), pitch_bytes, left < rows ? left : rows, (bytes + 63) / 64 + 1};
}

/// Walks an Ahead in `steps` calls of Next, a few lines at a time: a burst would fill the core's miss buffers and stall
/// it.
class Prefetcher {
 public:
  Prefetcher(const Ahead& a, int64_t steps)
      : a_(a), stride_(a.lines > 0 ? (steps + a.lines - 1) / a.lines : 1), last_line_((a.lines - 1) * 64) {}
  void Next() {
    for (int64_t r = row_; r < a_.rows; r += stride_) __builtin_prefetch(a_.base + r * a_.pitch + line_, 0, 2);
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

/// Part of the definition of the result: see Kernel.
inline constexpr int64_t kSumBlock = 512;

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
