// SPDX-License-Identifier: Apache-2.0
// Every pattern of bf16 and fp16, and rounding against a model written in double arithmetic.
#include "base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace fluvial {
namespace {

/// A binary format by its parameters; nothing here looks at bits of the types under test.
struct Format {
  int significand_bits;  // with the implicit one
  int min_exponent;      // exponent of the smallest normal number
  double max_finite;
};
constexpr Format kBF16{8, -126, 0x1.fep127};
constexpr Format kF16{11, -14, 65504.0};

/// IEEE 754 round-to-nearest-even of a finite double (section 4.3.1: values of at least max_finite plus half a
/// unit in the last place become infinite).
double RoundModel(double x, const Format& f) {
  if (x == 0 || std::isinf(x)) return x;
  const int exponent = std::max(std::ilogb(x), f.min_exponent);
  const int unit = exponent - (f.significand_bits - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);  // exact but for nearbyint
  return std::fabs(rounded) > f.max_finite ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

double ValueOf(BFloat16 x) { return ToFloat(x); }
double ValueOf(Float16 x) { return ToFloat(x); }
template <class T>
T Convert(float x);
template <>
BFloat16 Convert<BFloat16>(float x) {
  return ToBFloat16(x);
}
template <>
Float16 Convert<Float16>(float x) {
  return ToFloat16(x);
}

/// Value of a 16-bit pattern from the definition: (-1)^s * 2^e * significand.
double DefinedValue(uint16_t bits, int mantissa_bits, int bias) {
  const int exponent_bits = 15 - mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

template <class T>
void EveryPatternHasItsDefinedValueAndComesBack(int mantissa_bits, int bias) {
  for (uint32_t u = 0; u <= 0xffff; ++u) {
    const T x{static_cast<uint16_t>(u)};
    const double want = DefinedValue(x.bits, mantissa_bits, bias);
    const float got = ToFloat(x);
    const T back = Convert<T>(got);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << u;
      ASSERT_TRUE(std::isnan(ToFloat(back))) << u;
      ASSERT_EQ(back.bits & 0x8000, x.bits & 0x8000) << "sign of NaN " << u;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), want) << u;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << u;
    ASSERT_EQ(back.bits, x.bits) << u;
  }
}
TEST(BFloat16, EveryPatternHasItsDefinedValueAndComesBack) {
  EveryPatternHasItsDefinedValueAndComesBack<BFloat16>(7, 127);
}
TEST(Float16, EveryPatternHasItsDefinedValueAndComesBack) {
  EveryPatternHasItsDefinedValueAndComesBack<Float16>(10, 15);
}

template <class T>
void ExpectModel(float x, const Format& f) {
  const T got = Convert<T>(x);
  const double want = RoundModel(x, f);
  ASSERT_EQ(ValueOf(got), want) << "input " << std::hexfloat << x;
  ASSERT_EQ(std::signbit(ValueOf(got)), std::signbit(x)) << "input " << std::hexfloat << x;
}

/// Between neighbours a < b the decision changes exactly at the middle: test it and the floats beside it.
template <class T>
void RoundsAtEveryMiddle(const Format& f, uint16_t last_finite) {
  for (uint32_t u = 0; u < last_finite; ++u) {
    const double a = ValueOf(T{static_cast<uint16_t>(u)}), b = ValueOf(T{static_cast<uint16_t>(u + 1)});
    const float middle = static_cast<float>((a + b) / 2);
    if (static_cast<double>(middle) != (a + b) / 2) continue;  // bf16's last denormals: no float in between
    for (float x : {std::nextafterf(middle, 0.0f), middle, std::nextafterf(middle, INFINITY)}) {
      ExpectModel<T>(x, f);
      ExpectModel<T>(-x, f);
    }
  }
}
TEST(BFloat16, RoundsAtEveryMiddle) { RoundsAtEveryMiddle<BFloat16>(kBF16, 0x7f7f); }
TEST(Float16, RoundsAtEveryMiddle) { RoundsAtEveryMiddle<Float16>(kF16, 0x7bff); }

template <class T>
void RandomPatternsFollowTheModel(const Format& f) {
  std::mt19937 random(20240611);
  for (int i = 0; i < 2'000'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(ValueOf(Convert<T>(x)))) << std::bit_cast<uint32_t>(x);
      continue;
    }
    ExpectModel<T>(x, f);
  }
}
TEST(BFloat16, RandomPatternsFollowTheModel) { RandomPatternsFollowTheModel<BFloat16>(kBF16); }
TEST(Float16, RandomPatternsFollowTheModel) { RandomPatternsFollowTheModel<Float16>(kF16); }

TEST(Float16, OverflowBeginsHalfAUnitAboveTheLargest) {
  EXPECT_EQ(ToFloat16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-65520.0f).bits, 0xfc00);
  EXPECT_EQ(ToFloat16(3.4e38f).bits, 0x7c00);
}

TEST(Float16, DenormalsAndUnderflow) {
  EXPECT_EQ(ToFloat16(0x1p-24f).bits, 1);
  EXPECT_EQ(ToFloat16(0x1p-25f).bits, 0) << "a tie goes to even, which is zero";
  EXPECT_EQ(ToFloat16(0x1.000002p-25f).bits, 1);
  EXPECT_EQ(ToFloat16(-0x1p-30f).bits, 0x8000);
  EXPECT_EQ(ToFloat16(0x1.ff8p-15f).bits, 0x3ff) << "largest denormal";
  EXPECT_EQ(ToFloat16(0x1.ffcp-15f).bits, 0x400) << "a tie rounds up into the normals";
}

TEST(BFloat16, OverflowAndInfinity) {
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(ToBFloat16(0x1.fep127f).bits, 0x7f7f);
  EXPECT_EQ(ToBFloat16(-INFINITY).bits, 0xff80);
}

TEST(Float16, NaNWithAPayloadInTheLowBitsStaysNaN) {
  // A payload that lies wholly in the bits that are cut off must not turn into infinity.
  EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace fluvial
