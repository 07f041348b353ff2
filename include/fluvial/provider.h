// SPDX-License-Identifier: Apache-2.0
// Provider interface: how a separately built shared library adds backends to the delta-rule operators.
//
// Plain C, so that a provider may be built with any compiler and bring any dependency (Python, say) without it becoming
// the engine's. The library exports one function,
//     const struct fluvial_provider* fluvial_provider_entry(void);
// and is loaded when asked for: `--provider PATH` of fluvial run, backends, explain, verify and bench, or
// fluvial::ops::delta_rule::LoadProvider. Everything that the entry points to must live until the process ends.
//
// The operators' contract - formula, shapes, strides, slots - is src/ops/delta_rule/delta_rule.h; a provider states
// with `check` which part of it a backend takes. Functions may be called from any thread, one call at a time per
// stream; they must not throw. Versions: fields are never reordered; a change that an old provider could not survive
// raises FLUVIAL_PROVIDER_INTERFACE, and a provider of another number is not loaded.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLUVIAL_PROVIDER_INTERFACE 1
#define FLUVIAL_PROVIDER_ENTRY "fluvial_provider_entry"

enum fluvial_dtype { FLUVIAL_FP32 = 0, FLUVIAL_BF16 = 1, FLUVIAL_FP16 = 2, FLUVIAL_I32 = 3 };
enum fluvial_device_kind { FLUVIAL_CPU = 0, FLUVIAL_CUDA = 1 };
enum fluvial_delta_op {
  FLUVIAL_GDN_PREFILL = 0,
  FLUVIAL_GDN_DECODE = 1,
  FLUVIAL_KDA_PREFILL = 2,
  FLUVIAL_KDA_DECODE = 3
};
enum fluvial_gate_form { FLUVIAL_GATE_LOG = 0, FLUVIAL_GATE_SOFTPLUS = 1, FLUVIAL_GATE_BOUNDED = 2 };
enum fluvial_beta_form { FLUVIAL_BETA_PROBABILITY = 0, FLUVIAL_BETA_LOGIT = 1, FLUVIAL_BETA_TWO_SIGMOID = 2 };
enum fluvial_norm_form { FLUVIAL_NORM_NONE = 0, FLUVIAL_NORM_L2_ADD = 1, FLUVIAL_NORM_L2_MAX = 2 };

struct fluvial_device {
  int32_t kind; /* fluvial_device_kind */
  int32_t index;
  int32_t sm_major, sm_minor; /* CUDA compute capability; 0 on the CPU */
  int32_t multiprocessors;    /* SMs, or CPU threads */
  int32_t assumed;            /* 1: made up for an explanation, nothing can run on it */
  uint64_t memory_bytes;
};

/* What selection may depend on: the fields of delta_rule.h's Problem, in the units given there. */
struct fluvial_delta_problem {
  int32_t op; /* fluvial_delta_op */
  int32_t hk, hv, k, v;
  int32_t io, gate_dtype, beta_dtype, state; /* fluvial_dtype */
  int32_t gate, beta, norm;                  /* fluvial_gate_form, fluvial_beta_form, fluvial_norm_form */
  int32_t has_a_log, has_dt_bias;
  int32_t sequences;
  int32_t checkpoint_every; /* 0: none */
  int32_t token_states;
  int32_t alignment; /* bytes */
  float lower_bound, norm_eps, scale;
  int64_t tokens, max_length;
};

struct fluvial_tensor {
  void* data; /* NULL: the problem has no such tensor */
  int32_t dtype;
  int32_t rank;
  int64_t dims[5];
  int64_t strides[5]; /* in elements, outermost first */
};

/* The step's sequences. (id, generation) changes whenever the contents do: caches key on it, never on an address. */
struct fluvial_plan {
  uint64_t id, generation;
  int64_t tokens, max_length;
  int32_t sequences, max_sequences; /* now; at most */
  const int64_t* offsets;           /* host [sequences + 1] */
  const int32_t* read_slots;        /* host [sequences]; negative: read zeros */
  const int32_t* write_slots;       /* host [sequences]; negative: write nothing */
  const int32_t* order;             /* host [sequences]: longest first */
  const int64_t* device_offsets;    /* the same on the stream's device, at addresses that stay */
  const int32_t* device_read_slots;
  const int32_t* device_write_slots;
  const int32_t* device_order;
};

/* Tensors of one call: delta_rule.h's Args. */
struct fluvial_delta_args {
  struct fluvial_tensor q, k, v, gate, beta, a_log, dt_bias, out, state, checkpoints, token_slots;
  struct fluvial_plan plan;
};

struct fluvial_stream {
  struct fluvial_device device;
  void* native;      /* cudaStream_t; NULL on the CPU */
  int32_t capturing; /* 1 while it is captured into a CUDA graph */
  int32_t threads;   /* CPU threads of parallel_for */
  /* Calls body(context, task, worker) once for each task < tasks and returns when all are done; worker < threads. */
  void (*parallel_for)(const struct fluvial_stream* stream, int64_t tasks,
                       void (*body)(void* context, int64_t task, int32_t worker), void* context);
  void* host; /* of the engine */
};

struct fluvial_delta_backend {
  const char* name;        /* lower case letters, digits and _; unique among the backends of an operator */
  const char* description; /* one sentence for `fluvial backends` */
  uint32_t operators;      /* bit 1 << fluvial_delta_op for each operator it serves */
  void* context;           /* handed to the functions below */
  /* 0: takes it. Anything else is a refusal; write why, with the actual value, to `reason` (ends with NUL). Must not
     touch the device. */
  int32_t (*check)(void* context, const struct fluvial_delta_problem* problem, const struct fluvial_device* device,
                   char* reason, size_t reason_bytes);
  /* Scratch that run needs for a problem that check takes. */
  uint64_t (*workspace_bytes)(void* context, const struct fluvial_delta_problem* problem,
                              const struct fluvial_device* device);
  /* Expected microseconds, from measurements: what `auto` compares. */
  double (*cost_us)(void* context, const struct fluvial_delta_problem* problem, const struct fluvial_device* device);
  /* Enqueues the work. Never synchronises or falls back. 0: done; anything else is an error, said in `error`. */
  int32_t (*run)(void* context, const struct fluvial_stream* stream, const struct fluvial_delta_problem* problem,
                 const struct fluvial_delta_args* args, void* workspace, uint64_t workspace_bytes, char* error,
                 size_t error_bytes);
};

struct fluvial_provider {
  uint32_t interface_version; /* FLUVIAL_PROVIDER_INTERFACE */
  const char* name;           /* "flashinfer" */
  const char* version;        /* the provider's own */
  const struct fluvial_delta_backend* backends;
  int32_t backend_count;
  /* May be NULL: no settings. Called before anything else for each setting ("kda-backend" = "cute-dsl"). 0: taken;
     anything else is an error, said in `error` with the values that exist. */
  int32_t (*configure)(const char* key, const char* value, char* error, size_t error_bytes);
};

#ifdef __cplusplus
}
#endif
