// SPDX-License-Identifier: Apache-2.0
// The smallest useful provider, for tests and to start one's own from: a token loop for fp32 problems. It sees the
// public header alone. FLUVIAL_TEST_* make broken ones of it.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "fluvial/provider.h"

namespace {

std::string flavour = "plain";

int32_t Refuse(char* reason, size_t bytes, const char* what, long got) {
  std::snprintf(reason, bytes, "%s, got %ld", what, got);
  return 1;
}

int32_t Check(void*, const fluvial_delta_problem* p, const fluvial_device* d, char* reason, size_t bytes) {
  if (d->kind != FLUVIAL_CPU) return Refuse(reason, bytes, "runs on the CPU only, device kind", d->kind);
  if (p->io != FLUVIAL_FP32 || p->gate_dtype != FLUVIAL_FP32 || p->beta_dtype != FLUVIAL_FP32) {
    return Refuse(reason, bytes, "needs io, gate and beta in fp32, io dtype", p->io);
  }
  if (p->state != FLUVIAL_FP32) return Refuse(reason, bytes, "needs state=fp32, state dtype", p->state);
  if (p->gate != FLUVIAL_GATE_LOG) return Refuse(reason, bytes, "needs gate=log, gate form", p->gate);
  if (p->beta != FLUVIAL_BETA_PROBABILITY) return Refuse(reason, bytes, "needs beta=probability, form", p->beta);
  if (p->norm != FLUVIAL_NORM_NONE) return Refuse(reason, bytes, "needs norm=none, norm form", p->norm);
  if (p->checkpoint_every != 0) return Refuse(reason, bytes, "keeps no checkpoints, every", p->checkpoint_every);
  if (p->token_states != 0) return Refuse(reason, bytes, "keeps no states per token, token_states", p->token_states);
  return 0;
}

uint64_t Workspace(void*, const fluvial_delta_problem* p, const fluvial_device* d) {
  return sizeof(float) * static_cast<uint64_t>(p->k) * p->v * (d->multiprocessors > 0 ? d->multiprocessors : 1);
}

// Dearer than any real backend: auto leaves it alone.
double Cost(void*, const fluvial_delta_problem* p, const fluvial_device*) {
  return 1e6 + static_cast<double>(p->tokens) * p->hv * p->k * p->v * 1e-3;
}

struct Call {
  const fluvial_delta_problem* p;
  const fluvial_delta_args* a;
  float* scratch;
};

const float* Row(const fluvial_tensor& t, int64_t row, int64_t at) {
  return static_cast<const float*>(t.data) + row * t.strides[0] + at;
}

void Head(void* context, int64_t task, int32_t worker) {
  const Call& call = *static_cast<Call*>(context);
  const fluvial_delta_problem& p = *call.p;
  const fluvial_delta_args& a = *call.a;
  const int64_t n = a.plan.order[task / p.hv], h = task % p.hv, key = h / (p.hv / p.hk), size = int64_t{p.k} * p.v;
  float* s = call.scratch + worker * size;
  const int32_t read = a.plan.read_slots[n], write = a.plan.write_slots[n];
  if (read >= 0) {
    std::memcpy(s, Row(a.state, read, h * size), sizeof(float) * static_cast<size_t>(size));
  } else {
    std::memset(s, 0, sizeof(float) * static_cast<size_t>(size));
  }
  for (int64_t t = a.plan.offsets[n]; t < a.plan.offsets[n + 1]; ++t) {
    const float* q = Row(a.q, t, key * p.k);
    const float* k = Row(a.k, t, key * p.k);
    const float* g = Row(a.gate, t, p.op >= FLUVIAL_KDA_PREFILL ? h * p.k : h);
    const float beta = *Row(a.beta, t, h);
    for (int32_t v = 0; v < p.v; ++v) {
      float* row = s + int64_t{v} * p.k;
      double predicted = 0, out = 0;
      for (int32_t c = 0; c < p.k; ++c) {
        row[c] *= std::exp(g[p.op >= FLUVIAL_KDA_PREFILL ? c : 0]);
        predicted += double{row[c]} * k[c];
      }
      const float d = beta * static_cast<float>(*Row(a.v, t, h * p.v + v) - predicted);
      for (int32_t c = 0; c < p.k; ++c) {
        row[c] += d * k[c];
        out += double{row[c]} * q[c];
      }
      const_cast<float*>(Row(a.out, t, h * p.v))[v] = static_cast<float>(p.scale * out);
    }
  }
  if (write < 0) return;
  std::memcpy(const_cast<float*>(Row(a.state, write, h * size)), s, sizeof(float) * static_cast<size_t>(size));
}

int32_t Run(void*, const fluvial_stream* stream, const fluvial_delta_problem* p, const fluvial_delta_args* a,
            void* workspace, uint64_t bytes, char* error, size_t error_bytes) {
  if (flavour == "failing") {
    std::snprintf(error, error_bytes, "it was told to fail");
    return 1;
  }
  if (bytes < Workspace(nullptr, p, &stream->device)) {
    std::snprintf(error, error_bytes, "workspace of %llu bytes is too small", static_cast<unsigned long long>(bytes));
    return 1;
  }
  Call call{p, a, static_cast<float*>(workspace)};
  stream->parallel_for(stream, int64_t{a->plan.sequences} * p->hv, Head, &call);
  return 0;
}

int32_t Configure(const char* key, const char* value, char* error, size_t bytes) {
  if (std::strcmp(key, "flavour") != 0) {
    std::snprintf(error, bytes, "there is no setting '%s'; settings: flavour", key);
    return 1;
  }
  flavour = value;
  if (flavour == "plain" || flavour == "failing") return 0;
  std::snprintf(error, bytes, "values: plain, failing");
  return 1;
}

#ifndef FLUVIAL_TEST_BACKEND
#define FLUVIAL_TEST_BACKEND "toy"
#endif

const fluvial_delta_backend kBackends[] = {
    {FLUVIAL_TEST_BACKEND, "fp32 token loop of a test", 15, nullptr, Check, Workspace, Cost, Run},
};

#ifndef FLUVIAL_TEST_INTERFACE
#define FLUVIAL_TEST_INTERFACE FLUVIAL_PROVIDER_INTERFACE
#endif

const fluvial_provider kProvider = {FLUVIAL_TEST_INTERFACE, "toy_provider", "1.2", kBackends, 1, Configure};

}  // namespace

#ifndef FLUVIAL_TEST_NO_ENTRY
extern "C" const fluvial_provider* fluvial_provider_entry(void) { return &kProvider; }
#else
extern "C" const fluvial_provider* some_other_function(void) { return &kProvider; }
#endif
