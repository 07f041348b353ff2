// SPDX-License-Identifier: Apache-2.0
#include "ops/causal_conv1d/cpu_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/causal_conv1d/cpu_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"
#include "ops/common/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::causal_conv1d::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace fs = fluvial::ops::simd::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

/// W = 0: the width is call.width. The taps are added oldest first with FMA, starting from the bias, so a token's bits
/// depend on nothing but its window.
template <class T, int W>
void Rows(const RowsCall& call) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int width = W == 0 ? call.width : W;
  auto finish = [&](hn::Vec<D> y) {
    if (call.eager) y = fs::RoundTo<T>(d, y);
    return call.silu ? fs::Silu(d, y) : y;
  };
  for (int64_t i = 0; i < call.count; ++i) {
    const T* rows[kMaxWidth];
    for (int j = 0; j < width; ++j) {
      rows[j] = reinterpret_cast<const T*>(static_cast<const char*>(call.rows[j]) + i * call.row_pitch);
    }
    T* out = reinterpret_cast<T*>(static_cast<char*>(call.out) + i * call.out_pitch);
    int64_t c = 0;
    for (; c + lanes <= call.channels; c += lanes) {
      auto y = hn::LoadU(d, call.bias + c);
      for (int j = 0; j < width; ++j) {
        y = hn::MulAdd(fs::LoadF32(d, rows[j] + c), hn::LoadU(d, call.taps + j * call.taps_pitch + c), y);
      }
      fs::StoreF32(finish(y), d, out + c);
    }
    if (c < call.channels) {
      const size_t n = static_cast<size_t>(call.channels - c);
      auto y = fs::LoadF32Tail(d, call.bias + c, n);
      for (int j = 0; j < width; ++j) {
        y = hn::MulAdd(fs::LoadF32Tail(d, rows[j] + c, n), fs::LoadF32Tail(d, call.taps + j * call.taps_pitch + c, n),
                       y);
      }
      fs::StoreF32Tail(finish(y), d, out + c, n);
    }
  }
}

template <class T>
void RowsOf(const RowsCall& call) {
  switch (call.width) {
    case 2:
      return Rows<T, 2>(call);
    case 3:
      return Rows<T, 3>(call);
    case 4:
      return Rows<T, 4>(call);
    default:
      return Rows<T, 0>(call);
  }
}

void ConvRowsT(const RowsCall& call) {
  switch (call.io) {
    case DType::kBF16:
      return RowsOf<BFloat16>(call);
    case DType::kF16:
      return RowsOf<Float16>(call);
    default:
      return RowsOf<float>(call);
  }
}

template <class T>
void ExpandAny(const T* weight, int32_t width, int64_t channels, float* taps, int64_t pitch) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int32_t j = 0; j < width; ++j) taps[j * pitch + c] = ToFloat(weight[c * width + j]);
  }
}

void ExpandTapsT(const void* weight, DType dtype, int32_t width, int64_t channels, float* taps, int64_t pitch) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  if (width == 4 && dtype == DType::kF32) {
    for (; c + lanes <= channels; c += lanes) {
      hn::Vec<D> t0, t1, t2, t3;
      hn::LoadInterleaved4(d, static_cast<const float*>(weight) + c * 4, t0, t1, t2, t3);
      hn::StoreU(t0, d, taps + c);
      hn::StoreU(t1, d, taps + pitch + c);
      hn::StoreU(t2, d, taps + 2 * pitch + c);
      hn::StoreU(t3, d, taps + 3 * pitch + c);
    }
  } else if (width == 4 && dtype == DType::kBF16) {
    // One channel is 8 bytes, {w0 | w1 << 16, w2 | w3 << 16}: two interleaved 32-bit words, each holding two taps.
    const hn::RebindToUnsigned<D> du;
    const auto high = hn::Set(du, 0xffff0000u);
    for (; c + lanes <= channels; c += lanes) {
      hn::Vec<decltype(du)> w01, w23;
      hn::LoadInterleaved2(du, reinterpret_cast<const uint32_t*>(static_cast<const BFloat16*>(weight) + c * 4), w01,
                           w23);
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(w01)), d, taps + c);
      hn::StoreU(hn::BitCast(d, hn::And(w01, high)), d, taps + pitch + c);
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(w23)), d, taps + 2 * pitch + c);
      hn::StoreU(hn::BitCast(d, hn::And(w23, high)), d, taps + 3 * pitch + c);
    }
  }
  const int64_t left = channels - c;
  switch (dtype) {
    case DType::kBF16:
      return ExpandAny(static_cast<const BFloat16*>(weight) + c * width, width, left, taps + c, pitch);
    case DType::kF16:
      return ExpandAny(static_cast<const Float16*>(weight) + c * width, width, left, taps + c, pitch);
    default:
      return ExpandAny(static_cast<const float*>(weight) + c * width, width, left, taps + c, pitch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::causal_conv1d::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::causal_conv1d::internal {

HWY_EXPORT(ConvRowsT);
HWY_EXPORT(ExpandTapsT);

void ConvRows(const RowsCall& call) { HWY_DYNAMIC_DISPATCH(ConvRowsT)(call); }

void ExpandTaps(const void* weight, DType dtype, int32_t width, int64_t channels, float* taps, int64_t pitch) {
  HWY_DYNAMIC_DISPATCH(ExpandTapsT)(weight, dtype, width, channels, taps, pitch);
}

}  // namespace fluvial::ops::causal_conv1d::internal
#endif
