// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/norm.h"

#include <array>
#include <cmath>
#include <string>

#include "ops/common/row_walk.h"
#include "ops/norm/rows.h"

namespace fluvial::ops::norm {
namespace {

bool Gated(Form f) { return f == Form::kRmsSiluGate || f == Form::kRmsSigmoidGate; }

Status CheckVector(const char* name, const TensorView& t, int64_t n) {
  FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("norm", name, t));
  if (t.rank == 1 && t.dim(0) == n) return Status::Ok();
  return Status::InvalidArgument("norm: " + std::string(name) + " is " + t.ToString() + ", but rows of x have " +
                                 std::to_string(n) + " elements");
}

}  // namespace

std::string_view Name(Form form) {
  constexpr std::array<std::string_view, 6> names = {"rms",   "rms_zero_centred", "rms_silu_gate", "rms_sigmoid_gate",
                                                     "layer", "unweighted"};
  return names[static_cast<size_t>(form)];
}

Status Validate(const Args& a) {
  const std::string form(Name(a.form));
  FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("norm", "x", a.x, 2));
  FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("norm", "y", a.y, 2));
  FLUVIAL_RETURN_IF_ERROR(CheckSameDims("norm", "x", a.x, "y", a.y));
  const int64_t n = a.x.dim(a.x.rank - 1);
  if (!(a.eps > 0) || !std::isfinite(a.eps)) {
    return Status::InvalidArgument("norm: eps=" + std::to_string(a.eps) + ": must be above 0 and finite");
  }
  if (a.form == Form::kUnweighted && a.weight.rank != 0) {
    return Status::InvalidArgument("norm: form unweighted takes no weight, got " + a.weight.ToString());
  }
  if (a.form != Form::kUnweighted && a.form != Form::kLayer && a.weight.rank == 0) {
    return Status::InvalidArgument("norm: form " + form + " needs a weight");
  }
  if (a.weight.rank != 0) FLUVIAL_RETURN_IF_ERROR(CheckVector("weight", a.weight, n));
  if (a.bias.rank != 0) {
    if (a.form != Form::kLayer) return Status::InvalidArgument("norm: form " + form + " takes no bias");
    FLUVIAL_RETURN_IF_ERROR(CheckVector("bias", a.bias, n));
  }
  if (Gated(a.form) != (a.gate.rank != 0)) {
    return Status::InvalidArgument("norm: form " + form + (Gated(a.form) ? " needs a gate" : " takes no gate"));
  }
  if (a.gate.rank != 0) {
    FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("norm", "gate", a.gate, 2));
    FLUVIAL_RETURN_IF_ERROR(CheckSameDims("norm", "x", a.x, "gate", a.gate));
  }
  if (a.residual.rank != 0) {
    FLUVIAL_RETURN_IF_ERROR(CheckFloatRows("norm", "residual", a.residual, 2));
    FLUVIAL_RETURN_IF_ERROR(CheckSameDims("norm", "x", a.x, "residual", a.residual));
    if (a.residual.dtype != a.x.dtype) {
      return Status::InvalidArgument("norm: residual is " + a.residual.ToString() + " but x is " + a.x.ToString() +
                                     ": give them one type");
    }
  }
  return Status::Ok();
}

Status Run(Stream& stream, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(a));
  if (stream.device().kind != DeviceKind::kCpu) {
    return Status::Refused("norm: this build has no body for " + stream.device().Arch());
  }
  if (a.x.elements() == 0) return Status::Ok();
  const RowShape s = RowShapeOf(a.x);
  ForEachRow(stream.pool(), s, s.n * (Gated(a.form) ? 8 : 3), [&](int64_t o, int64_t i) {
    Row row;
    row.x = RowAt(a.x, o, i);
    row.y = RowAt(a.y, o, i);
    if (a.gate.rank != 0) row.gate = RowAt(a.gate, o, i);
    if (a.residual.rank != 0) row.residual = RowAt(a.residual, o, i);
    NormRow(a, row, s.n);
  });
  return Status::Ok();
}

}  // namespace fluvial::ops::norm
