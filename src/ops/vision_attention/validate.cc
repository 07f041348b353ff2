// SPDX-License-Identifier: Apache-2.0
// The contract as checks: what a problem and its tensors must look like, whatever the backend.
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/text_form.h"
#include "ops/common/view_check.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {
namespace {

Status Bad(const std::string& what) { return Status::InvalidArgument(std::string(kOpName) + ": " + what); }

Status CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return Bad(std::string(name) + " is " + std::to_string(value) + ", it must be " + std::to_string(low) + ".." +
             std::to_string(high));
}

/// Shape, dtype, unit inner stride; the packed form with a leading 1 counts as packed.
Status CheckDims(const Problem& p, std::string_view name, const TensorView& v, DType dtype, bool has_d) {
  const bool batch_of_one = p.padded == 0 && v.rank == (has_d ? 4 : 3) && v.dims[0] == 1;
  if (p.padded != 0 || batch_of_one) {
    const int64_t batch = p.padded != 0 ? p.sequences : 1, rows = p.padded != 0 ? p.padded : p.tokens;
    return has_d ? CheckView(kOpName, name, v, dtype, {batch, rows, p.heads, p.d})
                 : CheckView(kOpName, name, v, dtype, {batch, rows, p.heads});
  }
  return has_d ? CheckView(kOpName, name, v, dtype, {p.tokens, p.heads, p.d})
               : CheckView(kOpName, name, v, dtype, {p.tokens, p.heads});
}

Status CheckTensor(const Problem& p, std::string_view name, const TensorView& v) {
  FLUVIAL_RETURN_IF_ERROR(CheckDims(p, name, v, p.io, true));
  if (v.elements() == 0) return Status::Ok();
  const auto size = static_cast<int64_t>(SizeOf(p.io)), alignment = int64_t{p.alignment};
  if (reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(alignment) != 0) {
    return Bad(std::string(name) + ": its address is not a multiple of alignment=" + std::to_string(alignment));
  }
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.dims[i] <= 1) continue;
    if (v.strides[i] < 0) return Bad(std::string(name) + " has a negative stride: " + v.ToString());
    if (v.strides[i] * size % alignment != 0) {
      return Bad(std::string(name) + ": stride " + std::to_string(i) + " of " + std::to_string(v.strides[i] * size) +
                 " bytes is not a multiple of alignment=" + std::to_string(alignment));
    }
  }
  return Status::Ok();
}

/// Dimensions from the inside out, those of one element left out: each stride must step over what lies inside it.
Status CheckRowsApart(std::string_view name, const TensorView& v) {
  int64_t inside = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    if (v.dims[i] <= 1) continue;
    if (v.strides[i] < inside) {
      return Bad(std::string(name) + " is written and its elements overlap: " + v.ToString());
    }
    inside = v.strides[i] * v.dims[i];
  }
  return Status::Ok();
}

}  // namespace

Status Validate(const Problem& p) {
  FLUVIAL_RETURN_IF_ERROR(CheckRange("heads", p.heads, 1, 65536));
  FLUVIAL_RETURN_IF_ERROR(CheckRange("d", p.d, 1, kMaxHeadDim));
  if (p.io != DType::kF32 && p.io != DType::kBF16 && p.io != DType::kF16) {
    return Bad("io is " + std::string(Name(p.io)) + ", it must be fp32, bf16 or fp16");
  }
  if (!std::isfinite(p.scale) || p.scale <= 0) {
    return Bad("scale is " + FormatFloat(p.scale) + ", it must be finite and positive, e.g. 1/sqrt(d)");
  }
  if (p.tokens < 0 || p.sequences < 0 || p.max_length < 0 || p.pairs < 0 || p.padded < 0) {
    return Bad("tokens, sequences, max_length, pairs and padded must not be negative");
  }
  if (p.padded != 0 && p.max_length > p.padded) {
    return Bad("the longest sequence has " + std::to_string(p.max_length) + " tokens, but padded is " +
               std::to_string(p.padded));
  }
  FLUVIAL_RETURN_IF_ERROR(CheckRange("workspace_mb", p.workspace_mb, 0, 1 << 20));
  if (p.alignment != 16 && p.alignment != 8 && p.alignment != 4 && p.alignment != 2) {
    return Bad("alignment is " + std::to_string(p.alignment) + ", it must be 16, 8, 4 or 2 bytes");
  }
  if (static_cast<size_t>(p.alignment) < SizeOf(p.io)) {
    return Bad("alignment is " + std::to_string(p.alignment) +
               ", smaller than one element of io=" + std::string(Name(p.io)));
  }
  return Status::Ok();
}

Status Validate(const Problem& p, const Args& a) {
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  if (a.plan == nullptr) return Bad("args have no plan: build a SequencePlan of the lengths");
  if (a.plan->tokens() > p.tokens || a.plan->sequences() > p.sequences || a.plan->max_length() > p.max_length) {
    return Bad("the plan has " + std::to_string(a.plan->tokens()) + " tokens in " +
               std::to_string(a.plan->sequences()) + " sequences, longest " + std::to_string(a.plan->max_length()) +
               ", the problem says at most " + std::to_string(p.tokens) + " in " + std::to_string(p.sequences) +
               ", longest " + std::to_string(p.max_length));
  }
  const std::initializer_list<std::pair<const char*, const TensorView*>> inputs = {
      {"q", &a.q}, {"k", &a.k}, {"v", &a.v}};
  for (const auto& [name, view] : inputs) FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, name, *view));
  FLUVIAL_RETURN_IF_ERROR(CheckTensor(p, "out", a.out));
  FLUVIAL_RETURN_IF_ERROR(CheckRowsApart("out", a.out));
  if (p.lse) {
    FLUVIAL_RETURN_IF_ERROR(CheckDims(p, "lse", a.lse, DType::kF32, false));
    FLUVIAL_RETURN_IF_ERROR(CheckRowsApart("lse", a.lse));
    if (MayOverlap(a.out, a.lse)) return Bad("out overlaps lse: give it memory of its own");
  }
  for (const auto& [name, view] : inputs) {
    if (MayOverlap(a.out, *view)) return Bad("out overlaps " + std::string(name) + ": give it memory of its own");
    if (p.lse && MayOverlap(a.lse, *view)) {
      return Bad("lse overlaps " + std::string(name) + ": give it memory of its own");
    }
  }
  return Status::Ok();
}

RowStrides StridesOf(const Problem& p, const TensorView& t) {
  if (p.padded != 0) return {t.strides[0], 0, t.strides[1], t.strides[2]};
  if (t.rank == 4) return {0, t.strides[1], t.strides[1], t.strides[2]};
  return {0, t.strides[0], t.strides[0], t.strides[1]};
}

RowStrides LseStridesOf(const Problem& p, const TensorView& t) {
  if (p.padded != 0) return {t.strides[0], 0, t.strides[1], t.strides[2]};
  if (t.rank == 3) return {0, t.strides[1], t.strides[1], t.strides[2]};
  return {0, t.strides[0], t.strides[0], t.strides[1]};
}

}  // namespace fluvial::ops::vision_attention
