// SPDX-License-Identifier: Apache-2.0
// Internal to this room: the bodies that mla_attention.cc lists, and the vector kernels of the cpu ones.
#pragma once

#include "ops/paged_attention/mla_attention.h"

namespace fluvial::ops::mla_attention::internal {

Check ReferenceCheck(const Problem& problem, const DeviceInfo& device);
size_t ReferenceWorkspace(const Problem& problem, const DeviceInfo& device);
double ReferenceCost(const Problem& problem, const DeviceInfo& device);
Status ReferenceRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

/// Which form a sequence of `length` queries takes.
enum class Form : uint8_t { kByLength, kAbsorbed, kExpanded };

Check CpuCheck(const Problem& problem, const DeviceInfo& device);
size_t CpuWorkspace(const Problem& problem, const DeviceInfo& device);
double CpuCost(const Problem& problem, const DeviceInfo& device);
Status CpuRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);
Check AbsorbedCheck(const Problem& problem, const DeviceInfo& device);
size_t AbsorbedWorkspace(const Problem& problem, const DeviceInfo& device);
double AbsorbedCost(const Problem& problem, const DeviceInfo& device);
Status AbsorbedRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);
Check ExpandedCheck(const Problem& problem, const DeviceInfo& device);
size_t ExpandedWorkspace(const Problem& problem, const DeviceInfo& device);
double ExpandedCost(const Problem& problem, const DeviceInfo& device);
Status ExpandedRun(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);

/// Rows that Absorb and Project take at a time.
inline constexpr int64_t kAbsorbRows = 8;

/// to[r][c] = sum over i < n of x[r][i] * w[i][c], c < columns, fp32 sums in rising i. rows <= kAbsorbRows; x and to
/// are fp32 with the given row pitches, w has rows of `w_pitch` elements of type `dtype`.
void Absorb(const float* x, int64_t x_pitch, int64_t rows, const void* w, DType dtype, int64_t w_pitch, int64_t n,
            int64_t columns, float* to, int64_t to_pitch);

/// to[r][c] = sum over i < n of x[r][i] * w[c][i], c < columns, fp32 sums in an order fixed by the instruction set.
void Project(const float* x, int64_t x_pitch, int64_t rows, const void* w, DType dtype, int64_t w_pitch, int64_t n,
             int64_t columns, float* to, int64_t to_pitch);

}  // namespace fluvial::ops::mla_attention::internal
