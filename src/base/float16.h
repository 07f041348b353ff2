// SPDX-License-Identifier: Apache-2.0
// bf16 and fp16 storage types with IEEE round-to-nearest-even conversions. Usable in .cc and .cu host code.
//
// NaN keeps its sign and stays NaN (the mantissa is quieted); infinities and denormals convert exactly as
// IEEE 754 asks. Tested over all 65,536 patterns and against a double-precision rounding model.
#pragma once

#include <bit>
#include <cstdint>

namespace fluvial {

/// bfloat16: 8 exponent bits, 7 mantissa bits. Storage only; arithmetic happens in float.
struct BFloat16 {
  uint16_t bits = 0;
  friend bool operator==(BFloat16 a, BFloat16 b) = default;  // bit equality, not IEEE equality
};

/// IEEE binary16. Storage only.
struct Float16 {
  uint16_t bits = 0;
  friend bool operator==(Float16 a, Float16 b) = default;  // bit equality
};

inline float ToFloat(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline BFloat16 ToBFloat16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // NaN
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float ToFloat(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    // Zero or denormal: mantissa * 2^-24, exact in float.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline Float16 ToFloat16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu))};
  if (a >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // >= 65520 rounds to infinity
  if (a < 0x38800000u) {
    // Below 2^-14 the result is denormal: adding 0.5 lets the FPU round at bit 2^-24.
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace fluvial
