// SPDX-License-Identifier: Apache-2.0
// What the token-by-token CUDA kernels share: parameters, element access, gates, norms. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

struct TokenParams {
  const void *q, *k, *v, *gate, *beta;
  const float *a_log, *dt_bias;
  void *out, *state, *checkpoints;
  const int32_t* token_slots;
  int64_t q_row, k_row, v_row, gate_row, beta_row, out_row, slot_pitch, token_slots_row;
  const PlanHeader* header;
  const int64_t* offsets;
  const int32_t *read_slots, *write_slots, *order;
  int32_t hv, group, k_dim, v_dim, tiles, checkpoint_every;
  int32_t kda, gate_form, beta_form, norm_form;
  DType gate_dtype, beta_dtype;
  float norm_eps, scale, lower_bound;
};

__device__ __forceinline__ float Get(float x) { return x; }
__device__ __forceinline__ float Get(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float Get(__half x) { return __half2float(x); }
__device__ __forceinline__ void Put(float* p, float x) { *p = x; }
__device__ __forceinline__ void Put(__nv_bfloat16* p, float x) { *p = __float2bfloat16_rn(x); }
__device__ __forceinline__ void Put(__half* p, float x) { *p = __float2half_rn(x); }

__device__ __forceinline__ float LoadAny(const void* p, DType t, int64_t i) {
  if (t == DType::kF32) return static_cast<const float*>(p)[i];
  if (t == DType::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return __half2float(static_cast<const __half*>(p)[i]);
}

/// The log decay (natural) of one gate input.
__device__ __forceinline__ float LogDecay(const TokenParams& p, float x, float a, float bias) {
  if (p.gate_form == static_cast<int>(GateForm::kLog)) return x;
  const float y = x + bias;
  if (p.gate_form == static_cast<int>(GateForm::kSoftplus)) {
    return -a * (y > 20.f ? y : log1pf(expf(y)));
  }
  return p.lower_bound / (1.f + expf(-a * y));
}

__device__ __forceinline__ float BetaOf(const TokenParams& p, float x) {
  if (p.beta_form == static_cast<int>(BetaForm::kProbability)) return x;
  const float s = 1.f / (1.f + expf(-x));
  return p.beta_form == static_cast<int>(BetaForm::kLogit) ? s : 2.f * s;
}

__device__ __forceinline__ float NormOf(const TokenParams& p, float sum) {
  if (p.norm_form == static_cast<int>(NormForm::kNone)) return 1.f;
  return rsqrtf(p.norm_form == static_cast<int>(NormForm::kL2Add) ? sum + p.norm_eps : fmaxf(sum, p.norm_eps));
}

/// Four neighbouring state elements; 16-byte (fp32) or 8-byte access, the caller has checked alignment.
__device__ __forceinline__ void Load4(const float* p, float* s) {
  const float4 x = *reinterpret_cast<const float4*>(p);
  s[0] = x.x, s[1] = x.y, s[2] = x.z, s[3] = x.w;
}
template <class T>
__device__ __forceinline__ void Load4(const T* p, float* s) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  const T* t = reinterpret_cast<const T*>(&x);
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] = Get(t[i]);
}
__device__ __forceinline__ void Store4(float* p, const float* s) {
  *reinterpret_cast<float4*>(p) = make_float4(s[0], s[1], s[2], s[3]);
}
template <class T>
__device__ __forceinline__ void Store4(T* p, const float* s) {
  uint2 x;
  T* t = reinterpret_cast<T*>(&x);
#pragma unroll
  for (int i = 0; i < 4; ++i) Put(&t[i], s[i]);
  *reinterpret_cast<uint2*>(p) = x;
}

inline TokenParams MakeTokenParams(const Problem& problem, const Args& args) {
  TokenParams p{};
  p.q = args.q.data;
  p.k = args.k.data;
  p.v = args.v.data;
  p.gate = args.gate.data;
  p.beta = args.beta.data;
  p.a_log = static_cast<const float*>(args.a_log.data);
  p.dt_bias = static_cast<const float*>(args.dt_bias.data);
  p.out = args.out.data;
  p.state = args.state.data;
  p.checkpoints = args.checkpoints.data;
  p.token_slots = problem.token_states ? static_cast<const int32_t*>(args.token_slots.data) : nullptr;
  p.q_row = args.q.stride(0);
  p.k_row = args.k.stride(0);
  p.v_row = args.v.stride(0);
  p.gate_row = args.gate.stride(0);
  p.beta_row = args.beta.stride(0);
  p.out_row = args.out.stride(0);
  p.slot_pitch = args.state.stride(0);
  p.token_slots_row = problem.token_states ? args.token_slots.stride(0) : 0;
  p.header = args.plan->device_header();
  p.offsets = args.plan->device_offsets();
  p.read_slots = args.plan->device_read_slots();
  p.write_slots = args.plan->device_write_slots();
  p.order = args.plan->device_order();
  p.hv = problem.hv;
  p.group = problem.hv / problem.hk;
  p.k_dim = problem.k;
  p.v_dim = problem.v;
  p.checkpoint_every = problem.checkpoint_every;
  p.kda = problem.kda();
  p.gate_form = static_cast<int32_t>(problem.gate);
  p.beta_form = static_cast<int32_t>(problem.beta);
  p.norm_form = static_cast<int32_t>(problem.norm);
  p.gate_dtype = problem.gate_dtype;
  p.beta_dtype = problem.beta_dtype;
  p.norm_eps = problem.norm_eps;
  p.scale = problem.scale;
  p.lower_bound = problem.lower_bound;
  return p;
}

}  // namespace fluvial::ops::delta_rule
