// SPDX-License-Identifier: Apache-2.0
// The SIMD conversions give the bits of base/float16.h on every Highway target this machine has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/hash.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/simd_io_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::simd {
namespace HWY_NAMESPACE {

template <class T>
void LoadLoop(const T* from, float* to, size_t n) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) hn::StoreU(LoadF32(d, from + i), d, to + i);
  if (i < n) StoreF32Tail(LoadF32Tail(d, from + i, n - i), d, to + i, n - i);
}
template <class T>
void StoreLoop(const float* from, T* to, size_t n) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) StoreF32(hn::LoadU(d, from + i), d, to + i);
  if (i < n) StoreF32Tail(LoadF32Tail(d, from + i, n - i), d, to + i, n - i);
}
void LoadBF16(const BFloat16* from, float* to, size_t n) { LoadLoop(from, to, n); }
void LoadF16(const Float16* from, float* to, size_t n) { LoadLoop(from, to, n); }
void StoreBF16(const float* from, BFloat16* to, size_t n) { StoreLoop(from, to, n); }
void StoreF16(const float* from, Float16* to, size_t n) { StoreLoop(from, to, n); }
/// n is a multiple of 16, which every vector length divides.
void RoundBoth(const float* from, float* bf16, float* fp16, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, from + i);
    hn::StoreU(RoundTo<BFloat16>(d, v), d, bf16 + i);
    hn::StoreU(RoundTo<Float16>(d, v), d, fp16 + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::simd {
namespace {

HWY_EXPORT(LoadBF16);
HWY_EXPORT(LoadF16);
HWY_EXPORT(StoreBF16);
HWY_EXPORT(StoreF16);
HWY_EXPORT(RoundBoth);

class SimdIo : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// NaN payloads may be quieted by hardware: NaN is compared as NaN, everything else bit for bit.
void ExpectSame(float a, float b, uint32_t pattern) {
  if (std::isnan(a) && std::isnan(b)) return;
  ASSERT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)) << "pattern " << pattern;
}

TEST_P(SimdIo, LoadsAllPatterns) {
  constexpr size_t kN = 65536 - 3;  // not a multiple of any vector: the tail path is taken
  std::vector<BFloat16> b(kN);
  std::vector<Float16> h(kN);
  for (size_t i = 0; i < kN; ++i) b[i].bits = h[i].bits = static_cast<uint16_t>(i);
  std::vector<float> out(kN);
  HWY_DYNAMIC_DISPATCH(LoadBF16)(b.data(), out.data(), kN);
  for (size_t i = 0; i < kN; ++i) ExpectSame(out[i], ToFloat(b[i]), static_cast<uint32_t>(i));
  HWY_DYNAMIC_DISPATCH(LoadF16)(h.data(), out.data(), kN);
  for (size_t i = 0; i < kN; ++i) ExpectSame(out[i], ToFloat(h[i]), static_cast<uint32_t>(i));
}

TEST_P(SimdIo, StoresRoundToNearestEven) {
  std::vector<float> in;
  for (uint32_t hi = 0; hi < 65536; ++hi) {
    // Around every bf16 value: exact, just below, at and just above the tie; plus a random low half.
    for (uint32_t lo : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, static_cast<uint32_t>(Mix64(hi) & 0xffffu)}) {
      in.push_back(std::bit_cast<float>(hi << 16 | lo));
    }
  }
  for (uint32_t i = 0; i < 65536; ++i) {
    // Around every fp16 value, including the ties of its denormals.
    const float x = ToFloat(Float16{static_cast<uint16_t>(i)});
    const float y = ToFloat(Float16{static_cast<uint16_t>(i ^ 1u)});
    const float middle = 0.5f * x + 0.5f * y;
    for (float v : {x, middle, std::nextafter(middle, x), std::nextafter(middle, y)}) in.push_back(v);
  }
  in.resize(in.size() - 1);
  std::vector<BFloat16> b(in.size());
  std::vector<Float16> h(in.size());
  HWY_DYNAMIC_DISPATCH(StoreBF16)(in.data(), b.data(), in.size());
  HWY_DYNAMIC_DISPATCH(StoreF16)(in.data(), h.data(), in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(b[i].bits, ToBFloat16(in[i]).bits) << in[i];
    ASSERT_EQ(h[i].bits, ToFloat16(in[i]).bits) << in[i];
  }
  const size_t whole = in.size() / 16 * 16;
  std::vector<float> rb(whole), rh(whole);
  HWY_DYNAMIC_DISPATCH(RoundBoth)(in.data(), rb.data(), rh.data(), whole);
  for (size_t i = 0; i < whole; ++i) {
    ExpectSame(rb[i], ToFloat(b[i]), static_cast<uint32_t>(i));
    ExpectSame(rh[i], ToFloat(h[i]), static_cast<uint32_t>(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SimdIo, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace fluvial::ops::simd
#endif
