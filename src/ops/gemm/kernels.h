// SPDX-License-Identifier: Apache-2.0
// Internal to the room: what the blocked driver (cpu.cc) knows of a compute kernel.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace fluvial::ops::gemm {

/// For i < m, j < n:  c[i*ldc + j] (= when `first`, += otherwise)  sum over l < k of x[i*xs + l] * w[j*ws + l].
/// xs, ws, ldc count elements. The sum of one (i, j) depends on k and the data alone, never on m, n or the strides:
/// that is what makes a row of a batch equal to the row alone.
using BlockKernel = void (*)(const void* x, int64_t xs, const void* w, int64_t ws, int64_t m, int64_t n, int64_t k,
                             float* c, int64_t ldc, bool first);

struct Kernel {
  BlockKernel block = nullptr;
  DType x = DType::kF32;  ///< the type in which it reads x: the driver converts rows when needed
  DType w = DType::kF32;
  /// K is cut into blocks of this many elements, each summed by itself and then added to the running fp32 sum. Part
  /// of the definition of the result, so it must not depend on the problem.
  int64_t k_block = 1024;
  int64_t tile_m = 8;  ///< rows of x whose block stays in L1 while the rows of w stream by
};

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
