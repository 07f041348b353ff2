// SPDX-License-Identifier: Apache-2.0
// Matrix kernels with bf16 operands and fp32 sums (AVX-512 BF16: two multiply-adds per lane and instruction).
// cpu_bf16.cc is compiled for that instruction set; nothing in it may run unless CpuHasBf16().
//
// Operands are pairs along the summed dimension: one uint32_t holds elements 2d (low half) and 2d + 1 (high half).
#pragma once

#include <cstdint>

namespace fluvial::ops::delta_rule {

/// Instruction set of this CPU and operating system.
bool CpuHasBf16();

namespace bf16 {

/// Columns of a panel: two vectors of 16 floats.
inline constexpr int64_t kWidth = 32;

enum class Start { kZero, kKeep, kScale };

/// C[m, 0..32) = start + sum over d < pairs of A(m, d) . B[d, :], for m < rows (a multiple of 8).
/// A(m, d) = a[m * a_row + d * a_depth]. kScale: C[m] *= scale[m] first. When `rounded` is not null it receives C as
/// pairs of rows: rounded[m / 2 * 32 + n].
void Gemm(Start start, int64_t rows, int64_t pairs, const uint32_t* a, int64_t a_row, int64_t a_depth,
          const uint32_t* b, float* c, const float* scale, uint32_t* rounded);

/// The part of C[i, j] = A[i] . B[:, j] up to the diagonal, in whole vectors; rows is a multiple of 16. B and C have
/// `pitch` columns.
void LowerGemm(int64_t rows, int64_t pairs, const uint32_t* a, int64_t a_row, const uint32_t* b, float* c,
               int64_t pitch);

/// Pairs of rows of fp32: to[r / 2 * n + i] = (x[r, i], x[r + 1, i]); rows even, n a multiple of 16.
void PairRows(const float* x, int64_t rows, int64_t n, uint32_t* to);

/// The same from bf16 rows.
void PairRows16(const uint16_t* x, int64_t rows, int64_t n, uint32_t* to);

/// Rounds n (a multiple of 16) floats.
void Round(const float* x, int64_t n, uint16_t* to);

/// One token for `rows` bf16 rows of 128 elements, in fp32: for each row s and its v
///     d = beta (v - s . ak),  out = s . aq + d kq,  to = a s + d k.
/// a, k, ak, aq are [128] and 64-byte aligned; `to` may be `from`, and null when the new rows are not wanted.
void TokenRows128(int64_t rows, const uint16_t* from, uint16_t* to, const float* a, const float* k, const float* ak,
                  const float* aq, float kq, float beta, const float* v, float* out);

/// Sum of squares of n (a multiple of 16) elements.
float SumSquares(const uint16_t* x, int64_t n);

}  // namespace bf16
}  // namespace fluvial::ops::delta_rule
