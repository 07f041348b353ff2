// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/elementwise.h"

#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "ops/common/row_walk.h"
#include "ops/elementwise/rows.h"

namespace fluvial::ops::elementwise {
namespace {

Status CheckDevice(const Stream& stream) {
  if (stream.device().kind == DeviceKind::kCpu) return Status::Ok();
  return Status::Refused("elementwise: this build has no body for " + stream.device().Arch());
}

using Named = std::pair<const char*, const TensorView*>;

// All float tensors of rank 1..3 with the same dims.
Status CheckAlike(const Stream& stream, const char* op, std::initializer_list<Named> tensors) {
  FLUVIAL_RETURN_IF_ERROR(CheckDevice(stream));
  for (const auto& [name, t] : tensors) {
    FLUVIAL_RETURN_IF_ERROR(CheckFloatRows(op, name, *t));
    FLUVIAL_RETURN_IF_ERROR(CheckSameDims(op, tensors.begin()->first, *tensors.begin()->second, name, *t));
  }
  return Status::Ok();
}

// Elements that a transcendental function is worth, relative to a copy.
constexpr int64_t kHeavy = 8;

template <class Fn>
void Walk(Stream& stream, const TensorView& y, int64_t weight, Fn&& fn) {
  if (y.elements() == 0) return;
  const RowShape s = RowShapeOf(y);
  ForEachRow(stream.pool(), s, s.n * weight, [&](int64_t o, int64_t i) { fn(o, i, s.n); });
}

In InOf(const TensorView& t, int64_t o, int64_t i) { return {RowAt(t, o, i), t.dtype}; }
Out OutOf(const TensorView& t, int64_t o, int64_t i) { return {RowAt(t, o, i), t.dtype}; }

// Checks an index vector and returns it as int64: kInvalidArgument on the first index outside 0..limit-1.
Result<std::vector<int64_t>> ReadIndexes(const char* op, const char* name, const TensorView& t, int64_t count,
                                         int64_t limit) {
  const std::string where = std::string(op) + ": " + name + " is " + t.ToString();
  if (t.rank != 1 || (t.dtype != DType::kI32 && t.dtype != DType::kI64) || t.dim(0) != count ||
      (count > 1 && t.stride(0) != 1) || (count > 0 && !t.defined())) {
    return Status::InvalidArgument(where + ": give a packed i32[" + std::to_string(count) + "] or i64[" +
                                   std::to_string(count) + "]");
  }
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    out[i] = t.dtype == DType::kI32 ? t.as<int32_t>()[i] : t.as<int64_t>()[i];
    if (out[i] < 0 || out[i] >= limit) {
      return Status::InvalidArgument(std::string(op) + ": " + name + "[" + std::to_string(i) +
                                     "] = " + std::to_string(out[i]) + ": must lie in 0.." + std::to_string(limit - 1));
    }
  }
  return out;
}

Status CheckRowCopy(const Stream& stream, const char* op, const char* a_name, const TensorView& a, const char* b_name,
                    const TensorView& b) {
  FLUVIAL_RETURN_IF_ERROR(CheckDevice(stream));
  for (const auto& [name, t] : {Named{a_name, &a}, Named{b_name, &b}}) {
    FLUVIAL_RETURN_IF_ERROR(CheckFloatRows(op, name, *t));
    if (t->rank != 2) {
      return Status::InvalidArgument(std::string(op) + ": " + name + " is " + t->ToString() + ": give it rank 2");
    }
  }
  if (a.dim(1) != b.dim(1)) {
    return Status::InvalidArgument(std::string(op) + ": rows of " + a_name + " have " + std::to_string(a.dim(1)) +
                                   " elements, those of " + b_name + " " + std::to_string(b.dim(1)));
  }
  return Status::Ok();
}

}  // namespace

std::string_view Name(Function function) {
  constexpr std::array<std::string_view, 5> names = {"sigmoid", "silu", "gelu", "gelu_tanh", "softplus"};
  return names[static_cast<size_t>(function)];
}

Status Apply(Stream& stream, Function f, const TensorView& x, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckAlike(stream, "elementwise", {{"x", &x}, {"y", &y}}));
  Walk(stream, y, kHeavy, [&](int64_t o, int64_t i, int64_t n) { ApplyRow(f, InOf(x, o, i), OutOf(y, o, i), n); });
  return Status::Ok();
}

Status Glu(Stream& stream, const GluArgs& a) {
  FLUVIAL_RETURN_IF_ERROR(CheckAlike(stream, "glu", {{"gate", &a.gate}, {"up", &a.up}, {"y", &a.y}}));
  if (a.form == GluArgs::Form::kClamped && !(a.limit > 0)) {
    return Status::InvalidArgument("glu: limit=" + std::to_string(a.limit) + ": must be above 0");
  }
  if (a.form == GluArgs::Form::kSitu && !(a.beta > 0 && a.linear_beta > 0)) {
    return Status::InvalidArgument("glu: beta=" + std::to_string(a.beta) +
                                   " linear_beta=" + std::to_string(a.linear_beta) + ": both must be above 0");
  }
  Walk(stream, a.y, kHeavy,
       [&](int64_t o, int64_t i, int64_t n) { GluRow(a, InOf(a.gate, o, i), InOf(a.up, o, i), OutOf(a.y, o, i), n); });
  return Status::Ok();
}

Status SigmoidMul(Stream& stream, const TensorView& x, const TensorView& gate, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckAlike(stream, "sigmoid_mul", {{"x", &x}, {"y", &y}}));
  FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("sigmoid_mul", "gate", gate));
  const bool single = gate.dim(gate.rank - 1) == 1 && x.dim(x.rank - 1) != 1;
  TensorView wide = gate;
  if (single) wide.dims[wide.rank - 1] = x.dim(x.rank - 1);
  if (!CheckSameDims("", "", x, "", wide).ok()) {
    return Status::InvalidArgument("sigmoid_mul: gate is " + gate.ToString() + " but x is " + x.ToString() +
                                   ": give it the same shape, or an innermost dimension of 1");
  }
  Walk(stream, y, single ? 1 : kHeavy, [&](int64_t o, int64_t i, int64_t n) {
    SigmoidMulRow(InOf(x, o, i), InOf(gate, o, i), single, OutOf(y, o, i), n);
  });
  return Status::Ok();
}

Status Add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckAlike(stream, "add", {{"a", &a}, {"b", &b}, {"y", &y}}));
  Walk(stream, y, 1, [&](int64_t o, int64_t i, int64_t n) { AddRow(InOf(a, o, i), InOf(b, o, i), OutOf(y, o, i), n); });
  return Status::Ok();
}

Status Scale(Stream& stream, const TensorView& x, float scale, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckAlike(stream, "scale", {{"x", &x}, {"y", &y}}));
  Walk(stream, y, 1, [&](int64_t o, int64_t i, int64_t n) { ScaleRow(InOf(x, o, i), scale, OutOf(y, o, i), n); });
  return Status::Ok();
}

Status Cast(Stream& stream, const TensorView& x, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckAlike(stream, "cast", {{"x", &x}, {"y", &y}}));
  Walk(stream, y, 1, [&](int64_t o, int64_t i, int64_t n) { CastRow(InOf(x, o, i), OutOf(y, o, i), n); });
  return Status::Ok();
}

Status GatherRows(Stream& stream, const TensorView& table, const TensorView& ids, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckRowCopy(stream, "gather_rows", "table", table, "y", y));
  FLUVIAL_ASSIGN_OR_RETURN(const std::vector<int64_t> rows,
                           ReadIndexes("gather_rows", "ids", ids, y.dim(0), table.dim(0)));
  Walk(stream, y, 1, [&](int64_t, int64_t i, int64_t n) { CastRow(InOf(table, 0, rows[i]), OutOf(y, 0, i), n); });
  return Status::Ok();
}

Status ScatterRows(Stream& stream, const TensorView& x, const TensorView& rows, const TensorView& y) {
  FLUVIAL_RETURN_IF_ERROR(CheckRowCopy(stream, "scatter_rows", "x", x, "y", y));
  FLUVIAL_ASSIGN_OR_RETURN(const std::vector<int64_t> to,
                           ReadIndexes("scatter_rows", "rows", rows, x.dim(0), y.dim(0)));
  Walk(stream, x, 1, [&](int64_t, int64_t i, int64_t n) { CastRow(InOf(x, 0, i), OutOf(y, 0, to[i]), n); });
  return Status::Ok();
}

}  // namespace fluvial::ops::elementwise
