// SPDX-License-Identifier: Apache-2.0
#include "models/kda_blocks.h"

#include <cmath>

#include "models/block_parts.h"
#include "ops/elementwise/elementwise.h"
#include "ops/norm/norm.h"
#include "ops/paged_attention/mla_attention.h"

namespace fluvial::models {
namespace {

namespace ew = ops::elementwise;

/// eps of the q/k norm inside the delta rule; a constant of the architecture, not of the config.
constexpr float kQkNormEps = 1e-6f;

struct KdaScratch {
  TensorView qkv, conv, low, gate, beta, core;
};

KdaScratch TakeKda(Scratch& s, const KdaDims& d, int64_t t, DType io) {
  KdaScratch out;
  out.qkv = s.Take(io, {t, 3 * d.inner()});
  out.conv = s.Take(io, {t, 3 * d.inner()});
  out.low = s.Take(io, {t, d.dim});
  out.gate = s.Take(io, {t, d.inner()});
  out.beta = s.Take(io, {t, d.heads});
  out.core = s.Take(io, {t, d.inner()});
  return out;
}

ops::delta_rule::Problem DeltaProblem(const KdaDims& d, const Segment& segment, DType io, DType state) {
  ops::delta_rule::Problem p;
  p.op = segment.decode ? ops::delta_rule::Op::kKdaDecode : ops::delta_rule::Op::kKdaPrefill;
  p.hk = p.hv = d.heads;
  p.k = p.v = d.dim;
  p.io = p.gate_dtype = p.beta_dtype = io;
  p.state = state;
  p.gate = d.lower_bound ? ops::delta_rule::GateForm::kBounded : ops::delta_rule::GateForm::kSoftplus;
  p.lower_bound = d.lower_bound.value_or(0.0f);
  // sigmoid(b) is rounded to the model's type before it enters the recurrence.
  p.beta = ops::delta_rule::BetaForm::kProbability;
  p.norm = ops::delta_rule::NormForm::kL2Add;
  p.norm_eps = kQkNormEps;
  p.scale = 1.0f / std::sqrt(static_cast<float>(d.dim));
  p.tokens = segment.plan->tokens();
  p.sequences = segment.plan->sequences();
  p.max_length = segment.plan->max_length();
  // Every row pitch and start is a multiple of one head's row; scratch starts are aligned.
  p.alignment = 2;
  for (const int32_t a : {4, 8, 16}) {
    if (d.dim * static_cast<int64_t>(SizeOf(io)) % a == 0) p.alignment = a;
  }
  return p;
}

ops::causal_conv1d::Problem ConvProblem(const KdaDims& d, const Segment& segment, DType io, DType weight, DType state) {
  ops::causal_conv1d::Problem p;
  p.channels = static_cast<int32_t>(3 * d.inner());
  p.width = d.width;
  p.io = io;
  p.weight = weight;
  p.state = state;
  // transformers convolves in the type of the weights and rounds to the model's type after the activation.
  p.rounding = weight == io ? ops::causal_conv1d::Rounding::kEager : ops::causal_conv1d::Rounding::kOnce;
  p.tokens = segment.plan->tokens();
  p.sequences = segment.plan->sequences();
  p.max_length = segment.plan->max_length();
  return p;
}

}  // namespace

Result<size_t> KdaBytes(Operators& operators, const Step& step, const KdaDims& dims, const KdaWeights& w, DType io,
                        DType conv_state, DType recurrent_state) {
  Scratch scratch;
  TakeKda(scratch, dims, step.tokens(), io);
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, LinearsBytes(operators, step.tokens(), io,
                                                     {&w.q, &w.k, &w.v, &w.f_a, &w.f_b, &w.b, &w.g_a, &w.g_b, &w.out}));
  const Segments segments = SegmentsOf(step);
  for (int i = 0; i < segments.count; ++i) {
    const auto conv = ConvProblem(dims, segments.parts[i], io, w.conv.dtype, conv_state);
    const auto delta = DeltaProblem(dims, segments.parts[i], io, recurrent_state);
    FLUVIAL_ASSIGN_OR_RETURN(const auto* conv_backend, operators.Choose(conv));
    FLUVIAL_ASSIGN_OR_RETURN(const auto* delta_backend, operators.Choose(delta));
    most = std::max({most, Arena::Aligned(conv_backend->workspace_bytes(conv, operators.device())),
                     Arena::Aligned(delta_backend->workspace_bytes(delta, operators.device()))});
  }
  return scratch.bytes() + most;
}

Status Kda(const BlockContext& c, const KdaDims& d, const KdaWeights& w, const LayerCache& cache, const TensorView& x,
           const TensorView& y) {
  Scratch scratch(&c.arena);
  const KdaScratch t = TakeKda(scratch, d, x.dim(0), c.io);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  const int64_t inner = d.inner();
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.q, Columns(t.qkv, 0, inner)));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.k, Columns(t.qkv, inner, inner)));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.v, Columns(t.qkv, 2 * inner, inner)));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.f_a, t.low));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, t.low, w.f_b, t.gate));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.b, t.beta));
  FLUVIAL_RETURN_IF_ERROR(ew::Apply(c.stream, ew::Function::kSigmoid, t.beta, t.beta));

  const Segments segments = SegmentsOf(c.step);
  for (int i = 0; i < segments.count; ++i) {
    const Segment& s = segments.parts[i];
    const int64_t n = s.plan->tokens();
    const auto conv_problem = ConvProblem(d, s, c.io, w.conv.dtype, cache.conv.dtype);
    FLUVIAL_ASSIGN_OR_RETURN(const auto* conv_backend, c.operators.Choose(conv_problem));
    ops::causal_conv1d::Args conv;
    conv.x = Rows(t.qkv, s.begin, n);
    conv.weight = w.conv;
    conv.out = Rows(t.conv, s.begin, n);
    conv.state = cache.conv;
    conv.plan = s.plan;
    FLUVIAL_RETURN_IF_ERROR(RunBackend(c, conv_backend, conv_problem, conv));

    const auto delta_problem = DeltaProblem(d, s, c.io, cache.recurrent.dtype);
    FLUVIAL_ASSIGN_OR_RETURN(const auto* delta_backend, c.operators.Choose(delta_problem));
    ops::delta_rule::Args delta;
    delta.q = Heads(Columns(conv.out, 0, inner), d.heads, d.dim);
    delta.k = Heads(Columns(conv.out, inner, inner), d.heads, d.dim);
    delta.v = Heads(Columns(conv.out, 2 * inner, inner), d.heads, d.dim);
    delta.gate = Heads(Rows(t.gate, s.begin, n), d.heads, d.dim);
    delta.beta = Rows(t.beta, s.begin, n);
    delta.a_log = w.a_log;
    delta.dt_bias = w.dt_bias;
    delta.out = Heads(Rows(t.core, s.begin, n), d.heads, d.dim);
    delta.state = cache.recurrent;
    delta.plan = s.plan;
    FLUVIAL_RETURN_IF_ERROR(RunBackend(c, delta_backend, delta_problem, delta));
  }

  // The decay gate is used up: its place takes the output gate.
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.g_a, t.low));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, t.low, w.g_b, t.gate));
  ops::norm::Args norm;
  norm.form = ops::norm::Form::kRmsSigmoidGate;
  norm.eps = c.eps;
  norm.x = norm.y = Heads(t.core, d.heads, d.dim);
  norm.weight = w.norm;
  norm.gate = Heads(t.gate, d.heads, d.dim);
  FLUVIAL_RETURN_IF_ERROR(ops::norm::Run(c.stream, norm));
  return Linear(c, t.core, w.out, y);
}

namespace {

struct MlaScratch {
  TensorView q, latents, out;
};

MlaScratch TakeMla(Scratch& s, const MlaDims& d, int64_t t, DType io) {
  MlaScratch out;
  out.q = s.Take(io, {t, int64_t{d.heads} * (d.nope + d.rope)});
  out.latents = s.Take(io, {t, d.width()});
  out.out = s.Take(io, {t, int64_t{d.heads} * d.v});
  return out;
}

ops::mla_attention::Problem MlaProblem(const MlaDims& d, const Step& step, DType io, DType kv, DType weight,
                                       int32_t selected) {
  ops::mla_attention::Problem p;
  p.heads = d.heads;
  p.nope = d.nope;
  p.rope = d.rope;
  p.v = d.v;
  p.rank = d.rank;
  p.page_size = step.kv->page_size();
  p.io = io;
  p.kv = kv;
  p.weight = weight;
  p.selected = selected;
  ops::mla_attention::SetLengths(p, *step.kv);
  return p;
}

Status RmsNorm(const BlockContext& c, const TensorView& weight, float eps, const TensorView& x) {
  ops::norm::Args norm;
  norm.form = ops::norm::Form::kRms;
  norm.eps = eps;
  norm.x = norm.y = x;
  norm.weight = weight;
  return ops::norm::Run(c.stream, norm);
}

}  // namespace

Result<size_t> MlaBytes(Operators& operators, const Step& step, const MlaDims& dims, const MlaWeights& w, DType io,
                        DType kv, int32_t selected) {
  Scratch scratch;
  TakeMla(scratch, dims, step.tokens(), io);
  FLUVIAL_ASSIGN_OR_RETURN(size_t most, LinearsBytes(operators, step.tokens(), io, {&w.kv_a, &w.o}));
  for (const TensorView* q : {&w.q, &w.q_a, &w.q_b}) {
    if (q->rank == 0) continue;
    FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, LinearsBytes(operators, step.tokens(), io, {q}));
    most = std::max(most, bytes);
  }
  const auto problem = MlaProblem(dims, step, io, kv, w.kv_b.dtype, selected);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, operators.Choose(problem));
  return scratch.bytes() + std::max(most, Arena::Aligned(backend->workspace_bytes(problem, operators.device())));
}

Status MlaQueryLatents(const BlockContext& c, const MlaDims& d, const MlaWeights& w, const TensorView& x,
                       const TensorView& to) {
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.q_a, to));
  return RmsNorm(c, w.q_a_norm, d.norm_eps, to);
}

Status Mla(const BlockContext& c, const MlaDims& d, const MlaWeights& w, const LayerCache& cache, const TensorView& x,
           const TensorView& queries, const KeySelection* selection, const TensorView& y) {
  Scratch scratch(&c.arena);
  const MlaScratch t = TakeMla(scratch, d, x.dim(0), c.io);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(Linear(c, queries, d.query_rank > 0 ? w.q_b : w.q, t.q));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.kv_a, t.latents));
  FLUVIAL_RETURN_IF_ERROR(RmsNorm(c, w.kv_a_norm, d.norm_eps, Columns(t.latents, 0, d.rank)));

  // [pages, 1, page_size, width] as rows.
  const TensorView& k = cache.k_pages;
  const TensorView pages(k.data, k.dtype, {k.dims[0], k.dims[2], k.dims[3]}, {k.strides[0], k.strides[2], 1});
  FLUVIAL_RETURN_IF_ERROR(ops::paged_attention::AppendRows(c.stream, t.latents, pages, *c.step.kv));
  const int32_t selected = selection == nullptr ? 0 : static_cast<int32_t>(selection->positions.dim(1));
  const auto problem = MlaProblem(d, c.step, c.io, k.dtype, w.kv_b.dtype, selected);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, c.operators.Choose(problem));
  ops::mla_attention::Args args;
  args.q = Heads(t.q, d.heads, d.nope + d.rope);
  args.pages = pages;
  args.kv_b = w.kv_b;
  args.out = Heads(t.out, d.heads, d.v);
  if (selection != nullptr) {
    args.selected = selection->positions;
    args.counts = selection->counts;
  }
  args.plan = c.step.kv;
  FLUVIAL_RETURN_IF_ERROR(RunBackend(c, backend, problem, args));
  return Linear(c, t.out, w.o, y);
}

}  // namespace fluvial::models
