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

/// Asks for the rows of the next chunk, a few cache lines between the tiles of products: all at once they would fill
/// the queue of misses and stop everything else. Rows of one token lie a page or more apart, where hardware prefetchers
/// do not follow. Inline always: two instruction sets compile this header.
struct Prefetcher {
  struct Stream {
    const char* base = nullptr;
    int64_t pitch = 0, bytes = 0;
  };
  Stream streams[5];
  int64_t count = 0;     ///< streams
  int64_t per_tile = 0;  ///< lines
  int64_t stream = 0, row = 0, end = 0;
  const char* at = nullptr;
  const char* stop = nullptr;

  [[gnu::always_inline]] inline void Tile() {
    for (int64_t i = 0; i < per_tile; ++i, at += 64) {
      if (at < stop) {
        __builtin_prefetch(at, 0, 2);
        continue;
      }
      if (row == end) return;
      at = streams[stream].base + row * streams[stream].pitch;
      stop = at + streams[stream].bytes;
      __builtin_prefetch(at, 0, 2);
      if (++stream == count) stream = 0, ++row;
    }
  }
};

/// A product of one 32-column panel: A [rows, 2 pairs] with `a_row` words between rows, B [pairs, 32].
struct Product {
  const uint32_t* a = nullptr;
  int64_t a_row = 0;
  const uint32_t* b = nullptr;
};

/// c[m, 0..32) = scale[m] (first A B over `pairs`)[m] + (second A B over `second_pairs`)[m] for m < rows, a multiple
/// of 8.
void Sums(int64_t rows, const Product& first, int64_t pairs, const float* scale, const Product& second,
          int64_t second_pairs, float* c, Prefetcher* prefetch);

/// The same for 16 rows, rounded to bf16 and stored: `count` rows of `columns` <= 32 elements, `pitch` apart.
void SumsOut(const Product& first, int64_t pairs, const float* scale, const Product& second, int64_t second_pairs,
             int64_t count, int64_t columns, uint16_t* out, int64_t pitch, Prefetcher* prefetch);

/// 16 rows of U = (I + A)^-1 diag(beta) (V - X) for one panel, by forward substitution in fp32: `a` [16, 16] strictly
/// lower, x [16, 32]; `count` rows of `columns` elements of v, the others are zeros. u receives U as pairs of rows
/// [8, 32], w the same with row i times out[i] (null: not wanted).
void Solve(const float* a, const float* beta, const float* x, int64_t count, int64_t columns, const uint16_t* v,
           int64_t pitch, const float* out, uint32_t* u, uint32_t* w);

/// S[k, 0..32) = decay[k] S[k] + sum over d < pairs of A(k, d) B[d, :] for k < kp, a multiple of 8, where
/// A(k, d) = keys[d * kp + k]; `rounded` receives S as pairs of rows.
void Update(int64_t kp, int64_t pairs, const uint32_t* keys, const uint32_t* b, const float* decay, float* s,
            uint32_t* rounded, Prefetcher* prefetch);

/// The part of C[i, j] = A[i] . B[:, j] up to the diagonal, in whole vectors; rows is a multiple of 16. B and C have
/// `pitch` columns.
void LowerGemm(int64_t rows, int64_t pairs, const uint32_t* a, int64_t a_row, const uint32_t* b, float* c,
               int64_t pitch);

/// Factors of `rows` tokens of KDA (a multiple of 16, at most 64) from raw bf16 rows and decays a [rows, kp]. With
/// e = the running product of a over tokens and decay its last value:
///     q16 = q q_norm e,  k16 = k k_norm e,  i16 = k k_norm / e  (rows [rows, kp]),  r = i16 decay as pairs of rows.
/// q and k hold `rows` rows `kp` apart. False, with nothing usable, when a decay is below `least` or a key (times its
/// norm) above `most`: then products would overflow or be flushed.
bool KdaFactors(int64_t rows, int64_t kp, const uint16_t* q, const uint16_t* k, const float* q_norm,
                const float* k_norm, const float* a, float least, float most, uint16_t* q16, uint16_t* k16,
                uint16_t* i16, uint32_t* r, float* decay);

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
