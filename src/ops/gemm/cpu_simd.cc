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

#include <type_traits>

#include "ops/common/float_io-inl.h"
#include "ops/gemm/kernels.h"

#if HWY_ARCH_X86
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::gemm {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace common = fluvial::ops::HWY_NAMESPACE;
using fluvial::ops::HWY_NAMESPACE::LoadF;
using fluvial::ops::HWY_NAMESPACE::StoreF;
using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define FLUVIAL_GEMM_512 1
#include "ops/gemm/transpose512-inl.h"
#else
#define FLUVIAL_GEMM_512 0
#endif

constexpr int64_t kLanes = int64_t(hn::MaxLanes(DF()));
constexpr int kVectors = 3;
constexpr int64_t kColumns = kVectors * kLanes;
// 32 registers of AVX-512 hold 8 x 3 sums, 16 registers 4 x 3.
constexpr int kMaxRows = FLUVIAL_GEMM_512 ? 8 : 4;

// panel[l][j] = w[j][l] for a group of rows, one register wide; rows from `rows` on are zero.
template <class TW>
HWY_INLINE void PackVector(const TW* w, int64_t ws, int64_t rows, int64_t k, float* panel) {
  const hn::CappedTag<float, 1> d1;
  int64_t l = 0;
#if FLUVIAL_GEMM_512
  for (; l + 16 <= k; l += 16) {
    __m512 row[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) row[r] = r < rows ? LoadF(DF(), w + r * ws + l).raw : _mm512_setzero_ps();
    Transpose16(row);
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) _mm512_storeu_ps(panel + (l + p) * kColumns, row[p]);
  }
#elif HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d4;
  {
    // 4 x 4 pieces: interleave 4-byte, then 8-byte units.
    const hn::RepartitionToWide<decltype(d4)> d2;
    for (; l + 4 <= k; l += 4) {
      for (int64_t r = 0; r < kLanes; r += 4) {
        auto load = [&](int64_t q) HWY_ATTR { return q < rows ? LoadF(d4, w + q * ws + l) : hn::Zero(d4); };
        const auto a = load(r), b = load(r + 1), c = load(r + 2), e = load(r + 3);
        const auto ab = hn::BitCast(d2, hn::InterleaveLower(d4, a, b)),
                   ce = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
        const auto AB = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b)),
                   CE = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
        float* to = panel + l * kColumns + r;
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab, ce)), d4, to);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab, ce)), d4, to + kColumns);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, AB, CE)), d4, to + 2 * kColumns);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, AB, CE)), d4, to + 3 * kColumns);
      }
    }
  }
#endif
  for (; l < k; ++l) {
    for (int64_t r = 0; r < kLanes; ++r) {
      panel[l * kColumns + r] = r < rows ? hn::GetLane(LoadF(d1, w + r * ws + l)) : 0.0f;
    }
  }
}

template <class TW>
void Pack(const void* w_void, int64_t ws, int64_t n, int64_t k, void* panel) {
  const TW* w = static_cast<const TW*>(w_void);
  for (int64_t j = 0; j < n; j += kLanes) {
    float* to = static_cast<float*>(panel) + j;
    // The full width has its own instance, in which every row is known to be there.
    if (n - j >= kLanes) {
      PackVector(w + j * ws, ws, kLanes, k, to);
    } else {
      PackVector(w + j * ws, ws, n - j, k, to);
    }
  }
}

template <int MR, int NV>
HWY_NOINLINE void Tile(const float* x, int64_t xs, const float* panel, int64_t k, float* block, bool first_chunk,
                       float* total, bool first_block, const Ahead& ahead) {
  const DF d;
  VF acc[MR][NV];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      acc[i][v] = first_chunk ? hn::Zero(d) : hn::LoadU(d, block + i * kColumns + v * kLanes);
    }
  }
  auto step = [&](int64_t l) HWY_ATTR {
    VF w[NV];
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) w[v] = hn::LoadU(d, panel + l * kColumns + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const VF xv = hn::Set(d, x[i * xs + l]);
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) acc[i][v] = hn::MulAdd(xv, w[v], acc[i][v]);
    }
  };
  if (ahead.rows > 0) {
    Prefetcher prefetch(ahead, k);
    for (int64_t l = 0; l < k; ++l) {
      prefetch.Next();
      step(l);
    }
  } else {
    for (int64_t l = 0; l < k; ++l) step(l);
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) {
      const int64_t at = i * kColumns + v * kLanes;
      if (total == nullptr) {
        hn::StoreU(acc[i][v], d, block + at);
      } else {
        hn::StoreU(first_block ? acc[i][v] : hn::Add(hn::LoadU(d, total + at), acc[i][v]), d, total + at);
      }
    }
  }
}

template <int MR, int NV>
HWY_INLINE int64_t Tiles(const float* x, int64_t xs, const float* panel, int64_t i, int64_t m, int64_t k, float* block,
                         bool first_chunk, float* total, bool first_block, const Ahead& ahead) {
  for (; i + MR <= m; i += MR) {
    Tile<MR, NV>(x + i * xs, xs, panel, k, block + i * kColumns, first_chunk,
                 total == nullptr ? nullptr : total + i * kColumns, first_block,
                 i == 0 && ahead.rows > 0 ? ahead : AheadOfX(x + (i + MR) * xs, xs * 4, m - i - MR, MR, k * 4));
  }
  return i;
}

template <int NV>
void Rows(const float* x, int64_t xs, const float* panel, int64_t m, int64_t k, float* block, bool first_chunk,
          float* total, bool first_block, const Ahead& ahead) {
  int64_t i = 0;
  if constexpr (kMaxRows == 8) i = Tiles<8, NV>(x, xs, panel, i, m, k, block, first_chunk, total, first_block, ahead);
  i = Tiles<4, NV>(x, xs, panel, i, m, k, block, first_chunk, total, first_block, ahead);
  i = Tiles<2, NV>(x, xs, panel, i, m, k, block, first_chunk, total, first_block, ahead);
  Tiles<1, NV>(x, xs, panel, i, m, k, block, first_chunk, total, first_block, ahead);
}

void Multiply(const void* x_void, int64_t xs, const void* panel_void, int64_t m, int64_t n, int64_t k, float* block,
              bool first_chunk, float* total, bool first_block, const Ahead& ahead) {
  const float* x = static_cast<const float*>(x_void);
  const float* panel = static_cast<const float*>(panel_void);
  if (n <= kLanes) {
    Rows<1>(x, xs, panel, m, k, block, first_chunk, total, first_block, ahead);
  } else if (n <= 2 * kLanes) {
    Rows<2>(x, xs, panel, m, k, block, first_chunk, total, first_block, ahead);
  } else {
    Rows<3>(x, xs, panel, m, k, block, first_chunk, total, first_block, ahead);
  }
}

Kernel GetKernel(DType w) {
  Kernel kernel;
  kernel.x = DType::kF32;
  kernel.columns = kColumns;
  kernel.vector = kLanes;
  kernel.pair = 1;
  kernel.panel_bytes = 4;
  kernel.multiply = Multiply;
  switch (w) {
    case DType::kBF16:
      kernel.pack = Pack<BFloat16>;
      break;
    case DType::kF16:
      kernel.pack = Pack<Float16>;
      break;
    default:
      kernel.pack = Pack<float>;
  }
  return kernel;
}

void ToFloat(const void* x, DType dtype, int64_t k, float* out) { common::LoadRow(x, dtype, k, out); }

template <class TB, class TY>
void FinishTyped(const float* c, int64_t ldc, const TB* bias, int64_t m, int64_t n, TY* y, int64_t ys) {
  const DF d;
  const hn::CappedTag<float, 1> d1;
  for (int64_t i = 0; i < m; ++i, c += ldc, y += ys) {
    int64_t j = 0;
    if (bias == nullptr) {
      for (; j + kLanes <= n; j += kLanes) StoreF(hn::LoadU(d, c + j), d, y + j);
      for (; j < n; ++j) StoreF(hn::LoadU(d1, c + j), d1, y + j);
    } else {
      for (; j + kLanes <= n; j += kLanes) StoreF(hn::Add(hn::LoadU(d, c + j), LoadF(d, bias + j)), d, y + j);
      for (; j < n; ++j) StoreF(hn::Add(hn::LoadU(d1, c + j), LoadF(d1, bias + j)), d1, y + j);
    }
  }
}

void Finish(const float* c, int64_t ldc, const void* bias, DType bias_dtype, int64_t m, int64_t n, void* y, int64_t ys,
            DType y_dtype) {
  common::WithFloatType(y_dtype, [&](auto* ty) HWY_ATTR {
    common::WithFloatType(bias_dtype, [&](auto* tb) HWY_ATTR {
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
