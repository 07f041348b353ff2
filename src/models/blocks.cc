// SPDX-License-Identifier: Apache-2.0
#include "models/blocks.h"

#include <cmath>

#include "models/block_parts.h"
#include "ops/elementwise/elementwise.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

namespace fluvial::models {
namespace {

namespace ew = ops::elementwise;

/// eps of the q/k norm inside the delta rule; a constant of the architecture, not of the config.
constexpr float kQkNormEps = 1e-6f;

struct GdnScratch {
  TensorView qkv, conv, z, a, b, core, qkvz, ba;
};

GdnScratch TakeGdn(Scratch& s, const GdnDims& d, const GdnWeights& w, int64_t t, DType io) {
  GdnScratch out;
  if (w.in_qkvz.defined()) {
    out.qkvz = s.Take(io, {t, d.channels() + d.value_dim()});
    out.ba = s.Take(io, {t, int64_t{2} * d.hv});
  }
  out.qkv = s.Take(io, {t, d.channels()});
  out.conv = s.Take(io, {t, d.channels()});
  out.z = s.Take(io, {t, d.value_dim()});
  out.a = s.Take(io, {t, d.hv});
  out.b = s.Take(io, {t, d.hv});
  out.core = s.Take(io, {t, d.value_dim()});
  return out;
}

/// Largest of 16, 8, 4, 2 that divides every row pitch and every start of the operands; scratch starts are aligned.
int32_t DeltaAlignment(const GdnDims& d, DType io) {
  const int64_t e = static_cast<int64_t>(SizeOf(io));
  for (int64_t a = 16; a > 2; a /= 2) {
    if (d.channels() * e % a == 0 && d.key_dim() * e % a == 0 && d.value_dim() * e % a == 0 && d.hv * e % a == 0) {
      return static_cast<int32_t>(a);
    }
  }
  return 2;
}

ops::delta_rule::Problem DeltaProblem(const GdnDims& d, const Segment& segment, DType io, DType state) {
  ops::delta_rule::Problem p;
  p.op = segment.decode ? ops::delta_rule::Op::kGdnDecode : ops::delta_rule::Op::kGdnPrefill;
  p.hk = d.hk;
  p.hv = d.hv;
  p.k = d.k;
  p.v = d.v;
  p.io = p.gate_dtype = p.beta_dtype = io;
  p.state = state;
  p.gate = ops::delta_rule::GateForm::kSoftplus;
  // sigmoid(b) is rounded to the model's type before it enters the recurrence.
  p.beta = ops::delta_rule::BetaForm::kProbability;
  p.norm = ops::delta_rule::NormForm::kL2Add;
  p.norm_eps = kQkNormEps;
  p.scale = 1.0f / std::sqrt(static_cast<float>(d.k));
  p.tokens = segment.plan->tokens();
  p.sequences = segment.plan->sequences();
  p.max_length = segment.plan->max_length();
  p.alignment = DeltaAlignment(d, io);
  return p;
}

ops::causal_conv1d::Problem ConvProblem(const GdnDims& d, const Segment& segment, DType io, DType weight, DType state) {
  ops::causal_conv1d::Problem p;
  p.channels = static_cast<int32_t>(d.channels());
  p.width = d.width;
  p.io = io;
  p.weight = weight;
  p.state = state;
  p.rounding = ops::causal_conv1d::Rounding::kEager;
  p.tokens = segment.plan->tokens();
  p.sequences = segment.plan->sequences();
  p.max_length = segment.plan->max_length();
  return p;
}

ops::paged_attention::Problem AttentionProblem(const AttentionDims& d, const Step& step, DType io, DType kv) {
  ops::paged_attention::Problem p;
  p.hq = d.hq;
  p.hkv = d.hkv;
  p.d_qk = p.d_v = d.d;
  p.page_size = step.kv->page_size();
  p.io = io;
  p.kv = kv;
  ops::paged_attention::SetLengths(p, *step.kv);
  return p;
}

}  // namespace

TensorView Scratch::Take(DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  const size_t bytes = static_cast<size_t>(view.elements()) * SizeOf(dtype);
  bytes_ += Arena::Aligned(bytes);
  if (arena_ == nullptr || !status_.ok()) return view;
  Result<void*> data = arena_->Take(bytes);
  if (data.ok()) {
    view.data = *data;
  } else {
    status_ = data.status();
  }
  return view;
}

TensorView Rows(const TensorView& t, int64_t begin, int64_t count) {
  TensorView out = t;
  out.dims[0] = count;
  if (t.data != nullptr) {
    out.data = static_cast<char*>(t.data) + begin * t.strides[0] * static_cast<int64_t>(SizeOf(t.dtype));
  }
  return out;
}

TensorView Columns(const TensorView& t, int64_t begin, int64_t count) {
  TensorView out = t;
  out.dims[1] = count;
  if (t.data != nullptr) out.data = static_cast<char*>(t.data) + begin * static_cast<int64_t>(SizeOf(t.dtype));
  return out;
}

TensorView Heads(const TensorView& t, int64_t heads, int64_t dim, int64_t skip) {
  return TensorView(t.data, t.dtype, {t.dim(0), heads, dim}, {t.stride(0), dim + skip, 1});
}

namespace {

/// One level of [levels, n, H].
TensorView Level(const TensorView& features, int64_t level) {
  TensorView out(features.data, features.dtype, {features.dim(1), features.dim(2)}, {features.stride(1), 1});
  out.data = static_cast<char*>(out.data) + level * features.stride(0) * static_cast<int64_t>(SizeOf(out.dtype));
  return out;
}

}  // namespace

Status PlaceFeatures(Stream& stream, const Step& step, const TensorView& hidden) {
  if (step.vision == nullptr) return Status::Ok();
  for (const VisionRows& v : *step.vision) {
    FLUVIAL_RETURN_IF_ERROR(ew::Cast(stream, Level(v.features, 0), Rows(hidden, v.row, v.features.dim(1))));
  }
  return Status::Ok();
}

Status AddFeatures(Stream& stream, const Step& step, int64_t level, const TensorView& hidden) {
  if (step.vision == nullptr) return Status::Ok();
  for (const VisionRows& v : *step.vision) {
    const TensorView rows = Rows(hidden, v.row, v.features.dim(1));
    FLUVIAL_RETURN_IF_ERROR(ew::Add(stream, rows, Level(v.features, level), rows));
  }
  return Status::Ok();
}

ops::gemm::Problem LinearProblem(int64_t m, const TensorView& w, DType io, bool bias) {
  ops::gemm::Problem p;
  p.m = m;
  p.n = w.dim(0);
  p.k = w.dim(1);
  p.x = p.y = io;
  p.w = w.dtype;
  p.has_bias = bias;
  return p;
}

Result<size_t> GdnBytes(Operators& operators, const Step& step, const GdnDims& dims, const GdnWeights& w, DType io,
                        DType conv_state, DType recurrent_state) {
  Scratch scratch;
  TakeGdn(scratch, dims, w, step.tokens(), io);
  FLUVIAL_ASSIGN_OR_RETURN(
      size_t most,
      LinearsBytes(operators, step.tokens(), io, {&w.in_qkv, &w.in_z, &w.in_b, &w.in_a, &w.in_qkvz, &w.in_ba, &w.out}));
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

namespace {

/// qkv, z, b and a of all heads in flat order.
Status Project(const BlockContext& c, const GdnDims& d, const GdnWeights& w, const TensorView& x, const GdnScratch& t) {
  if (!w.in_qkvz.defined()) {
    FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.in_qkv, t.qkv));
    FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.in_z, t.z));
    FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.in_b, t.b));
    return Linear(c, x, w.in_a, t.a);
  }
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.in_qkvz, t.qkvz));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.in_ba, t.ba));
  // From `width` columns per key head at `begin` of its group to `to`, in which only they lie.
  const auto regroup = [&](const TensorView& from, int64_t begin, int64_t width, const TensorView& to) {
    const int64_t group = from.dim(1) / d.hk;
    return ew::Cast(c.stream, Heads(Columns(from, begin, from.dim(1) - begin), d.hk, width, group - width),
                    Heads(to, d.hk, width));
  };
  const int64_t k = d.k, v = int64_t{d.repeat()} * d.v, r = d.repeat();
  FLUVIAL_RETURN_IF_ERROR(regroup(t.qkvz, 0, k, Columns(t.qkv, 0, d.key_dim())));
  FLUVIAL_RETURN_IF_ERROR(regroup(t.qkvz, k, k, Columns(t.qkv, d.key_dim(), d.key_dim())));
  FLUVIAL_RETURN_IF_ERROR(regroup(t.qkvz, 2 * k, v, Columns(t.qkv, 2 * d.key_dim(), d.value_dim())));
  FLUVIAL_RETURN_IF_ERROR(regroup(t.qkvz, 2 * k + v, v, t.z));
  FLUVIAL_RETURN_IF_ERROR(regroup(t.ba, 0, r, t.b));
  return regroup(t.ba, r, r, t.a);
}

}  // namespace

Status Gdn(const BlockContext& c, const GdnDims& d, const GdnWeights& w, const LayerCache& cache, const TensorView& x,
           const TensorView& y) {
  Scratch scratch(&c.arena);
  const GdnScratch t = TakeGdn(scratch, d, w, x.dim(0), c.io);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(Project(c, d, w, x, t));
  FLUVIAL_RETURN_IF_ERROR(ew::Apply(c.stream, ew::Function::kSigmoid, t.b, t.b));

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
    delta.q = Heads(Columns(conv.out, 0, d.key_dim()), d.hk, d.k);
    delta.k = Heads(Columns(conv.out, d.key_dim(), d.key_dim()), d.hk, d.k);
    delta.v = Heads(Columns(conv.out, 2 * d.key_dim(), d.value_dim()), d.hv, d.v);
    delta.gate = Rows(t.a, s.begin, n);
    delta.beta = Rows(t.b, s.begin, n);
    delta.a_log = w.a_log;
    delta.dt_bias = w.dt_bias;
    delta.out = Heads(Rows(t.core, s.begin, n), d.hv, d.v);
    delta.state = cache.recurrent;
    delta.plan = s.plan;
    FLUVIAL_RETURN_IF_ERROR(RunBackend(c, delta_backend, delta_problem, delta));
  }

  ops::norm::Args norm;
  norm.form = ops::norm::Form::kRmsSiluGate;
  norm.eps = c.eps;
  norm.x = norm.y = Heads(t.core, d.hv, d.v);
  norm.weight = w.norm;
  norm.gate = Heads(t.z, d.hv, d.v);
  FLUVIAL_RETURN_IF_ERROR(ops::norm::Run(c.stream, norm));
  return Linear(c, t.core, w.out, y);
}

namespace {

struct AttentionScratch {
  TensorView q, k, v, out;
};

AttentionScratch TakeAttention(Scratch& s, const AttentionDims& d, int64_t t, DType io) {
  AttentionScratch out;
  out.q = s.Take(io, {t, int64_t{d.gate ? 2 : 1} * d.hq * d.d});
  out.k = s.Take(io, {t, int64_t{d.hkv} * d.d});
  out.v = s.Take(io, {t, int64_t{d.hkv} * d.d});
  out.out = s.Take(io, {t, int64_t{d.hq} * d.d});
  return out;
}

Status HeadNorm(const BlockContext& c, ops::norm::Form form, const TensorView& weight, const TensorView& x) {
  if (!weight.defined()) return Status::Ok();
  ops::norm::Args norm;
  norm.form = form;
  norm.eps = c.eps;
  norm.x = norm.y = x;
  norm.weight = weight;
  return ops::norm::Run(c.stream, norm);
}

}  // namespace

Result<size_t> AttentionBytes(Operators& operators, const Step& step, const AttentionDims& dims,
                              const AttentionWeights& w, DType io, DType kv) {
  Scratch scratch;
  TakeAttention(scratch, dims, step.tokens(), io);
  FLUVIAL_ASSIGN_OR_RETURN(const size_t linears, LinearsBytes(operators, step.tokens(), io, {&w.q, &w.k, &w.v, &w.o}));
  const auto problem = AttentionProblem(dims, step, io, kv);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, operators.Choose(problem));
  return scratch.bytes() + std::max(linears, Arena::Aligned(backend->workspace_bytes(problem, operators.device())));
}

Status Attention(const BlockContext& c, const AttentionDims& d, const AttentionWeights& w, const LayerCache& cache,
                 const TensorView& cos, const TensorView& sin, const TensorView& x, const TensorView& y) {
  Scratch scratch(&c.arena);
  const AttentionScratch t = TakeAttention(scratch, d, x.dim(0), c.io);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.q, t.q, w.q_bias));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.k, t.k, w.k_bias));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.v, t.v, w.v_bias));

  // Per head: d query elements, then d gate elements where there is a gate.
  const TensorView q = Heads(t.q, d.hq, d.d, /*skip=*/d.gate ? d.d : 0);
  const TensorView k = Heads(t.k, d.hkv, d.d), v = Heads(t.v, d.hkv, d.d), out = Heads(t.out, d.hq, d.d);
  FLUVIAL_RETURN_IF_ERROR(HeadNorm(c, d.qk_norm, w.q_norm, q));
  FLUVIAL_RETURN_IF_ERROR(HeadNorm(c, d.qk_norm, w.k_norm, k));
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Apply(c.stream, q, cos, sin, ops::rope::Rounding::kModel, q));
  FLUVIAL_RETURN_IF_ERROR(ops::rope::Apply(c.stream, k, cos, sin, ops::rope::Rounding::kModel, k));

  const auto problem = AttentionProblem(d, c.step, c.io, cache.k_pages.dtype);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, c.operators.Choose(problem));
  FLUVIAL_RETURN_IF_ERROR(
      ops::paged_attention::AppendKv(c.stream, problem, {k, v, cache.k_pages, cache.v_pages, c.step.kv}));
  ops::paged_attention::Args args;
  args.q = q;
  args.k_pages = cache.k_pages;
  args.v_pages = cache.v_pages;
  args.out = out;
  args.plan = c.step.kv;
  FLUVIAL_RETURN_IF_ERROR(RunBackend(c, backend, problem, args));
  if (d.gate) {
    const TensorView gate = Heads(Columns(t.q, d.d, t.q.dim(1) - d.d), d.hq, d.d, /*skip=*/d.d);
    FLUVIAL_RETURN_IF_ERROR(ew::SigmoidMul(c.stream, out, gate, out));
  }
  return Linear(c, t.out, w.o, y, w.o_bias);
}

namespace {

struct MlpScratch {
  TensorView gate, up;
};

MlpScratch TakeMlp(Scratch& s, int64_t t, int64_t inner, DType io) {
  MlpScratch out;
  out.gate = s.Take(io, {t, inner});
  out.up = s.Take(io, {t, inner});
  return out;
}

}  // namespace

Result<size_t> MlpBytes(Operators& operators, const Step& step, const MlpWeights& w, DType io) {
  Scratch scratch;
  TakeMlp(scratch, step.tokens(), w.gate.dim(0), io);
  FLUVIAL_ASSIGN_OR_RETURN(const size_t linears, LinearsBytes(operators, step.tokens(), io, {&w.gate, &w.up, &w.down}));
  return scratch.bytes() + linears;
}

Status Mlp(const BlockContext& c, const MlpWeights& w, const TensorView& x, const TensorView& y) {
  Scratch scratch(&c.arena);
  const MlpScratch t = TakeMlp(scratch, x.dim(0), w.gate.dim(0), c.io);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.gate, t.gate));
  FLUVIAL_RETURN_IF_ERROR(Linear(c, x, w.up, t.up));
  ew::GluArgs glu;
  if (w.limit > 0) {
    glu.form = ew::GluArgs::Form::kClamped;
    glu.limit = w.limit;
  }
  glu.gate = t.gate;
  glu.up = t.up;
  glu.y = t.gate;
  FLUVIAL_RETURN_IF_ERROR(ew::Glu(c.stream, glu));
  return Linear(c, t.gate, w.down, y);
}

}  // namespace fluvial::models
