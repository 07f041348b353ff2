// SPDX-License-Identifier: Apache-2.0
// bf16 x bf16 by vdpbf16ps: c += x[2l] w[2l] + x[2l+1] w[2l+1] in each of 16 fp32 lanes. Compiled with -mavx512bf16 and
// entered only after HaveBf16Kernel() has asked the CPU. Highway 1.0 has no target with this instruction.
//
// The instruction rounds to nearest even whatever the control register says, and takes subnormal inputs and gives
// subnormal results as zero (Intel SDM, VDPBF16PS).
#include "ops/gemm/kernels.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

#include <cstring>

namespace fluvial::ops::gemm {
namespace {

#include "ops/common/transpose512-inl.h"
#include "ops/gemm/sum16-inl.h"

constexpr int64_t kStep = 32;   // bf16 values per register
constexpr int64_t kLanes = 16;  // sums per register

inline __attribute__((always_inline)) __m512bh Load(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline __attribute__((always_inline)) __m512bh Load(const uint16_t* p, __mmask32 mask) {
  return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
}

// Lane sums of MR rows of x with NR rows of w, not yet added up: sums[i][j] is a register. Adding them up here, at the
// end of each tile, would stall: the additions wait for one another while they fill the scheduler. Meanwhile the rows
// `ahead` elements further on are fetched (0: none): with several rows of x a core computes too long per byte for its
// own prefetchers to keep memory busy.
template <int MR, int NR>
__attribute__((noinline)) void Tile(const uint16_t* x, int64_t xs, const uint16_t* w, int64_t ws, int64_t k,
                                    float* sums, int64_t ahead) {
  __m512 acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_setzero_ps();
  }
  auto step = [&](int64_t l, auto... mask) __attribute__((always_inline)) {
    __m512bh wv[NR];
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) wv[j] = Load(w + j * ws + l, mask...);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const __m512bh xv = Load(x + i * xs + l, mask...);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], xv, wv[j]);
    }
  };
  int64_t l = 0;
  if (ahead != 0) {
    for (; l + kStep <= k; l += kStep) {
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) __builtin_prefetch(w + j * ws + l + ahead, 0, 3);
      step(l);
    }
  } else {
    for (; l + kStep <= k; l += kStep) step(l);
  }
  if (l < k) step(l, static_cast<__mmask32>((uint64_t{1} << (k - l)) - 1));
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) _mm512_storeu_ps(sums + (i * kColumnGroup + j) * kLanes, acc[i][j]);
  }
}

template <int MR>
void Rows(const uint16_t* x, int64_t xs, const uint16_t* w, int64_t ws, int64_t n, int64_t k, float* c, int64_t ldc,
          bool first, int64_t ahead) {
  constexpr int NR = MR <= 3 ? 8 : MR <= 6 ? 4 : 3;  // 24 of 32 registers are sums at most
  alignas(64) float sums[MR * kColumnGroup * kLanes];
  for (int64_t j = 0; j < n; j += kColumnGroup) {
    const int64_t columns = n - j < kColumnGroup ? n - j : kColumnGroup;
    int64_t q = 0;
    // The last four of threes are two pairs: a single column is too little work for its latency.
    for (; q + NR <= columns && (NR != 3 || columns - q != 4); q += NR) {
      Tile<MR, NR>(x, xs, w + (j + q) * ws, ws, k, sums + q * kLanes, ahead);
    }
    for (; NR == 3 && q + 2 <= columns; q += 2) {
      Tile<MR, 2>(x, xs, w + (j + q) * ws, ws, k, sums + q * kLanes, ahead);
    }
    for (; q < columns; ++q) Tile<MR, 1>(x, xs, w + (j + q) * ws, ws, k, sums + q * kLanes, ahead);
    for (; q < kColumnGroup; ++q) {
      for (int i = 0; i < MR; ++i) _mm512_store_ps(sums + (i * kColumnGroup + q) * kLanes, _mm512_setzero_ps());
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const __m512 sum = SumLanes16(sums + i * kColumnGroup * kLanes);
      float* to = c + i * ldc + j;
      _mm512_storeu_ps(to, first ? sum : _mm512_add_ps(_mm512_loadu_ps(to), sum));
    }
  }
}

constexpr int64_t kTileRows = 8;
// Bytes that are fetched ahead of a tile: enough to cover the memory's latency, few enough to stay in L1 until used.
constexpr int64_t kAheadBytes = 12 << 10;

void Block(const void* x_void, int64_t xs, const void* w_void, int64_t ws, int64_t m, int64_t n, int64_t k, float* c,
           int64_t ldc, bool first) {
  const uint16_t* x = static_cast<const uint16_t*>(x_void);
  const uint16_t* w = static_cast<const uint16_t*>(w_void);
  const int64_t passes = (m + kTileRows - 1) / kTileRows;
  const int64_t rows_ahead = kAheadBytes / (2 * (k > 0 ? k : 1));
  // A single row streams as fast without; later passes find w in a cache.
  int64_t ahead = m > 1 ? (rows_ahead < 4 ? 4 : rows_ahead) * ws : 0;
  for (int64_t pass = 0, i = 0; pass < passes; ++pass, ahead = 0) {
    // Shares that differ by one row at most.
    const int64_t rows = (m - i) / (passes - pass);
    const uint16_t* xi = x + i * xs;
    float* ci = c + i * ldc;
    i += rows;
    switch (rows) {
      case 8:
        Rows<8>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 7:
        Rows<7>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 6:
        Rows<6>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 5:
        Rows<5>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 4:
        Rows<4>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 3:
        Rows<3>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 2:
        Rows<2>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 1:
        Rows<1>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
    }
  }
}

// The second way (kernels.h: Kernel). Panel layout: [lane][i][column] pairs of bf16, pair i of a lane being pair
// 16 i + lane of the block.
constexpr int kVectors = 3;  // 8 rows x 3 = 24 of 32 registers are sums
constexpr int kColumns = 16 * kVectors;

// Lanes are stored in the order in which they are summed: the tree of SumLanes16 as a running sum with a stack, see
// PanelTile. Bits reversed, so its own inverse.
constexpr int kLaneOrder[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

// Floats between the lanes of a panel. One line more than they hold: stores go to 16 lanes in turn, which would else
// compete for few sets of L1.
constexpr int64_t LaneStride(int64_t registers) { return registers * kColumns + 16; }

int64_t Registers(int64_t k) { return (k + kStep - 1) / kStep; }

__mmask32 MaskOf(int64_t left) {
  return left >= kStep ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << left) - 1);
}

void Pack(const void* w_void, int64_t ws, int64_t n, int64_t k, void* panel_void) {
  const uint16_t* w = static_cast<const uint16_t*>(w_void);
  float* panel = static_cast<float*>(panel_void);
  const int64_t registers = Registers(k);
  for (int64_t j = 0; j < n; j += 16) {
    const int64_t rows = n - j < 16 ? n - j : 16;
    for (int64_t i = 0; i < registers; ++i) {
      const uint16_t* from = w + j * ws + i * kStep;
      __m512 row[16];
      if (rows == 16 && k - i * kStep >= kStep) {
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) row[r] = _mm512_loadu_ps(from + r * ws);
      } else {
        const __mmask32 mask = MaskOf(k - i * kStep);
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) {
          // Rows that are not there: an empty mask reads nothing.
          row[r] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(r < rows ? mask : 0, r < rows ? from + r * ws : from));
        }
      }
      Transpose16(row);
#pragma GCC unroll 16
      for (int lane = 0; lane < 16; ++lane) {
        _mm512_storeu_ps(panel + kLaneOrder[lane] * LaneStride(registers) + i * kColumns + j, row[lane]);
      }
    }
  }
}

void Arrange(const void* x_void, DType, int64_t k, void* out_void) {
  const uint16_t* x = static_cast<const uint16_t*>(x_void);
  float* out = static_cast<float*>(out_void);
  const int64_t registers = Registers(k);
  for (int64_t i = 0; i < registers; i += 16) {
    const int64_t count = registers - i < 16 ? registers - i : 16;
    __m512 row[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      const int64_t at = (i + r) * kStep;
      row[r] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(r < count ? MaskOf(k - at) : 0, r < count ? x + at : x));
    }
    Transpose16(row);
    const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
#pragma GCC unroll 16
    for (int lane = 0; lane < 16; ++lane) {
      _mm512_mask_storeu_ps(out + kLaneOrder[lane] * registers + i, mask, row[lane]);
    }
  }
}

inline __attribute__((always_inline)) __m512bh BroadcastPair(const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

template <int MR, int NV>
__attribute__((noinline)) void PanelTile(const uint16_t* x, int64_t xs, const float* panel, int64_t registers,
                                         float* total, bool first, const Ahead& ahead) {
  alignas(64) float stack[4][MR][NV][16];
  __m512 acc[MR][NV];
  Prefetcher prefetch(ahead, 16 * registers);
  for (int n = 0; n < 16; ++n) {
    const float* w = panel + n * LaneStride(registers);
    const uint16_t* xl = x + n * registers * 2;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) acc[i][v] = _mm512_setzero_ps();
    }
    auto step = [&](int64_t p) __attribute__((always_inline)) {
      __m512bh wv[NV];
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) wv[v] = (__m512bh)_mm512_loadu_ps(w + p * kColumns + v * 16);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const __m512bh xv = BroadcastPair(xl + i * xs + 2 * p);
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) acc[i][v] = _mm512_dpbf16_ps(acc[i][v], xv, wv[v]);
      }
    };
    if (ahead.rows > 0) {
      for (int64_t p = 0; p < registers; ++p) {
        prefetch.Next();
        step(p);
      }
    } else {
      for (int64_t p = 0; p < registers; ++p) step(p);
    }
    // Level l of the stack waits for its other half: lanes that differ in bit 3 meet first, then bits 2, 1, 0.
    int level = 0;
    for (int t = n + 1; t % 2 == 0; t /= 2, ++level) {
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) acc[i][v] = _mm512_add_ps(acc[i][v], _mm512_load_ps(stack[level][i][v]));
      }
    }
    if (n == 15) break;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) _mm512_store_ps(stack[level][i][v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      float* to = total + i * kColumns + v * 16;
      _mm512_storeu_ps(to, first ? acc[i][v] : _mm512_add_ps(_mm512_loadu_ps(to), acc[i][v]));
    }
  }
}

template <int NV>
void PanelRows(const uint16_t* x, int64_t xs, const float* panel, int64_t m, int64_t registers, float* total,
               bool first, const Ahead& ahead) {
  int64_t i = 0;
  auto run = [&](auto tile, int64_t rows) {
    for (; i + rows <= m; i += rows) {
      tile(x + i * xs, xs, panel, registers, total + i * kColumns, first,
           i == 0 && ahead.rows > 0 ? ahead
                                    : AheadOfX(x + (i + rows) * xs, xs * 2, m - i - rows, rows, registers * kStep * 2));
    }
  };
  run(PanelTile<8, NV>, 8);
  run(PanelTile<4, NV>, 4);
  run(PanelTile<2, NV>, 2);
  run(PanelTile<1, NV>, 1);
}

void Multiply(const void* x_void, int64_t xs, const void* panel_void, int64_t m, int64_t n, int64_t k, float* total,
              bool first, const Ahead& ahead) {
  const uint16_t* x = static_cast<const uint16_t*>(x_void);
  const float* panel = static_cast<const float*>(panel_void);
  const int64_t registers = Registers(k);
  if (n <= 16) {
    PanelRows<1>(x, xs, panel, m, registers, total, first, ahead);
  } else if (n <= 32) {
    PanelRows<2>(x, xs, panel, m, registers, total, first, ahead);
  } else {
    PanelRows<3>(x, xs, panel, m, registers, total, first, ahead);
  }
}

}  // namespace

bool HaveBf16Kernel() {
  static const bool have = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return have;
}

Kernel Bf16Kernel() { return {Block, DType::kBF16, 2048, kTileRows, 33, kColumns, kStep, Arrange, Pack, Multiply}; }

}  // namespace fluvial::ops::gemm

#else

namespace fluvial::ops::gemm {
bool HaveBf16Kernel() { return false; }
Kernel Bf16Kernel() { return {}; }
}  // namespace fluvial::ops::gemm

#endif
