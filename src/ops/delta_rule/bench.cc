// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/bench.h"

#include <algorithm>
#include <utility>

#include "ops/common/test_kit.h"

namespace fluvial::ops::delta_rule {
double MinimumBytes(const ProblemLine& line) {
  const Problem& p = line.problem;
  const double io = static_cast<double>(SizeOf(p.io));
  const double token = io * 2 * (double{1} * p.hk * p.k + double{1} * p.hv * p.v) +
                       static_cast<double>(SizeOf(p.gate_dtype)) * p.hv * (p.kda() ? p.k : 1) +
                       static_cast<double>(SizeOf(p.beta_dtype)) * p.hv;
  const double state = static_cast<double>(SizeOf(p.state)) * p.hv * p.k * p.v;
  double states = 2.0 * p.sequences;
  if (p.token_states) states = static_cast<double>(p.sequences + p.tokens);
  if (p.checkpoint_every > 0) {
    for (const int64_t n : line.lengths) states += static_cast<double>(n / p.checkpoint_every);
  }
  return token * static_cast<double>(p.tokens) + state * states;
}

double MultiplyAdds(const ProblemLine& line) {
  const Problem& p = line.problem;
  return 3.0 * static_cast<double>(p.tokens) * p.hv * p.k * p.v;
}

Result<Measurement> Measure(Stream& stream, const DeltaBackend& backend, const ProblemLine& line, int min_repeats,
                            double min_seconds) {
  const Problem& p = line.problem;
  FLUVIAL_RETURN_IF_ERROR(Validate(p));
  const auto check = backend.check(p, stream.device());
  if (!check.ok()) {
    return Status::Refused(std::string(Name(p.op)) + ": backend '" + std::string(backend.name) +
                           "' cannot run this: " + check.reason());
  }
  const auto normal = [](test_kit::Random& r) { return r.Normal(); };
  // Inputs of in-kernel gates around -3: decays between 0.9 and 1, as in trained models.
  const auto gate = [](test_kit::Random& r) { return r.Normal() - 3; };
  const auto log_gate = [](test_kit::Random& r) { return -0.1 * r.Uniform(); };
  const auto probability = [](test_kit::Random& r) { return r.Uniform(); };
  const auto small = [](test_kit::Random& r) { return 0.25 * r.Normal(); };
  const auto unit = [](test_kit::Random& r) { return 0.088 * r.Normal(); };
  test_kit::Random random(line.seed);
  const int64_t t = p.tokens, width = p.kda() ? p.k : 1;
  const int64_t slots = p.sequences + (p.token_states ? p.sequences * p.max_length : 0);
  std::vector<Buffer> keep;
  const auto make = [&](DType dtype, int64_t n, double (*value)(test_kit::Random&)) -> Result<void*> {
    FLUVIAL_ASSIGN_OR_RETURN(Buffer b, FillBuffer(stream, dtype, std::max<int64_t>(n, 1), random, value));
    keep.push_back(std::move(b));
    return keep.back().data();
  };
  double (*const key)(test_kit::Random&) = p.norm == NormForm::kNone ? +unit : +normal;
  Args a;
  FLUVIAL_ASSIGN_OR_RETURN(void* q, make(p.io, t * p.hk * p.k, key));
  FLUVIAL_ASSIGN_OR_RETURN(void* k, make(p.io, t * p.hk * p.k, key));
  FLUVIAL_ASSIGN_OR_RETURN(void* v, make(p.io, t * p.hv * p.v, normal));
  FLUVIAL_ASSIGN_OR_RETURN(void* out, make(p.io, t * p.hv * p.v, normal));
  FLUVIAL_ASSIGN_OR_RETURN(void* g, make(p.gate_dtype, t * p.hv * width, p.gate == GateForm::kLog ? +log_gate : +gate));
  FLUVIAL_ASSIGN_OR_RETURN(void* b,
                           make(p.beta_dtype, t * p.hv, p.beta == BetaForm::kProbability ? +probability : +normal));
  FLUVIAL_ASSIGN_OR_RETURN(void* a_log, make(DType::kF32, p.hv, probability));
  FLUVIAL_ASSIGN_OR_RETURN(void* bias, make(DType::kF32, p.hv * width, small));
  FLUVIAL_ASSIGN_OR_RETURN(void* state, make(p.state, std::max<int64_t>(slots, 1) * p.hv * p.v * p.k, small));
  a.q = {q, p.io, {t, p.hk, p.k}};
  a.k = {k, p.io, {t, p.hk, p.k}};
  a.v = {v, p.io, {t, p.hv, p.v}};
  a.out = {out, p.io, {t, p.hv, p.v}};
  a.gate = p.kda() ? TensorView(g, p.gate_dtype, {t, p.hv, p.k}) : TensorView(g, p.gate_dtype, {t, p.hv});
  a.beta = {b, p.beta_dtype, {t, p.hv}};
  if (p.has_a_log) a.a_log = {a_log, DType::kF32, {p.hv}};
  if (p.has_dt_bias) {
    a.dt_bias = p.kda() ? TensorView(bias, DType::kF32, {p.hv, p.k}) : TensorView(bias, DType::kF32, {p.hv});
  }
  a.state = {state, p.state, {std::max<int64_t>(slots, 1), p.hv, p.v, p.k}};
  if (p.checkpoint_every > 0) {
    int64_t rows = 0;
    for (const int64_t n : line.lengths) rows += n / p.checkpoint_every;
    FLUVIAL_ASSIGN_OR_RETURN(void* checkpoints, make(p.state, rows * p.hv * p.v * p.k, small));
    a.checkpoints = {checkpoints, p.state, {rows, p.hv, p.v, p.k}};
  }
  const DeviceInfo& device = stream.device();
  if (p.token_states) {
    std::vector<int32_t> ids(static_cast<size_t>(p.sequences) * p.max_length);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = p.sequences + static_cast<int32_t>(i);
    FLUVIAL_ASSIGN_OR_RETURN(Buffer token_slots, Buffer::Allocate(device.kind, ids.size() * 4, device.index));
    FLUVIAL_RETURN_IF_ERROR(
        Copy(stream, token_slots.data(), device.kind, ids.data(), DeviceKind::kCpu, ids.size() * 4));
    a.token_slots = {token_slots.data(), DType::kI32, {p.sequences, p.max_length}};
    keep.push_back(std::move(token_slots));
  }
  FLUVIAL_ASSIGN_OR_RETURN(const SequencePlan plan, SequencePlan::Make(stream, {line.lengths, {}, {}}));
  a.plan = &plan;
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  FLUVIAL_ASSIGN_OR_RETURN(const Buffer workspace,
                           Buffer::Allocate(device.kind, backend.workspace_bytes(p, device), device.index));
  FLUVIAL_ASSIGN_OR_RETURN(Measurement m,
                           MeasureRuns(
                               stream, [&] { return backend.run(stream, p, a, {workspace.data(), workspace.bytes()}); },
                               min_repeats, min_seconds));
  m.bytes = MinimumBytes(line);
  m.multiply_adds = MultiplyAdds(line);
  return m;
}

}  // namespace fluvial::ops::delta_rule
