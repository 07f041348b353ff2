// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/gemm.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/hash.h"
#include "base/text_form.h"
#include "ops/gemm/backends.h"

namespace fluvial::ops::gemm {
namespace {

bool IsGemmType(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

Status CheckType(const char* field, DType t) {
  if (IsGemmType(t)) return Status::Ok();
  return Status::InvalidArgument("gemm: " + std::string(field) + " is " + std::string(Name(t)) +
                                 ": use fp32, bf16 or fp16");
}

Status CheckMatrix(const char* field, const TensorView& t, DType dtype, int64_t rows, int64_t columns) {
  const std::string where = "gemm: " + std::string(field) + " is " + t.ToString();
  if (t.rank != 2 || t.dim(0) != rows || t.dim(1) != columns || t.dtype != dtype) {
    return Status::InvalidArgument(where + ", but the problem wants " + std::string(Name(dtype)) + "[" +
                                   std::to_string(rows) + "," + std::to_string(columns) + "]");
  }
  if (rows == 0 || columns == 0) return Status::Ok();
  if (columns > 1 && t.stride(1) != 1) {
    return Status::InvalidArgument(where + ": the inner stride must be 1");
  }
  if (rows > 1 && t.stride(0) < columns) {
    return Status::InvalidArgument(where + ": the row pitch must be at least " + std::to_string(columns));
  }
  if (!t.defined()) return Status::InvalidArgument("gemm: " + std::string(field) + " has no data");
  if (reinterpret_cast<uintptr_t>(t.data) % SizeOf(dtype) != 0) {
    return Status::InvalidArgument("gemm: " + std::string(field) + " is not aligned to its " +
                                   std::to_string(SizeOf(dtype)) + "-byte elements");
  }
  return Status::Ok();
}

// Largest extent of a dimension: the product of two of them and of 8 bytes stays in int64.
constexpr int64_t kMaxExtent = int64_t{1} << 30;

}  // namespace

uint64_t Problem::Hash() const {
  return Hasher()
      .Add(static_cast<uint64_t>(m))
      .Add(static_cast<uint64_t>(n))
      .Add(static_cast<uint64_t>(k))
      .Add(static_cast<uint64_t>(x) | static_cast<uint64_t>(w) << 8 | static_cast<uint64_t>(y) << 16 |
           static_cast<uint64_t>(bias) << 24 | static_cast<uint64_t>(has_bias) << 32 |
           static_cast<uint64_t>(packed) << 33)
      .Get();
}

std::string Problem::ToString() const {
  std::string s = "gemm m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k) +
                  " x=" + std::string(Name(x)) + " w=" + std::string(Name(w)) + " y=" + std::string(Name(y));
  if (has_bias) s += " bias=" + std::string(Name(bias));
  if (packed) s += " packed=1";
  return s;
}

Result<ProblemLine> ParseProblemLine(std::string_view line) {
  Result<TextFields> parsed = TextFields::Parse(line);
  if (!parsed.ok()) return parsed.status();
  TextFields& fields = *parsed;
  if (fields.name() != "gemm") {
    return Status::InvalidArgument("'" + fields.name() + "' is not a gemm line: start it with 'gemm'");
  }
  ProblemLine out;
  Problem& p = out.problem;
  FLUVIAL_ASSIGN_OR_RETURN(p.m, fields.TakeInt("m", -1));
  FLUVIAL_ASSIGN_OR_RETURN(p.n, fields.TakeInt("n", -1));
  FLUVIAL_ASSIGN_OR_RETURN(p.k, fields.TakeInt("k", -1));
  for (const auto& [key, type] : {std::pair{"x", &p.x}, std::pair{"w", &p.w}, std::pair{"y", &p.y}}) {
    if (!fields.Has(key)) continue;
    FLUVIAL_ASSIGN_OR_RETURN(*type, ParseDType(fields.Take(key)));
  }
  if (fields.Has("bias")) {
    FLUVIAL_ASSIGN_OR_RETURN(p.bias, ParseDType(fields.Take("bias")));
    p.has_bias = true;
  }
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t packed, fields.TakeInt("packed", 0));
  if (packed != 0 && packed != 1) {
    return Status::InvalidArgument("gemm: packed=" + std::to_string(packed) + ": use 0 or 1");
  }
  p.packed = packed == 1;
  FLUVIAL_ASSIGN_OR_RETURN(const int64_t seed, fields.TakeInt("seed", 1));
  out.seed = static_cast<uint64_t>(seed);
  FLUVIAL_RETURN_IF_ERROR(fields.Finish());
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  return out;
}

Problem ProblemOf(const Args& a) {
  Problem p;
  p.m = a.x.rank == 2 ? a.x.dim(0) : -1;
  p.k = a.x.rank == 2 ? a.x.dim(1) : -1;
  p.n = a.packed != nullptr ? a.packed->n() : a.w.rank == 2 ? a.w.dim(0) : -1;
  p.x = a.x.dtype;
  p.w = a.packed != nullptr ? a.packed->dtype() : a.w.dtype;
  p.y = a.y.dtype;
  p.has_bias = a.bias.rank != 0;
  p.bias = p.has_bias ? a.bias.dtype : DType::kBF16;
  p.packed = a.packed != nullptr;
  return p;
}

Status Validate(const Problem& p) {
  for (const auto& [name, extent] : {std::pair{"m", p.m}, std::pair{"n", p.n}, std::pair{"k", p.k}}) {
    if (extent < 0 || extent > kMaxExtent) {
      return Status::InvalidArgument("gemm: " + std::string(name) + "=" + std::to_string(extent) + ": must lie in 0.." +
                                     std::to_string(kMaxExtent) + " (x, w and y must have rank 2)");
    }
  }
  FLUVIAL_RETURN_IF_ERROR(CheckType("x", p.x));
  FLUVIAL_RETURN_IF_ERROR(CheckType("w", p.w));
  FLUVIAL_RETURN_IF_ERROR(CheckType("y", p.y));
  if (p.has_bias) FLUVIAL_RETURN_IF_ERROR(CheckType("bias", p.bias));
  return Status::Ok();
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  FLUVIAL_RETURN_IF_ERROR(CheckMatrix("x", a.x, p.x, p.m, p.k));
  FLUVIAL_RETURN_IF_ERROR(CheckMatrix("y", a.y, p.y, p.m, p.n));
  if (p.packed != (a.packed != nullptr)) {
    return Status::InvalidArgument(p.packed ? "gemm: the problem says packed, but there is no packed weight"
                                            : "gemm: there is a packed weight, but the problem does not say packed");
  }
  if (p.packed) {
    if (a.packed->n() != p.n || a.packed->k() != p.k || a.packed->dtype() != p.w) {
      return Status::InvalidArgument("gemm: the packed weight is " + std::string(Name(a.packed->dtype())) + "[" +
                                     std::to_string(a.packed->n()) + "," + std::to_string(a.packed->k()) +
                                     "], but the problem wants " + std::string(Name(p.w)) + "[" + std::to_string(p.n) +
                                     "," + std::to_string(p.k) + "]");
    }
  } else {
    FLUVIAL_RETURN_IF_ERROR(CheckMatrix("w", a.w, p.w, p.n, p.k));
  }
  if (!p.has_bias) {
    if (a.bias.rank != 0) return Status::InvalidArgument("gemm: there is a bias, but the problem has none");
    return Status::Ok();
  }
  if (a.bias.rank != 1 || a.bias.dim(0) != p.n || a.bias.dtype != p.bias || (p.n > 1 && a.bias.stride(0) != 1) ||
      (p.n > 0 && !a.bias.defined())) {
    return Status::InvalidArgument("gemm: bias is " + a.bias.ToString() + ", but the problem wants a packed " +
                                   std::string(Name(p.bias)) + "[" + std::to_string(p.n) + "]");
  }
  return Status::Ok();
}

Check CheckCpu(const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCpu) return Check::Accept();
  return Check::Refuse("runs on the CPU, the device is " + device.Arch());
}

std::span<const GemmBackend> Backends() {
  static const std::array list = {CpuBf16Backend(), CpuBackend(), OneDnnBackend(), ReferenceBackend()};
  return list;
}

Result<Selection<Problem, Args>> Choose(const Problem& problem, const DeviceInfo& device, std::string_view preference) {
  FLUVIAL_RETURN_IF_ERROR(Validate(problem));
  return Select(Backends(), "gemm", problem, device, preference);
}

Result<std::shared_ptr<const PackedWeight>> Pack(std::string_view backend, const TensorView& w, DType x, DType y,
                                                 int64_t typical_m) {
  Problem p;
  p.m = typical_m;
  p.n = w.rank == 2 ? w.dim(0) : -1;
  p.k = w.rank == 2 ? w.dim(1) : -1;
  p.x = x;
  p.w = w.dtype;
  p.y = y;
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  FLUVIAL_RETURN_IF_ERROR(CheckMatrix("w", w, w.dtype, p.n, p.k));
  if (p.m == 0 || p.n == 0 || p.k == 0) {
    return Status::Refused("packed weights: m=" + std::to_string(p.m) + " n=" + std::to_string(p.n) +
                           " k=" + std::to_string(p.k) + " has nothing to pack");
  }
  if (backend == OneDnnBackend().name) return OneDnnPack(w, x, y, typical_m);
  for (const GemmBackend& b : Backends()) {
    if (b.name == backend) {
      return Status::Refused("packed weights: backend '" + std::string(backend) +
                             "' reads weights in place; backends that pack: onednn");
    }
  }
  return Status::InvalidArgument("packed weights: there is no backend '" + std::string(backend) +
                                 "'; backends that pack: onednn");
}

}  // namespace fluvial::ops::gemm
