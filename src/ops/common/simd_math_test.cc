// SPDX-License-Identifier: Apache-2.0
// exp, sigmoid and SiLU against fp64 on every Highway target this machine has.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/common/simd_math_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/common/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::simd {
namespace HWY_NAMESPACE {

// n is a multiple of 16, which every vector length divides.
void ExpLoop(const float* x, float* y, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(simd::HWY_NAMESPACE::Exp(d, hn::LoadU(d, x + i)), d, y + i);
}
void SiluLoop(const float* x, float* y, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(Silu(d, hn::LoadU(d, x + i)), d, y + i);
}
void SigmoidLoop(const float* x, float* y, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(Sigmoid(d, hn::LoadU(d, x + i)), d, y + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::simd {
namespace {

HWY_EXPORT(ExpLoop);
HWY_EXPORT(SiluLoop);
HWY_EXPORT(SigmoidLoop);

class SimdMath : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

std::vector<float> Grid() {
  std::vector<float> x;
  for (int i = -100 * 4096; i <= 88 * 4096; ++i) x.push_back(static_cast<float>(i) / 4096.0f * (1.0f + 1e-7f));
  for (float m = 1e-38f; m < 80.0f; m *= 1.01f) {
    x.push_back(m);
    x.push_back(-m);
  }
  for (float& v : x) v = std::min(v, 88.0f);
  x.resize(x.size() / 16 * 16);
  return x;
}

TEST_P(SimdMath, ExpWithinItsBound) {
  const std::vector<float> x = Grid();
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(ExpLoop)(x.data(), y.data(), x.size());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    if (x[i] < -87.0f) {
      ASSERT_EQ(y[i], 0.0f) << x[i];
      continue;
    }
    worst = std::max(worst, std::abs(y[i] - want) / want);
    ASSERT_LE(std::abs(y[i] - want), want * 0x1p-23) << x[i];
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
}

TEST_P(SimdMath, SigmoidAndSiluWithinTheirBounds) {
  std::vector<float> x = Grid();
  for (float v : {-1e38f, -1000.0f, 1000.0f, 1e38f, 0.0f, -0.0f}) x.push_back(v);
  x.resize((x.size() + 15) / 16 * 16, 1.0f);
  std::vector<float> silu(x.size()), sigmoid(x.size());
  HWY_DYNAMIC_DISPATCH(SiluLoop)(x.data(), silu.data(), x.size());
  HWY_DYNAMIC_DISPATCH(SigmoidLoop)(x.data(), sigmoid.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], s = 1.0 / (1.0 + std::exp(-v));
    if (v < -88) {
      ASSERT_EQ(silu[i], 0.0f) << v;
      ASSERT_EQ(sigmoid[i], 0.0f) << v;
      continue;
    }
    // Below the normal range the spacing of fp32 is 2^-149.
    ASSERT_LE(std::abs(silu[i] - v * s), std::abs(v * s) * 4 * 0x1p-23 + 0x1p-149) << v;
    ASSERT_LE(std::abs(sigmoid[i] - s), s * 4 * 0x1p-23 + 0x1p-149) << v;
  }
}

TEST_P(SimdMath, SpecialValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(16, kNan), y(16);
  x[1] = -kInf;
  x[2] = 0.0f;
  HWY_DYNAMIC_DISPATCH(ExpLoop)(x.data(), y.data(), 16);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 1.0f);
  EXPECT_TRUE(std::isnan(y[15]));
  HWY_DYNAMIC_DISPATCH(SiluLoop)(x.data(), y.data(), 16);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 0.0f);
  HWY_DYNAMIC_DISPATCH(SigmoidLoop)(x.data(), y.data(), 16);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[2], 0.5f);
}

INSTANTIATE_TEST_SUITE_P(Targets, SimdMath, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace fluvial::ops::simd
#endif
