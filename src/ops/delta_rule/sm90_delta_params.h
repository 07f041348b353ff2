// SPDX-License-Identifier: Apache-2.0
// Launch parameters of the sm_90a delta-rule kernels: plain pointers and strides, made from Problem and Args by
// cuda_backend.cc.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "ops/common/sequence_plan.h"

namespace fluvial::sm90 {

constexpr size_t kBalancedCell = 7 * 128 * 128 * sizeof(float);
constexpr size_t kBalancedBoundary = 16;

struct DeltaParams {
  // Tensor maps of q, k, v and gate: dims {128, heads, tokens}, box {64, 1, chunk}, 128-byte swizzle.
  CUtensorMap q_map, k_map, v_map, gate_map;
  const void* beta;
  const void* gate;      // GDN: [T, hv] scalars
  const float* a_log;    // may be null
  const float* dt_bias;  // may be null
  void* out;
  void* state;
  int64_t beta_row, gate_row, out_row;  // elements between tokens
  int64_t slot_pitch;                   // elements between slots
  const ops::PlanHeader* header;
  const int64_t* offsets;
  const int32_t* read_slots;
  const int32_t* write_slots;
  const int32_t* order;
  // Balanced parts, see sm90_chunk16_pieces.cuh: a cell and a Boundary per CTA, and the number of failed checks.
  void* workspace;
  void* boundaries;
  int32_t* failures;
  int32_t hv;
  int32_t group;      // hv / hk
  int32_t norm_form;  // 0 none, 1 additive, 2 max
  int32_t beta_form;  // 0 probability, 1 logit, 2 two-sigmoid
  int32_t beta_fp32;
  int32_t gate_form, gate_fp32;  // GDN: 0 log, 1 softplus, 2 bounded
  float norm_eps;
  float scale;
  float lower_bound2;  // of the bounded gate, times log2 e
};

}  // namespace fluvial::sm90
