// SPDX-License-Identifier: Apache-2.0
#include "ops/rope/rope.h"

#include <cmath>
#include <string>
#include <vector>

#include "ops/common/row_walk.h"
#include "ops/rope/rows.h"

namespace fluvial::ops::rope {
namespace {

std::string_view Name(Kind kind) {
  switch (kind) {
    case Kind::kPlain:
      return "plain";
    case Kind::kMropeChunked:
      return "mrope chunked";
    case Kind::kMropeInterleaved:
      return "mrope interleaved";
    case Kind::kAxial:
      return "axial";
  }
  return "?";
}

bool IsMrope(Kind kind) { return kind == Kind::kMropeChunked || kind == Kind::kMropeInterleaved; }

// Rounded where transformers computes it in fp32: exponent, power, reciprocal.
float Frequency(double theta, int32_t i, int32_t dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
  const float power = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), exponent));
  return 1.0f / power;
}

// Row of positions that pair i takes.
int RowOf(const Spec& spec, int32_t i) {
  const auto& s = spec.sections;
  switch (spec.kind) {
    case Kind::kPlain:
      return 0;
    case Kind::kMropeChunked:
      return i < s[0] ? 0 : i < s[0] + s[1] ? 1 : 2;
    case Kind::kMropeInterleaved: {
      const int r = i % 3;
      return i < 3 * s[r] ? r : 0;
    }
    case Kind::kAxial:
      return i < spec.dim / 4 ? 0 : 1;
  }
  return 0;
}

Status CheckTable(const char* name, const TensorView& t, int64_t tokens, int64_t half) {
  if (t.rank == 2 && t.dtype == DType::kF32 && t.dim(0) == tokens && t.dim(1) == half &&
      (half <= 1 || t.stride(1) == 1) && (t.elements() == 0 || t.defined())) {
    return Status::Ok();
  }
  return Status::InvalidArgument("rope: " + std::string(name) + " is " + t.ToString() + ": give an fp32[" +
                                 std::to_string(tokens) + "," + std::to_string(half) + "] with unit inner stride");
}

Status CheckDevice(const Stream& stream) {
  if (stream.device().kind == DeviceKind::kCpu) return Status::Ok();
  return Status::Refused("rope: this build has no body for " + stream.device().Arch());
}

}  // namespace

int Spec::position_rows() const { return kind == Kind::kPlain ? 1 : kind == Kind::kAxial ? 2 : 3; }

Status Validate(const Spec& spec) {
  const int32_t unit = spec.kind == Kind::kAxial ? 4 : 2;
  if (spec.dim <= 0 || spec.dim % unit != 0) {
    return Status::InvalidArgument("rope: dim=" + std::to_string(spec.dim) + ": " + std::string(Name(spec.kind)) +
                                   " needs a positive multiple of " + std::to_string(unit));
  }
  if (!(spec.theta > 0) || !std::isfinite(spec.theta)) {
    return Status::InvalidArgument("rope: theta=" + std::to_string(spec.theta) + ": must be above 0 and finite");
  }
  if (!IsMrope(spec.kind)) return Status::Ok();
  int64_t sum = 0;
  std::string list;
  for (int32_t s : spec.sections) {
    if (s < 0) return Status::InvalidArgument("rope: mrope sections must not be negative, got " + std::to_string(s));
    sum += s;
    list += (list.empty() ? "" : ",") + std::to_string(s);
  }
  if (sum != spec.dim / 2) {
    return Status::InvalidArgument("rope: mrope sections " + list + " add up to " + std::to_string(sum) +
                                   ", must be dim/2 = " + std::to_string(spec.dim / 2));
  }
  return Status::Ok();
}

Status Tables(Stream& stream, const Spec& spec, const TensorView& positions, const TensorView& cos,
              const TensorView& sin) {
  FLUVIAL_RETURN_IF_ERROR(Validate(spec));
  FLUVIAL_RETURN_IF_ERROR(CheckDevice(stream));
  const bool typed = positions.dtype == DType::kI32 || positions.dtype == DType::kI64;
  const bool text_only = positions.rank == 2 && positions.dim(0) == 1 && IsMrope(spec.kind);
  if (!typed || positions.rank != 2 || (positions.dim(0) != spec.position_rows() && !text_only) ||
      (positions.dim(1) > 1 && positions.stride(1) != 1) || (positions.elements() > 0 && !positions.defined())) {
    return Status::InvalidArgument("rope: positions are " + positions.ToString() + ": " + std::string(Name(spec.kind)) +
                                   " needs i32 or i64 [" + std::to_string(spec.position_rows()) +
                                   ",tokens] with unit inner stride");
  }
  const int64_t tokens = positions.dim(1), half = spec.dim / 2;
  FLUVIAL_RETURN_IF_ERROR(CheckTable("cos", cos, tokens, half));
  FLUVIAL_RETURN_IF_ERROR(CheckTable("sin", sin, tokens, half));
  if (tokens == 0) return Status::Ok();

  std::vector<float> frequency(half);
  std::vector<int> row(half);
  for (int32_t i = 0; i < half; ++i) {
    row[i] = text_only ? 0 : RowOf(spec, i);
    // An axis has dim/4 frequencies of its own dimension dim/2.
    frequency[i] = spec.kind == Kind::kAxial ? Frequency(spec.theta, i % (spec.dim / 4), spec.dim / 2)
                                             : Frequency(spec.theta, i, spec.dim);
  }
  auto position = [&](int r, int64_t t) {
    const int64_t at = r * positions.stride(0) + t;
    // fp32, as transformers casts positions.
    return positions.dtype == DType::kI32 ? static_cast<float>(positions.as<int32_t>()[at])
                                          : static_cast<float>(positions.as<int64_t>()[at]);
  };
  const RowShape shape{1, tokens, half};
  ForEachRow(stream.pool(), shape, half * 64, [&](int64_t, int64_t t) {
    float* c = cos.as<float>() + t * cos.stride(0);
    float* s = sin.as<float>() + t * sin.stride(0);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position(row[i], t) * frequency[i];
      c[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      s[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  });
  return Status::Ok();
}

Status Apply(Stream& stream, const TensorView& x, const TensorView& cos, const TensorView& sin, Rounding rounding,
             const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckDevice(stream));
  FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("rope", "x", x, 2));
  FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("rope", "y", y, 2));
  FLUVIAL_RETURN_IF_ERROR(CheckSameDims("rope", "x", x, "y", y));
  const int64_t half = cos.rank == 2 ? cos.dim(1) : 0;
  FLUVIAL_RETURN_IF_ERROR(CheckTable("cos", cos, x.dim(0), half));
  FLUVIAL_RETURN_IF_ERROR(CheckTable("sin", sin, x.dim(0), half));
  RowShape s = RowShapeOf(x);
  if (2 * half > s.n) {
    return Status::InvalidArgument("rope: tables rotate " + std::to_string(2 * half) +
                                   " elements, but heads of x have " + std::to_string(s.n));
  }
  if (x.elements() == 0) return Status::Ok();
  const bool heads = x.rank == 3;
  ForEachRow(stream.pool(), s, s.n * 2, [&](int64_t o, int64_t i) {
    const int64_t t = heads ? o : i;
    const char* from = static_cast<const char*>(RowAt(x, o, i));
    char* to = static_cast<char*>(RowAt(y, o, i));
    RotateHead(from, x.dtype, to, y.dtype, cos.as<float>() + t * cos.stride(0), sin.as<float>() + t * sin.stride(0),
               half, rounding);
    CopyTail(from + 2 * half * int64_t(SizeOf(x.dtype)), x.dtype, to + 2 * half * int64_t(SizeOf(y.dtype)), y.dtype,
             s.n - 2 * half);
  });
  return Status::Ok();
}

}  // namespace fluvial::ops::rope
