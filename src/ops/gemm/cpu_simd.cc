// SPDX-License-Identifier: Apache-2.0
// fp32 kernels on any instruction set: dot products along K, many rows of x times many rows of w per register tile.
//
// One lane order for every tile shape: lane l of an output's accumulator takes k = l, l + L, l + 2L, ... (L lanes), a
// short tail is padded with zeros, the lanes are summed by one fixed tree. See gemm.h: "Order of the sum".
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm/cpu_simd.cc"
#include <hwy/foreach_target.h>
// foreach_target.h first
#include <hwy/highway.h>

#include <hwy/cache_control.h>

#include <cstring>
#include <type_traits>

#include "ops/common/simd_io-inl.h"
#include "ops/gemm/kernels.h"

#if HWY_ARCH_X86
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::gemm {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define FLUVIAL_GEMM_512 1
#include "ops/common/transpose512-inl.h"
#include "ops/gemm/sum16-inl.h"
#else
#define FLUVIAL_GEMM_512 0
#endif

constexpr int64_t kLanes = int64_t(hn::MaxLanes(DF()));
// 32 registers of AVX-512 hold 8 x 3 or 6 x 4 sums, 16 registers 3 x 4.
constexpr int kMaxRows = FLUVIAL_GEMM_512 ? 8 : 3;

// Lane sums of MR rows of x with NR rows of w, not yet added up: sums[i][j] is a register. Adding them up here, at the
// end of each tile, would stall: the additions wait for one another while they fill the scheduler. Meanwhile the rows
// `ahead` elements further on are fetched (0: none): with several rows of x a core computes too long per byte for its
// own prefetchers to keep memory busy.
template <int MR, int NR, class TW>
HWY_NOINLINE void Tile(const float* x, int64_t xs, const TW* w, int64_t ws, int64_t k, float* sums, int64_t ahead) {
  const DF d;
  VF acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) acc[i][j] = hn::Zero(d);
  }
  auto step = [&](const float* xp, int64_t xp_stride, const TW* wp, int64_t wp_stride) HWY_ATTR {
    if constexpr (FLUVIAL_GEMM_512) {
      VF wv[NR];
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) wv[j] = fs::LoadF32(d, wp + j * wp_stride);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const VF xv = hn::LoadU(d, xp + i * xp_stride);
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) acc[i][j] = hn::MulAdd(xv, wv[j], acc[i][j]);
      }
    } else {
      VF xv[MR];
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) xv[i] = hn::LoadU(d, xp + i * xp_stride);
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) {
        const VF wv = fs::LoadF32(d, wp + j * wp_stride);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) acc[i][j] = hn::MulAdd(xv[i], wv, acc[i][j]);
      }
    }
  };
  int64_t l = 0;
  if (ahead != 0) {
    for (; l + kLanes <= k; l += kLanes) {
#pragma GCC unroll 8
      for (int j = 0; j < NR; ++j) hwy::Prefetch(w + j * ws + l + ahead);
      step(x + l, xs, w + l, ws);
    }
  } else {
    for (; l + kLanes <= k; l += kLanes) step(x + l, xs, w + l, ws);
  }
  if (l < k) {
    // Padded copies: reading past a row could leave the mapping, and 0 * NaN is NaN.
    HWY_ALIGN float xt[MR * kLanes] = {};
    HWY_ALIGN TW wt[NR * kLanes] = {};
    for (int i = 0; i < MR; ++i) std::memcpy(xt + i * kLanes, x + i * xs + l, size_t(k - l) * sizeof(float));
    for (int j = 0; j < NR; ++j) std::memcpy(wt + j * kLanes, w + j * ws + l, size_t(k - l) * sizeof(TW));
    step(xt, kLanes, wt, kLanes);
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NR; ++j) hn::StoreU(acc[i][j], d, sums + (i * kColumnGroup + j) * kLanes);
  }
}

// c[0..columns) (+)= the sums of the lanes of `columns` registers.
HWY_INLINE void AddLanes(const float* sums, [[maybe_unused]] int64_t columns, float* c, bool first) {
  const DF d;
#if FLUVIAL_GEMM_512
  const VF sum{SumLanes16(sums)};
  hn::StoreU(first ? sum : hn::Add(hn::LoadU(d, c), sum), d, c);
#else
  for (int64_t j = 0; j < columns; ++j) {
    const float sum = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, sums + j * kLanes)));
    c[j] = first ? sum : c[j] + sum;
  }
#endif
}

template <int MR, class TW>
HWY_INLINE void Rows(const float* x, int64_t xs, const TW* w, int64_t ws, int64_t n, int64_t k, float* c, int64_t ldc,
                     bool first, int64_t ahead) {
  constexpr int NR = FLUVIAL_GEMM_512 ? (MR <= 3 ? 8 : MR <= 6 ? 4 : 3) : (MR == 1 ? 8 : 4);
  HWY_ALIGN float sums[MR * kColumnGroup * kLanes] = {};
  for (int64_t j = 0; j < n; j += kColumnGroup) {
    const int64_t columns = HWY_MIN(kColumnGroup, n - j);
    int64_t q = 0;
    // The last four of threes are two pairs: a single column is too little work for its latency.
    for (; q + NR <= columns && (NR != 3 || columns - q != 4); q += NR) {
      Tile<MR, NR>(x, xs, w + (j + q) * ws, ws, k, sums + q * kLanes, ahead);
    }
    for (; NR == 3 && q + 2 <= columns; q += 2) {
      Tile<MR, 2>(x, xs, w + (j + q) * ws, ws, k, sums + q * kLanes, ahead);
    }
    for (; q < columns; ++q) Tile<MR, 1>(x, xs, w + (j + q) * ws, ws, k, sums + q * kLanes, ahead);
    for (int i = 0; i < MR; ++i) AddLanes(sums + i * kColumnGroup * kLanes, columns, c + i * ldc + j, first);
  }
}

// Bytes that are fetched ahead of a tile: enough to cover the memory's latency, few enough to stay in L1 until used.
constexpr int64_t kAheadBytes = 12 << 10;

template <class TW>
void Block(const void* x_void, int64_t xs, const void* w_void, int64_t ws, int64_t m, int64_t n, int64_t k, float* c,
           int64_t ldc, bool first) {
  const float* x = static_cast<const float*>(x_void);
  const TW* w = static_cast<const TW*>(w_void);
  const int64_t passes = (m + kMaxRows - 1) / kMaxRows;
  const int64_t rows_ahead = kAheadBytes / (int64_t(sizeof(TW)) * HWY_MAX(k, int64_t{1}));
  // A single row streams as fast without; later passes find w in a cache.
  int64_t ahead = m > 1 ? HWY_MAX(rows_ahead, int64_t{4}) * ws : 0;
  for (int64_t pass = 0, i = 0; pass < passes; ++pass, ahead = 0) {
    // Shares that differ by one row at most.
    const int64_t rows = (m - i) / (passes - pass);
    const float* xi = x + i * xs;
    float* ci = c + i * ldc;
    i += rows;
    switch (rows) {
      case 1:
        Rows<1>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 2:
        Rows<2>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 3:
        Rows<3>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
#if FLUVIAL_GEMM_512
      case 4:
        Rows<4>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 5:
        Rows<5>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 6:
        Rows<6>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 7:
        Rows<7>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
      case 8:
        Rows<8>(xi, xs, w, ws, n, k, ci, ldc, first, ahead);
        break;
#endif
    }
  }
}

#if FLUVIAL_GEMM_512
// The second way (kernels.h: Kernel). Panel layout: [lane][i][column], element i of a lane being k = 16 i + lane.
constexpr int kVectors = 3;  // 8 rows x 3 = 24 of 32 registers are sums
constexpr int64_t kColumns = 16 * kVectors;
constexpr int64_t kBlock = 1024;
constexpr int64_t kManyRows = 16;

// Lanes are stored in the order in which they are summed: the tree of SumLanes16 as a running sum with a stack, see
// PanelTile. Bits reversed, so its own inverse.
constexpr int kLaneOrder[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

// Floats between the lanes of a panel. One line more than they hold: stores go to 16 lanes in turn, which would else
// compete for few sets of L1.
constexpr int64_t LaneStride(int64_t registers) { return registers * kColumns + 16; }

template <class TW>
void Pack(const void* w_void, int64_t ws, int64_t n, int64_t k, void* panel_void) {
  const DF d;
  const TW* w = static_cast<const TW*>(w_void);
  float* panel = static_cast<float*>(panel_void);
  const int64_t registers = (k + 15) / 16;
  for (int64_t j = 0; j < n; j += 16) {
    const int64_t rows = HWY_MIN(int64_t{16}, n - j);
    for (int64_t i = 0; i < registers; ++i) {
      const TW* from = w + j * ws + i * 16;
      const int64_t left = k - i * 16;
      __m512 row[16];
      if (rows == 16 && left >= 16) {
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) row[r] = fs::LoadF32(d, from + r * ws).raw;
      } else {
        for (int r = 0; r < 16; ++r) {
          HWY_ALIGN TW padded[16] = {};
          if (r < rows) std::memcpy(padded, from + r * ws, size_t(HWY_MIN(left, int64_t{16})) * sizeof(TW));
          row[r] = fs::LoadF32(d, padded).raw;
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

void Arrange(const void* x, DType dtype, int64_t k, void* out_void) {
  float* out = static_cast<float*>(out_void);
  // Zeros behind k: whole groups of 16 registers are transposed.
  HWY_ALIGN float in[kBlock] = {};
  fs::LoadRow(x, dtype, k, in);
  const int64_t registers = (k + 15) / 16;
  for (int64_t i = 0; i < registers; i += 16) {
    __m512 row[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) row[r] = _mm512_load_ps(in + (i + r) % (kBlock / 16) * 16);
    Transpose16(row);
    const int64_t count = HWY_MIN(int64_t{16}, registers - i);
    const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
#pragma GCC unroll 16
    for (int lane = 0; lane < 16; ++lane) {
      _mm512_mask_storeu_ps(out + kLaneOrder[lane] * registers + i, mask, row[lane]);
    }
  }
}

template <int MR, int NV>
HWY_NOINLINE void PanelTile(const float* x, int64_t xs, const float* panel, int64_t registers, float* total, bool first,
                            const Ahead& ahead) {
  const DF d;
  HWY_ALIGN float stack[4][MR][NV][16];
  VF acc[MR][NV];
  Prefetcher prefetch(ahead, 16 * registers);
  for (int n = 0; n < 16; ++n) {
    const float* w = panel + n * LaneStride(registers);
    const float* xl = x + n * registers;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) acc[i][v] = hn::Zero(d);
    }
    auto step = [&](int64_t p) HWY_ATTR {
      VF wv[NV];
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) wv[v] = hn::LoadU(d, w + p * kColumns + v * 16);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const VF xv = hn::Set(d, xl[i * xs + p]);
#pragma GCC unroll 3
        for (int v = 0; v < NV; ++v) acc[i][v] = hn::MulAdd(xv, wv[v], acc[i][v]);
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
        for (int v = 0; v < NV; ++v) acc[i][v] = hn::Add(acc[i][v], hn::Load(d, stack[level][i][v]));
      }
    }
    if (n == 15) break;
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) hn::Store(acc[i][v], d, stack[level][i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      float* to = total + i * kColumns + v * 16;
      hn::StoreU(first ? acc[i][v] : hn::Add(hn::LoadU(d, to), acc[i][v]), d, to);
    }
  }
}

template <int MR, int NV>
HWY_INLINE int64_t PanelTiles(const float* x, int64_t xs, const float* panel, int64_t i, int64_t m, int64_t registers,
                              float* total, bool first, const Ahead& ahead) {
  for (; i + MR <= m; i += MR) {
    PanelTile<MR, NV>(
        x + i * xs, xs, panel, registers, total + i * kColumns, first,
        i == 0 && ahead.rows > 0 ? ahead : AheadOfX(x + (i + MR) * xs, xs * 4, m - i - MR, MR, registers * 16 * 4));
  }
  return i;
}

template <int NV>
void PanelRows(const float* x, int64_t xs, const float* panel, int64_t m, int64_t registers, float* total, bool first,
               const Ahead& ahead) {
  int64_t i = PanelTiles<8, NV>(x, xs, panel, 0, m, registers, total, first, ahead);
  i = PanelTiles<4, NV>(x, xs, panel, i, m, registers, total, first, ahead);
  i = PanelTiles<2, NV>(x, xs, panel, i, m, registers, total, first, ahead);
  PanelTiles<1, NV>(x, xs, panel, i, m, registers, total, first, ahead);
}

void Multiply(const void* x_void, int64_t xs, const void* panel_void, int64_t m, int64_t n, int64_t k, float* total,
              bool first, const Ahead& ahead) {
  const float* x = static_cast<const float*>(x_void);
  const float* panel = static_cast<const float*>(panel_void);
  const int64_t registers = (k + 15) / 16;
  if (n <= 16) {
    PanelRows<1>(x, xs, panel, m, registers, total, first, ahead);
  } else if (n <= 32) {
    PanelRows<2>(x, xs, panel, m, registers, total, first, ahead);
  } else {
    PanelRows<3>(x, xs, panel, m, registers, total, first, ahead);
  }
}

template <class TW>
void AddPanels(Kernel& kernel) {
  kernel.many_rows = kManyRows;
  kernel.columns = kColumns;
  kernel.step = 16;
  kernel.arrange = Arrange;
  kernel.pack = Pack<TW>;
  kernel.multiply = Multiply;
}
#else
template <class TW>
void AddPanels(Kernel&) {}
#endif

template <class TW>
Kernel MakeKernel() {
  Kernel kernel;
  kernel.block = Block<TW>;
  kernel.k_block = 1024;
  kernel.tile_rows = kMaxRows;
  AddPanels<TW>(kernel);
  return kernel;
}

Kernel GetKernel(DType w) {
  switch (w) {
    case DType::kBF16:
      return MakeKernel<BFloat16>();
    case DType::kF16:
      return MakeKernel<Float16>();
    default:
      return MakeKernel<float>();
  }
}

void ToFloat(const void* x, DType dtype, int64_t k, float* out) { fs::LoadRow(x, dtype, k, out); }

template <class TB, class TY>
void FinishTyped(const float* c, int64_t ldc, const TB* bias, int64_t m, int64_t n, TY* y, int64_t ys) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  for (int64_t i = 0; i < m; ++i, c += ldc, y += ys) {
    int64_t j = 0;
    if (bias == nullptr) {
      for (; j + kLanes <= n; j += kLanes) fs::StoreF32(hn::LoadU(d, c + j), d, y + j);
      for (; j < n; ++j) fs::StoreF32(hn::LoadU(d1, c + j), d1, y + j);
    } else {
      for (; j + kLanes <= n; j += kLanes) {
        fs::StoreF32(hn::Add(hn::LoadU(d, c + j), fs::LoadF32(d, bias + j)), d, y + j);
      }
      for (; j < n; ++j) fs::StoreF32(hn::Add(hn::LoadU(d1, c + j), fs::LoadF32(d1, bias + j)), d1, y + j);
    }
  }
}

void Finish(const float* c, int64_t ldc, const void* bias, DType bias_dtype, int64_t m, int64_t n, void* y, int64_t ys,
            DType y_dtype) {
  fs::WithFloatType(y_dtype, [&](auto* ty) HWY_ATTR {
    fs::WithFloatType(bias_dtype, [&](auto* tb) HWY_ATTR {
      using TB = std::remove_pointer_t<decltype(tb)>;
      FinishTyped(c, ldc, static_cast<const TB*>(bias), m, n, static_cast<decltype(ty)>(y), ys);
    });
  });
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

#undef FLUVIAL_GEMM_512
}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::gemm {

HWY_EXPORT(GetKernel);
HWY_EXPORT(ToFloat);
HWY_EXPORT(Finish);
HWY_EXPORT(TargetName);

Kernel SimdKernel(DType w) { return HWY_DYNAMIC_DISPATCH(GetKernel)(w); }

std::string_view SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

void ToFloatRow(const void* x, DType dtype, int64_t k, float* out) { HWY_DYNAMIC_DISPATCH(ToFloat)(x, dtype, k, out); }

void FinishTile(const float* c, int64_t ldc, const void* bias, DType bias_dtype, int64_t m, int64_t n, void* y,
                int64_t ys, DType y_dtype) {
  HWY_DYNAMIC_DISPATCH(Finish)(c, ldc, bias, bias_dtype, m, n, y, ys, y_dtype);
}

}  // namespace fluvial::ops::gemm
#endif
