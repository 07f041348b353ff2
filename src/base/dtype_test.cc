// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/tensor_view.h"

namespace fluvial {
namespace {

constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,  DType::kI8,     DType::kU8,
                          DType::kI16, DType::kI32,  DType::kI64, DType::kBool, DType::kF8E4M3, DType::kF8E5M2};

TEST(DType, NamesReadBack) {
  for (DType t : kAll) {
    const auto parsed = ParseDType(Name(t));
    ASSERT_TRUE(parsed.ok()) << Name(t);
    EXPECT_EQ(*parsed, t) << Name(t);
  }
}

TEST(DType, SpellingsOfConfigsAndOptions) {
  EXPECT_EQ(*ParseDType("float32"), DType::kF32);
  EXPECT_EQ(*ParseDType("float"), DType::kF32);
  EXPECT_EQ(*ParseDType("bfloat16"), DType::kBF16);
  EXPECT_EQ(*ParseDType("float16"), DType::kF16);
  EXPECT_EQ(*ParseDType("half"), DType::kF16);
  EXPECT_EQ(*ParseDType("float64"), DType::kF64);
  EXPECT_EQ(*ParseDType("double"), DType::kF64);
}

TEST(DType, UnknownNamesAreRefusedWithTheChoices) {
  for (const char* text : {"", "fp33", "BF16", "bf16 ", "int4"}) {
    const auto parsed = ParseDType(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find("float32, bfloat16 or float16"), std::string::npos);
    EXPECT_NE(parsed.status().message().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

TEST(DType, Sizes) {
  EXPECT_EQ(SizeOf(DType::kF64), 8u);
  EXPECT_EQ(SizeOf(DType::kI64), 8u);
  EXPECT_EQ(SizeOf(DType::kF32), 4u);
  EXPECT_EQ(SizeOf(DType::kI32), 4u);
  EXPECT_EQ(SizeOf(DType::kBF16), 2u);
  EXPECT_EQ(SizeOf(DType::kF16), 2u);
  EXPECT_EQ(SizeOf(DType::kI16), 2u);
  for (DType t : {DType::kI8, DType::kU8, DType::kBool, DType::kF8E4M3, DType::kF8E5M2}) EXPECT_EQ(SizeOf(t), 1u);
}

TEST(DType, Floating) {
  for (DType t : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kF8E4M3, DType::kF8E5M2})
    EXPECT_TRUE(IsFloating(t)) << Name(t);
  for (DType t : {DType::kI8, DType::kU8, DType::kI16, DType::kI32, DType::kI64, DType::kBool})
    EXPECT_FALSE(IsFloating(t)) << Name(t);
}

TEST(DType, StoreRoundsAndLoadIsExact) {
  // 1 + 2^-9 is between two bf16 numbers, exact in fp16 and wider.
  const double x = 1 + 0x1p-9;
  BFloat16 b[2];
  StoreFromDouble(b, DType::kBF16, 1, x);
  EXPECT_EQ(LoadAsDouble(b, DType::kBF16, 1), 1.0);
  EXPECT_EQ(LoadAsDouble(b, DType::kBF16, 0), 0.0) << "the neighbour must not change";
  Float16 h;
  StoreFromDouble(&h, DType::kF16, 0, x);
  EXPECT_EQ(LoadAsDouble(&h, DType::kF16, 0), x);
  float f;
  StoreFromDouble(&f, DType::kF32, 0, 1 + 0x1p-40);
  EXPECT_EQ(LoadAsDouble(&f, DType::kF32, 0), 1.0);
  double d;
  StoreFromDouble(&d, DType::kF64, 0, 1 + 0x1p-40);
  EXPECT_EQ(LoadAsDouble(&d, DType::kF64, 0), 1 + 0x1p-40);
}

TEST(DTypeDeathTest, LoadingAnIntegerAsDoubleIsABug) {
  int32_t i = 0;
  EXPECT_DEATH(LoadAsDouble(&i, DType::kI32, 0), "LoadAsDouble takes fp32");
  EXPECT_DEATH(StoreFromDouble(&i, DType::kI32, 0, 1), "StoreFromDouble takes fp32");
}

TEST(TensorView, PackedStrides) {
  float data[24];
  const TensorView v(data, DType::kF32, {2, 3, 4});
  EXPECT_EQ(v.rank, 3);
  EXPECT_EQ(v.stride(0), 12);
  EXPECT_EQ(v.stride(1), 4);
  EXPECT_EQ(v.stride(2), 1);
  EXPECT_EQ(v.elements(), 24);
  EXPECT_TRUE(v.packed());
  EXPECT_EQ(v.ToString(), "fp32[2,3,4]");
  EXPECT_EQ(v.as<float>(), data);
}

TEST(TensorView, SlicesAreNotPackedAndSaySo) {
  BFloat16 data[64];
  const TensorView v(data, DType::kBF16, {2, 3, 4}, {32, 4, 1});
  EXPECT_FALSE(v.packed());
  EXPECT_EQ(v.ToString(), "bf16[2,3,4] strides [32,4,1]");
  // A dimension of one may have any stride.
  EXPECT_TRUE(TensorView(data, DType::kBF16, {1, 3, 4}, {999, 4, 1}).packed());
}

TEST(TensorView, ElementsBeyond32Bits) {
  const TensorView v(nullptr, DType::kI8, {1 << 20, 1 << 20});
  EXPECT_EQ(v.elements(), int64_t{1} << 40);
  EXPECT_EQ(v.stride(0), 1 << 20);
  EXPECT_FALSE(v.defined());
}

TEST(TensorView, EmptyAndScalar) {
  int x = 0;
  EXPECT_EQ(TensorView(&x, DType::kI32, {0, 5}).elements(), 0);
  EXPECT_EQ(TensorView(&x, DType::kI32, {}).elements(), 1);
}

TEST(TensorViewDeathTest, WrongTypesAndRanksAreBugs) {
  float data[2];
  const TensorView v(data, DType::kF32, {2});
  EXPECT_DEATH(v.as<BFloat16>(), "check failed");
  EXPECT_DEATH(TensorView(data, DType::kF32, {1, 1, 1, 1, 1, 2}), "check failed");
  EXPECT_DEATH(TensorView(data, DType::kF32, {2}, {1, 1}), "check failed");
}

}  // namespace
}  // namespace fluvial
