// SPDX-License-Identifier: Apache-2.0
// Element types. Names are the ones printed in problem lines and accepted by options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/float16.h"
#include "fluvial/status.h"

namespace fluvial {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI8, kU8, kI16, kI32, kI64, kBool, kF8E4M3, kF8E5M2 };

/// Bytes of one element.
size_t SizeOf(DType dtype);

/// Short name: fp32, bf16, fp16, fp64, i8, u8, i16, i32, i64, bool, fp8_e4m3, fp8_e5m2.
std::string_view Name(DType dtype);

/// Accepts the short names and the spellings of config.json and of vLLM's options: float32, float,
/// bfloat16, float16, half, float64. Anything else is an invalid_argument that lists the floating names.
Result<DType> ParseDType(std::string_view text);

bool IsFloating(DType dtype);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};

inline float ToFloat(float x) { return x; }

/// Round-to-nearest-even conversion to a storage type.
template <class T>
T FromFloat(float x);
template <>
inline float FromFloat<float>(float x) {
  return x;
}
template <>
inline BFloat16 FromFloat<BFloat16>(float x) {
  return ToBFloat16(x);
}
template <>
inline Float16 FromFloat<Float16>(float x) {
  return ToFloat16(x);
}

/// Reads element `index` of an array of fp32/bf16/fp16/fp64 as double. For references and tests, not kernels.
double LoadAsDouble(const void* data, DType dtype, int64_t index);

/// Rounds to fp32 first, then to `dtype` (fp64 is stored as it is), and stores. For references and tests.
void StoreFromDouble(void* data, DType dtype, int64_t index, double value);

}  // namespace fluvial
