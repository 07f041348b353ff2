// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <string>

#include "base/check.h"

namespace fluvial {

size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
  }
  FLUVIAL_CHECK_MSG(false, "unknown dtype");
  return 0;
}

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kF64:
      return "fp64";
    case DType::kI8:
      return "i8";
    case DType::kU8:
      return "u8";
    case DType::kI16:
      return "i16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kBool:
      return "bool";
    case DType::kF8E4M3:
      return "fp8_e4m3";
    case DType::kF8E5M2:
      return "fp8_e5m2";
  }
  return "unknown";
}

Result<DType> ParseDType(std::string_view t) {
  for (int i = 0; i <= static_cast<int>(DType::kF8E5M2); ++i) {
    if (t == Name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  if (t == "float32" || t == "float") return DType::kF32;
  if (t == "bfloat16") return DType::kBF16;
  if (t == "float16" || t == "half") return DType::kF16;
  if (t == "float64" || t == "double") return DType::kF64;
  return Status::InvalidArgument("unknown dtype '" + std::string(t) + "': use float32, bfloat16 or float16");
}

bool IsFloating(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kF64:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return true;
    default:
      return false;
  }
}

double LoadAsDouble(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kF64:
      return static_cast<const double*>(data)[index];
    case DType::kBF16:
      return ToFloat(static_cast<const BFloat16*>(data)[index]);
    case DType::kF16:
      return ToFloat(static_cast<const Float16*>(data)[index]);
    default:
      break;
  }
  FLUVIAL_CHECK_MSG(false, "LoadAsDouble takes fp32, bf16, fp16 or fp64");
  return 0;
}

void StoreFromDouble(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::kF64:
      static_cast<double*>(data)[index] = value;
      return;
    case DType::kBF16:
      static_cast<BFloat16*>(data)[index] = ToBFloat16(static_cast<float>(value));
      return;
    case DType::kF16:
      static_cast<Float16*>(data)[index] = ToFloat16(static_cast<float>(value));
      return;
    default:
      break;
  }
  FLUVIAL_CHECK_MSG(false, "StoreFromDouble takes fp32, bf16, fp16 or fp64");
}

}  // namespace fluvial
