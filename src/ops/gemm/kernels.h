// SPDX-License-Identifier: Apache-2.0
// Internal to the room: what the blocked driver (cpu.cc) knows of a compute kernel.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace fluvial::ops::gemm {

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
  /// Also prefetches ahead[0..n)[0..k), the next piece of w that will be packed (null: none).
  void (*pack)(const void* w, int64_t ws, int64_t n, int64_t k, void* panel, const void* ahead) = nullptr;

  /// For i < m and the panel's n columns: s = (first_chunk ? 0 : block[i][j]) + sum over k. Then, when `total` is null,
  /// block[i][j] = s; else total[i][j] = first_block ? s : total[i][j] + s. Rows of block and total are `columns` apart
  /// and written up to the next multiple of `vector`. x rows are xs elements apart and have k elements, rounded up to
  /// `pair` readable ones of which the last may be anything finite.
  void (*multiply)(const void* x, int64_t xs, const void* panel, int64_t m, int64_t n, int64_t k, float* block,
                   bool first_chunk, float* total, bool first_block) = nullptr;
};

/// Part of the definition of the result: see Kernel.
inline constexpr int64_t kSumBlock = 512;

/// fp32 FMA with fp32, bf16 or fp16 weights (Highway, best instruction set of this machine).
Kernel SimdKernel(DType w);

/// Name of the instruction set that SimdKernel uses, e.g. "AVX3".
std::string_view SimdTargetName();

/// x rows to fp32: `k` elements each.
void ToFloatRow(const void* x, DType dtype, int64_t k, float* out);

/// y[0..n) = round(c + bias); bias may be null.
void FinishRow(const float* c, const void* bias, DType bias_dtype, int64_t n, void* y, DType y_dtype);

/// True when this CPU and operating system run AVX512-BF16 and this build has the kernel.
bool HaveBf16Kernel();

/// bf16 x bf16 by vdpbf16ps. Danger: only when HaveBf16Kernel().
Kernel Bf16Kernel();

}  // namespace fluvial::ops::gemm
