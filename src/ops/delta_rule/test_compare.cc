// SPDX-License-Identifier: Apache-2.0
// Reference results with error coefficients, runs of a backend, comparison.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/hash.h"
#include "ops/delta_rule/bounds.h"
#include "ops/delta_rule/mirror.h"
#include "ops/delta_rule/test_kit.h"

namespace fluvial::ops::delta_rule {
namespace {

using test_kit::HostTensor;
using test_kit::Placed;

// Twice the unit roundoff: the reference's store rounds too.
double StoreUnit(DType t) { return t == DType::kBF16 ? 0x1p-7 : t == DType::kF16 ? 0x1p-10 : 0x1p-23; }
// Half the spacing of denormals, and what a flush to zero may lose.
double StoreFloor(DType t) { return t == DType::kF16 ? 0x1p-24 : 0x1p-126; }

constexpr size_t kWorkspaceGuard = 4096;

std::string Number(double x) {
  char buffer[40];
  std::snprintf(buffer, sizeof(buffer), "%.9g", x);
  return buffer;
}

}  // namespace

Precision PrecisionOf(const DeltaBackend& backend) {
  Precision p;
  const bool tensor_cores = backend.name.starts_with("cuda_chunk");
  // bf16 keeps 8 bits; CUDA's fast exp2 and reciprocal cost another bit or two in gates.
  if (tensor_cores || backend.name.ends_with("_bf16")) p.operand = 0x1p-8;
  if (tensor_cores) p.gate = 0x1p-19;
  return p;
}

Args PreparedCase::Tensors::HostArgs() {
  Args a;
  const auto set = [](HostTensor& from, TensorView* to) {
    if (from.defined()) *to = from.view();
  };
  set(q, &a.q);
  set(k, &a.k);
  set(v, &a.v);
  set(gate, &a.gate);
  set(beta, &a.beta);
  set(a_log, &a.a_log);
  set(dt_bias, &a.dt_bias);
  set(out, &a.out);
  set(state, &a.state);
  set(checkpoints, &a.checkpoints);
  set(token_slots, &a.token_slots);
  return a;
}

namespace {

// dt_bias of GDN is kept as [1, Hv] by the builder; the contract has [Hv]. Rows behind the last token belong to
// the pitch only: the problem knows T rows.
void FitViews(const Problem& p, Args* a) {
  if (!p.kda() && a->dt_bias.defined()) a->dt_bias = TensorView(a->dt_bias.data, DType::kF32, {p.hv});
  for (TensorView* t : {&a->q, &a->k, &a->v, &a->gate, &a->beta, &a->out}) t->dims[0] = p.tokens;
}

}  // namespace

Result<PreparedCase> PreparedCase::Make(const Case& c, ThreadPool& pool) {
  PreparedCase out;
  out.case_ = c;
  out.Build();
  FLUVIAL_RETURN_IF_ERROR(out.Reference(pool));
  return out;
}

Status PreparedCase::Reference(ThreadPool& pool) {
  const Problem& p = case_.line.problem;
  results_ = inputs_;
  Args a = results_.HostArgs();
  FitViews(p, &a);
  const auto stream = MakeCpuStream(1);
  FLUVIAL_ASSIGN_OR_RETURN(const SequencePlan plan, SequencePlan::Make(*stream, spec_));
  a.plan = &plan;
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  std::vector<char> memory(ReferenceWorkspaceBytes(p, pool.threads()));

  const size_t per_row = static_cast<size_t>(p.hv) * p.v;
  out_error_.Resize(static_cast<size_t>(p.tokens) * per_row);
  state_error_.Resize(static_cast<size_t>(inputs_.state.rows()) * per_row);
  if (p.checkpoint_every > 0) checkpoint_error_.Resize(static_cast<size_t>(inputs_.checkpoints.rows()) * per_row);
  const auto put = [&](Coefficients* to, int64_t row, int64_t head, int v, const RowError& e) {
    const size_t i = static_cast<size_t>(row) * per_row + static_cast<size_t>(head) * p.v + v;
    to->operand[i] = static_cast<float>(std::sqrt(e.operand2));
    to->accumulate[i] = static_cast<float>(std::sqrt(e.accumulate2));
    to->gate[i] = static_cast<float>(e.gate);
    to->systematic[i] = static_cast<float>(e.systematic);
  };
  // One tracker per (sequence, head); the observer is called in token order for each.
  std::vector<std::optional<ErrorTracker>> trackers(static_cast<size_t>(p.sequences) * p.hv);
  std::vector<int64_t> first_checkpoint(static_cast<size_t>(p.sequences) + 1, 0);
  for (int32_t n = 0; n < p.sequences && p.checkpoint_every > 0; ++n) {
    first_checkpoint[n + 1] = first_checkpoint[n] + case_.line.lengths[n] / p.checkpoint_every;
  }
  ReferenceOptions options;
  options.observer = [&](const TokenStep& step) {
    if (case_.fill == Fill::kExact || step.sequence == case_.nan) return;
    auto& tracker = trackers[static_cast<size_t>(step.sequence) * p.hv + step.head];
    if (!tracker) tracker.emplace(p);
    tracker->Step(step);
    const int64_t done = step.position + 1;
    const bool last = done == case_.line.lengths[step.sequence];
    for (int v = 0; v < p.v; ++v) {
      put(&out_error_, step.t, step.head, v, tracker->Out(v));
      if (p.checkpoint_every > 0 && done % p.checkpoint_every == 0) {
        put(&checkpoint_error_, first_checkpoint[step.sequence] + done / p.checkpoint_every - 1, step.head, v,
            tracker->row(v));
      }
      int32_t slot = last ? spec_.write_slots[step.sequence] : -1;
      if (p.token_states) slot = inputs_.token_slots.ints()[step.sequence * p.max_length + step.position];
      if (slot >= 0) put(&state_error_, slot, step.head, v, tracker->row(v));
    }
  };
  return RunReference(pool, p, a, {memory.data(), memory.size()}, options);
}

std::vector<int32_t> PreparedCase::WrittenSlots() const {
  const Problem& p = case_.line.problem;
  std::vector<int32_t> slots;
  for (int32_t n = 0; n < p.sequences; ++n) {
    if (n == case_.nan) continue;
    if (!p.token_states) {
      slots.push_back(spec_.write_slots[n]);
      continue;
    }
    HostTensor copy = inputs_.token_slots;
    for (int64_t i = 0; i < case_.line.lengths[n]; ++i) slots.push_back(copy.ints()[n * p.max_length + i]);
  }
  std::erase_if(slots, [](int32_t s) { return s < 0; });
  return slots;
}

Result<Verdict> PreparedCase::Check(Stream& stream, const DeltaBackend& backend, const Precision& precision) const {
  const Problem& p = case_.line.problem;
  Tensors got = inputs_;
  struct Entry {
    HostTensor* host;
    TensorView Args::* view;
    std::optional<Placed> placed;
  };
  std::vector<Entry> entries;
  entries.push_back({&got.q, &Args::q, {}});
  entries.push_back({&got.k, &Args::k, {}});
  entries.push_back({&got.v, &Args::v, {}});
  entries.push_back({&got.gate, &Args::gate, {}});
  entries.push_back({&got.beta, &Args::beta, {}});
  entries.push_back({&got.a_log, &Args::a_log, {}});
  entries.push_back({&got.dt_bias, &Args::dt_bias, {}});
  entries.push_back({&got.out, &Args::out, {}});
  entries.push_back({&got.state, &Args::state, {}});
  entries.push_back({&got.checkpoints, &Args::checkpoints, {}});
  entries.push_back({&got.token_slots, &Args::token_slots, {}});
  Args a;
  for (Entry& e : entries) {
    if (!e.host->defined()) continue;
    FLUVIAL_ASSIGN_OR_RETURN(e.placed, Placed::Make(stream, *e.host));
    a.*e.view = e.placed->view();
  }
  FitViews(p, &a);
  FLUVIAL_ASSIGN_OR_RETURN(SequencePlan plan, SequencePlan::Make(stream, spec_));
  a.plan = &plan;
  FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
  const DeviceInfo& device = stream.device();
  // A backend must not rely on zeros in its workspace, nor write behind the bytes it asked for.
  const size_t workspace_bytes = backend.workspace_bytes(p, device);
  std::vector<unsigned char> poison(workspace_bytes + kWorkspaceGuard, test_kit::kPoison);
  FLUVIAL_ASSIGN_OR_RETURN(const Buffer workspace, Buffer::Allocate(device.kind, poison.size(), device.index));
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, workspace.data(), device.kind, poison.data(), DeviceKind::kCpu, poison.size()));
  if (case_.refill) {
    SequenceSpec reversed = spec_;
    std::reverse(reversed.lengths.begin(), reversed.lengths.end());
    std::reverse(reversed.read_slots.begin(), reversed.read_slots.end());
    std::reverse(reversed.write_slots.begin(), reversed.write_slots.end());
    FLUVIAL_RETURN_IF_ERROR(plan.Refill(stream, reversed));
    FLUVIAL_RETURN_IF_ERROR(backend.run(stream, p, a, {workspace.data(), workspace_bytes}));
    FLUVIAL_RETURN_IF_ERROR(stream.Synchronize());
    got = inputs_;
    for (Entry& e : entries) {
      if (!e.host->defined()) continue;
      FLUVIAL_ASSIGN_OR_RETURN(e.placed, Placed::Make(stream, *e.host));
      a.*e.view = e.placed->view();
    }
    FitViews(p, &a);
    FLUVIAL_RETURN_IF_ERROR(plan.Refill(stream, spec_));
  }
  if (case_.split)
    FLUVIAL_RETURN_IF_ERROR(RunSplit(stream, backend, a));
  else
    FLUVIAL_RETURN_IF_ERROR(backend.run(stream, p, a, {workspace.data(), workspace_bytes}));
  FLUVIAL_RETURN_IF_ERROR(stream.Synchronize());
  FLUVIAL_RETURN_IF_ERROR(Copy(stream, poison.data(), DeviceKind::kCpu,
                               static_cast<const char*>(workspace.data()) + workspace_bytes, device.kind,
                               kWorkspaceGuard));
  FLUVIAL_RETURN_IF_ERROR(stream.Synchronize());
  const bool guard_intact = std::all_of(poison.begin(), poison.begin() + kWorkspaceGuard,
                                        [](unsigned char b) { return b == test_kit::kPoison; });
  for (Entry& e : entries) {
    if (e.placed) FLUVIAL_RETURN_IF_ERROR(e.placed->Fetch(stream, e.host));
  }
  Verdict verdict = Compare(got, precision);
  if (backend.name == "cpu_bf16") CompareWithMirror(got, &verdict);
  if (!guard_intact && verdict.passed) verdict.why = "memory behind the workspace was written";
  verdict.passed = verdict.passed && guard_intact;
  return verdict;
}

void PreparedCase::CompareWithMirror(const Tensors& got, Verdict* verdict) const {
  const Problem& p = case_.line.problem;
  // States in fp32 only: the others are rounded at the store by more than what is looked for. Large values grow without
  // bound, and so do differences; equal keys leave sums of bf16 values, which lie on ties; a split case has other
  // chunks.
  if (!p.prefill() || p.state != DType::kF32 || case_.split || case_.fill == Fill::kExact ||
      case_.fill == Fill::kLarge || case_.fill == Fill::kEqual) {
    return;
  }
  // A sum that falls on the other side of a tie rounds one bf16 operand to its neighbour, and from then on the two
  // states are rounded differently. That is rare per sequence and head while sequences are short; an error in the body
  // meets all of them. So most pairs must be near the mirror, not each.
  constexpr int64_t kLongest = 128;
  Tensors host = inputs_;
  const Args a = host.HostArgs();
  int pairs = 0, far = 0;
  double worst = 0;
  int64_t begin = 0;
  for (int32_t n = 0; n < p.sequences; begin += case_.line.lengths[n], ++n) {
    const int64_t length = case_.line.lengths[n];
    const int32_t read = spec_.read_slots[n], write = spec_.write_slots[n];
    if (length == 0 || length > kLongest || write < 0 || n == case_.nan) continue;
    for (int64_t h = 0; h < p.hv; ++h) {
      const int64_t size = int64_t{p.v} * p.k;
      std::vector<double> state(static_cast<size_t>(size), 0), out;
      for (int64_t i = 0; i < size && read >= 0; ++i) state[i] = inputs_.state.Get(read, h * size + i);
      if (!MirrorBf16(p, a, begin, length, h, &state, &out)) continue;
      double exact2 = 0, mirror2 = 0, size2 = 0;
      for (int64_t i = 0; i < size; ++i) {
        const double value = got.state.Get(write, h * size + i), exact = results_.state.Get(write, h * size + i);
        exact2 += (value - exact) * (value - exact);
        mirror2 += (value - state[i]) * (value - state[i]);
        size2 += exact * exact;
      }
      if (size2 == 0) continue;
      ++pairs;
      // Sums and gates in fp32 are what is left: far below the roundings to bf16, or small in themselves.
      const double bound = std::max(std::sqrt(exact2) / 8, 0x1p-16 * std::sqrt(size2));
      if (std::sqrt(mirror2) <= bound) continue;  // false for NaN
      ++far;
      worst = std::max(worst, std::sqrt(mirror2 / size2));
    }
  }
  if (pairs < 3) return;
  verdict->mirrored = true;
  if (2 * far <= pairs) return;
  if (verdict->passed) {
    verdict->why = "states of " + std::to_string(far) + " of " + std::to_string(pairs) +
                   " sequences and heads are far from the rounding mirror, the worst by " + Number(worst) +
                   " (relative)";
  }
  verdict->passed = false;
}

Status PreparedCase::RunSplit(Stream& stream, const DeltaBackend& backend, const Args& args) const {
  int64_t first = 0;
  for (int32_t n = 0; n < case_.line.problem.sequences; ++n) {
    const int64_t length = case_.line.lengths[n];
    const int32_t write = spec_.write_slots[n];
    // A sequence without a slot to write has nowhere to keep what is between.
    const uint64_t place = Hasher().Add(case_.line.seed).Add(static_cast<uint64_t>(n)).Get();
    const int64_t at = write < 0 ? length : static_cast<int64_t>(place % static_cast<uint64_t>(length + 1));
    for (int part = 0; part < (write < 0 ? 1 : 2); ++part) {
      const int64_t begin = first + (part == 0 ? 0 : at), tokens = part == 0 ? at : length - at;
      Problem p = case_.line.problem;
      SetLengths(p, std::vector<int64_t>{tokens});
      Args a = args;
      for (TensorView* t : {&a.q, &a.k, &a.v, &a.gate, &a.beta, &a.out}) {
        t->data = static_cast<char*>(t->data) + begin * t->stride(0) * static_cast<int64_t>(SizeOf(t->dtype));
        t->dims[0] = tokens;
      }
      FLUVIAL_ASSIGN_OR_RETURN(
          const SequencePlan plan,
          SequencePlan::Make(stream, {{tokens}, {part == 0 ? spec_.read_slots[n] : write}, {write}}));
      a.plan = &plan;
      FLUVIAL_RETURN_IF_ERROR(Validate(p, a));
      const ops::Check check = backend.check(p, stream.device());
      if (!check.ok()) return Status::Refused("a part of the case is refused: " + check.reason());
      const size_t bytes = backend.workspace_bytes(p, stream.device());
      FLUVIAL_ASSIGN_OR_RETURN(const Buffer workspace,
                               Buffer::Allocate(stream.device().kind, bytes, stream.device().index));
      const std::vector<unsigned char> poison(bytes, test_kit::kPoison);
      FLUVIAL_RETURN_IF_ERROR(
          Copy(stream, workspace.data(), stream.device().kind, poison.data(), DeviceKind::kCpu, bytes));
      FLUVIAL_RETURN_IF_ERROR(backend.run(stream, p, a, {workspace.data(), bytes}));
      FLUVIAL_RETURN_IF_ERROR(stream.Synchronize());
    }
    first += length;
  }
  return Status::Ok();
}

Verdict PreparedCase::Compare(const Tensors& got, const Precision& precision) const {
  const Problem& p = case_.line.problem;
  Verdict verdict;
  const auto fail = [&](const std::string& why) {
    if (verdict.passed) verdict.why = why;
    verdict.passed = false;
  };
  // fp32 exponentials may be flushed to zero below 2^-125 (e^-87), which loses that part of a state.
  double magnitude = 1;
  for (const HostTensor* x : {&inputs_.state, &inputs_.v}) {
    for (int64_t r = 0; r < x->rows(); ++r) {
      for (int64_t i = 0; i < x->row_elements(); ++i) magnitude = std::fmax(magnitude, std::abs(x->Get(r, i)));
    }
  }
  const double underflow = 0x1p-125 * magnitude;
  const auto rows_match = [&](const char* name, const HostTensor& x, const HostTensor& want, int64_t row, int64_t width,
                              const Coefficients& error, int64_t per_error) {
    for (int64_t i = 0; i < x.row_elements(); ++i) {
      const double value = x.Get(row, i), expected = want.Get(row, i);
      double bound = 0;
      if (case_.fill != Fill::kExact && !std::isinf(expected)) {
        const size_t at = static_cast<size_t>(row * (x.row_elements() / per_error) + i / per_error);
        const double random =
            std::hypot(precision.operand * error.operand[at], precision.accumulate * error.accumulate[at]);
        bound = kLambda * random + precision.gate * error.gate[at] + precision.accumulate * error.systematic[at] +
                StoreUnit(x.dtype()) * std::abs(expected) + StoreFloor(x.dtype()) + underflow;
      }
      const double difference = value == expected ? 0 : std::abs(value - expected);
      if (bound > 0) verdict.worst_ratio = std::max(verdict.worst_ratio, difference / bound);
      if (difference <= bound) continue;  // false for NaN
      fail(std::string(name) + "[" + std::to_string(row) + "," + std::to_string(i / width) + "," +
           std::to_string(i % width) + "] is " + Number(value) + ", reference " + Number(expected) + ", bound " +
           Number(bound));
      verdict.worst_ratio = std::isnan(difference) ? INFINITY : verdict.worst_ratio;
      return;
    }
  };
  // Written elements.
  int64_t t = 0;
  for (int32_t n = 0; n < p.sequences; ++n) {
    for (int64_t i = 0; i < case_.line.lengths[n]; ++i, ++t) {
      if (n != case_.nan) rows_match("out", got.out, results_.out, t, p.v, out_error_, 1);
    }
  }
  const std::vector<int32_t> written = WrittenSlots();
  const int64_t matrix = int64_t{p.v} * p.k;
  for (const int32_t slot : written) {
    rows_match("state", got.state, results_.state, slot, matrix, state_error_, p.k);
  }
  int64_t row = 0;
  for (int32_t n = 0; n < p.sequences && p.checkpoint_every > 0; ++n) {
    for (int64_t i = 0; i < case_.line.lengths[n] / p.checkpoint_every; ++i, ++row) {
      if (n != case_.nan) {
        rows_match("checkpoints", got.checkpoints, results_.checkpoints, row, matrix, checkpoint_error_, p.k);
      }
    }
  }
  // Everything else must be as it was.
  for (int64_t slot = 0; slot < got.state.rows(); ++slot) {
    const int32_t nan_slot = case_.nan >= 0 ? spec_.write_slots[case_.nan] : -1;
    if (std::find(written.begin(), written.end(), slot) != written.end() || slot == nan_slot) continue;
    if (case_.nan >= 0 && p.token_states) continue;
    const auto x = got.state.RowBytes(slot), y = inputs_.state.RowBytes(slot);
    if (!std::equal(x.begin(), x.end(), y.begin())) {
      fail("state slot " + std::to_string(slot) + " was changed, but no sequence writes it");
    }
  }
  for (int64_t r = p.tokens; r < got.out.rows(); ++r) {
    const auto x = got.out.RowBytes(r), y = inputs_.out.RowBytes(r);
    if (!std::equal(x.begin(), x.end(), y.begin())) {
      fail("out row " + std::to_string(r) + " behind the last token was written");
    }
  }
  const std::pair<const char*, const HostTensor*> gaps[] = {
      {"out", &got.out}, {"state", &got.state}, {"checkpoints", &got.checkpoints}};
  for (const auto& [name, tensor] : gaps) {
    if (tensor->defined() && !tensor->PoisonIntact()) fail(std::string(name) + ": memory between rows was written");
  }
  const auto same = [&](const char* name, const HostTensor& x, const HostTensor& y) {
    if (!std::equal(x.bytes().begin(), x.bytes().end(), y.bytes().begin(), y.bytes().end())) {
      fail(std::string(name) + ", an input, was changed");
    }
  };
  same("q", got.q, inputs_.q);
  same("k", got.k, inputs_.k);
  same("v", got.v, inputs_.v);
  same("gate", got.gate, inputs_.gate);
  same("beta", got.beta, inputs_.beta);
  same("a_log", got.a_log, inputs_.a_log);
  same("dt_bias", got.dt_bias, inputs_.dt_bias);
  same("token_slots", got.token_slots, inputs_.token_slots);
  return verdict;
}

}  // namespace fluvial::ops::delta_rule
