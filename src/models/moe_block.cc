// SPDX-License-Identifier: Apache-2.0
#include "models/moe_block.h"

#include <algorithm>

#include "ops/elementwise/elementwise.h"

namespace fluvial::models {
namespace {

namespace ew = ops::elementwise;
using ops::moe::Layout;

struct MoeScratch {
  TensorView logits, ids, weights, shared, gate;
};

MoeScratch TakeMoe(Scratch& s, const MoeDims& d, const MoeWeights& w, int64_t t, DType io) {
  MoeScratch out;
  const DType logits = d.router.scoring == ops::moe::Scoring::kSigmoid ? DType::kF32 : io;
  out.logits = s.Take(logits, {t, d.router.experts});
  out.ids = s.Take(DType::kI32, {t, d.router.per_token});
  out.weights = s.Take(DType::kF32, {t, d.router.per_token});
  if (d.shared_inter > 0) out.shared = s.Take(io, {t, d.hidden});
  if (w.shared_gate.defined()) out.gate = s.Take(io, {t, 1});
  return out;
}

ops::moe::Problem MoeProblem(const MoeDims& d, const MoeWeights& w, int64_t tokens, DType io) {
  ops::moe::Problem p;
  p.tokens = tokens;
  p.experts = d.router.experts;
  p.per_token = d.router.per_token;
  p.hidden = d.hidden;
  p.inter = d.inter;
  p.io = io;
  p.w = w.dtype;
  p.gate_up = w.gate_up;
  p.down = w.down;
  p.limit = d.limit;
  return p;
}

/// The layout of a stacked [E, out, in] tensor by its shape.
Layout LayoutOf(const weights::WeightReader& reader, const std::string& name, int64_t out, int64_t in, Layout square) {
  const std::vector<int64_t>* shape = reader.ShapeOf(name);
  if (shape == nullptr || shape->size() != 3 || out == in) return square;
  return (*shape)[1] == in && (*shape)[2] == out ? Layout::kInputMajor : Layout::kOutputMajor;
}

TensorView TakeStack(weights::WeightReader& reader, const std::string& name, int64_t experts, int64_t out, int64_t in,
                     Layout layout) {
  return layout == Layout::kOutputMajor ? reader.Take(name, {experts, out, in}) : reader.Take(name, {experts, in, out});
}

}  // namespace

Result<size_t> MoeBytes(Operators& operators, const Step& step, const MoeDims& d, const MoeWeights& w, DType io) {
  Scratch scratch;
  const int64_t t = step.tokens();
  const MoeScratch s = TakeMoe(scratch, d, w, t, io);
  ops::gemm::Problem router = LinearProblem(t, w.router, io);
  router.y = s.logits.dtype;
  FLUVIAL_ASSIGN_OR_RETURN(const size_t logits, operators.LinearBytes(router));
  size_t most = Arena::Aligned(logits);
  const auto problem = MoeProblem(d, w, t, io);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, operators.Choose(problem));
  most = std::max(most, Arena::Aligned(backend->workspace_bytes(problem, operators.device())));
  if (d.shared_inter > 0) {
    FLUVIAL_ASSIGN_OR_RETURN(const size_t mlp, MlpBytes(operators, step, w.shared, io));
    most = std::max(most, mlp);
  }
  if (w.shared_gate.defined()) {
    FLUVIAL_ASSIGN_OR_RETURN(const size_t gate, operators.LinearBytes(LinearProblem(t, w.shared_gate, io)));
    most = std::max(most, Arena::Aligned(gate));
  }
  return scratch.bytes() + most;
}

Status Moe(const BlockContext& c, const MoeDims& d, const MoeWeights& w, const TensorView& x, const TensorView& y) {
  Scratch scratch(&c.arena);
  const MoeScratch t = TakeMoe(scratch, d, w, x.dim(0), c.io);
  FLUVIAL_RETURN_IF_ERROR(scratch.status());
  FLUVIAL_RETURN_IF_ERROR(c.operators.Linear(c.stream, x, w.router, {}, t.logits, c.arena));
  FLUVIAL_RETURN_IF_ERROR(ops::moe::Route(c.stream, d.router, {t.logits, w.router_bias, t.ids, t.weights}));

  const auto problem = MoeProblem(d, w, x.dim(0), c.io);
  FLUVIAL_ASSIGN_OR_RETURN(const auto* backend, c.operators.Choose(problem));
  FLUVIAL_RETURN_IF_ERROR(RunBackend(c, backend, problem, ops::moe::Args{x, t.ids, t.weights, w.experts, y}));

  if (d.shared_inter == 0) return Status::Ok();
  FLUVIAL_RETURN_IF_ERROR(Mlp(c, w.shared, x, t.shared));
  if (w.shared_gate.defined()) {
    FLUVIAL_RETURN_IF_ERROR(c.operators.Linear(c.stream, x, w.shared_gate, {}, t.gate, c.arena));
    FLUVIAL_RETURN_IF_ERROR(ew::SigmoidMul(c.stream, t.shared, t.gate, t.shared));
  }
  return ew::Add(c.stream, y, t.shared, y);
}

Status TakeExperts(weights::WeightReader& reader, const std::string& prefix, const MoeDims& d, const ExpertNames& names,
                   Layout square, MoeWeights& w) {
  const int64_t experts = d.router.experts;
  const std::string gate_up_name = prefix + "gate_up_proj", down_name = prefix + "down_proj";
  // Without a first expert the stacks are asked for: two names that are missing instead of thousands.
  if (reader.Has(gate_up_name) || reader.Has(down_name) ||
      !reader.Has(prefix + "0." + std::string(names[0]) + ".weight")) {
    w.gate_up = LayoutOf(reader, gate_up_name, 2 * d.inter, d.hidden, square);
    w.down = LayoutOf(reader, down_name, d.hidden, d.inter, square);
    const TensorView gate_up = TakeStack(reader, gate_up_name, experts, 2 * d.inter, d.hidden, w.gate_up);
    const TensorView down = TakeStack(reader, down_name, experts, d.hidden, d.inter, w.down);
    if (gate_up.defined() && down.defined()) w.experts = StackedExperts(gate_up, w.gate_up, down, w.down);
  } else {
    w.experts.resize(static_cast<size_t>(experts));
    for (int64_t e = 0; e < experts; ++e) {
      const std::string p = prefix + std::to_string(e) + ".";
      const auto name = [&](size_t i) { return p + std::string(names[i]) + ".weight"; };
      w.experts[static_cast<size_t>(e)] = {reader.Take(name(0), {d.inter, d.hidden}),
                                           reader.Take(name(1), {d.inter, d.hidden}),
                                           reader.Take(name(2), {d.hidden, d.inter})};
    }
  }
  bool first = true;
  for (const ops::moe::ExpertWeights& e : w.experts) {
    for (const TensorView* v : {&e.gate, &e.up, &e.down}) {
      if (!v->defined()) continue;
      if (first) w.dtype = v->dtype;
      first = false;
      if (v->dtype == w.dtype) continue;
      return Status::UnusableModel(prefix + "*: experts of one layer are stored as " + std::string(Name(w.dtype)) +
                                   " and " + std::string(Name(v->dtype)) + "; convert them to one type");
    }
  }
  return Status::Ok();
}

}  // namespace fluvial::models
