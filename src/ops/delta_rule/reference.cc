// SPDX-License-Identifier: Apache-2.0
// Deliberately plain: one loop over tokens per (sequence, head), no chunking, no shared factors, so that it can
// be read next to the formula in delta_rule.h.
#include "ops/delta_rule/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "ops/delta_rule/backends.h"

namespace fluvial::ops::delta_rule {
namespace {

double Sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

double LogDecay(const Problem& p, double x, double a_log, double bias) {
  switch (p.gate) {
    case GateForm::kLog:
      return x;
    case GateForm::kSoftplus: {
      const double y = x + bias;
      return -std::exp(a_log) * (y > 20 ? y : std::log1p(std::exp(y)));
    }
    case GateForm::kBounded:
      return p.lower_bound * Sigmoid((p.has_a_log ? std::exp(a_log) : 1) * (x + bias));
  }
  return 0;
}

void Normalise(const Problem& p, std::vector<double>* x) {
  if (p.norm == NormForm::kNone) return;
  double sum = 0;
  for (const double e : *x) sum += e * e;
  const double eps = p.norm_eps;
  const double factor = 1 / std::sqrt(p.norm == NormForm::kL2Add ? sum + eps : std::max(sum, eps));
  for (double& e : *x) e *= factor;
}

void LoadRow(const TensorView& t, int64_t row, int64_t head, std::vector<double>* out) {
  const int64_t base = row * t.stride(0) + head * t.stride(1);
  for (size_t i = 0; i < out->size(); ++i) (*out)[i] = LoadAsDouble(t.data, t.dtype, base + static_cast<int64_t>(i));
}

double RoundTo(DType dtype, double x) {
  double cell = 0;
  StoreFromDouble(&cell, dtype, 0, x);
  return LoadAsDouble(&cell, dtype, 0);
}

// The state of one (sequence, head): [V, K] in workspace memory.
class Head {
 public:
  Head(const Problem& p, const Args& a, int32_t sequence, int64_t head, double* memory)
      : p_(p), a_(a), n_(sequence), h_(head), state_(memory), delta_(memory + p.v * p.k), out_(delta_ + p.v) {
    token_.q.resize(p.k);
    token_.k.resize(p.k);
    token_.g.resize(p.k);
    token_.v.resize(p.v);
  }

  void Run(const ReferenceOptions& options) {
    const int64_t begin = a_.plan->offsets()[n_], end = a_.plan->offsets()[n_ + 1];
    Read(a_.plan->read_slots()[n_]);
    int64_t checkpoint = 0;
    for (int32_t m = 0; m < n_ && p_.checkpoint_every > 0; ++m) {
      checkpoint += (a_.plan->offsets()[m + 1] - a_.plan->offsets()[m]) / p_.checkpoint_every;
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t done = t - begin + 1;
      Step(t);
      const bool round = options.rounding == Rounding::kPerToken ||
                         (options.rounding == Rounding::kPerChunk && done % options.chunk == 0);
      for (int64_t i = 0; round && i < p_.v * p_.k; ++i) state_[i] = RoundTo(p_.state, state_[i]);
      if (options.observer) {
        options.observer({n_,
                          h_,
                          t,
                          t - begin,
                          token_,
                          {state_, static_cast<size_t>(p_.v * p_.k)},
                          {delta_, static_cast<size_t>(p_.v)},
                          {out_, static_cast<size_t>(p_.v)}});
      }
      if (p_.checkpoint_every > 0 && done % p_.checkpoint_every == 0) Write(a_.checkpoints, checkpoint++);
      if (p_.token_states) {
        const auto* slots = static_cast<const int32_t*>(a_.token_slots.data);
        Write(a_.state, slots[n_ * a_.token_slots.stride(0) + (t - begin)]);
      }
    }
    if (!p_.token_states) Write(a_.state, a_.plan->write_slots()[n_]);
  }

 private:
  void Step(int64_t t) {
    LoadToken(p_, a_, t, h_, &token_);
    for (int64_t v = 0; v < p_.v; ++v) {
      double* row = state_ + v * p_.k;
      double predicted = 0;
      for (int64_t c = 0; c < p_.k; ++c) {
        row[c] *= std::exp(token_.g[c]);
        predicted += row[c] * token_.k[c];
      }
      delta_[v] = token_.beta * (token_.v[v] - predicted);
      double out = 0;
      for (int64_t c = 0; c < p_.k; ++c) {
        row[c] += delta_[v] * token_.k[c];
        out += row[c] * token_.q[c];
      }
      out_[v] = out;
      StoreFromDouble(a_.out.data, p_.io, t * a_.out.stride(0) + h_ * a_.out.stride(1) + v, out);
    }
  }

  void Read(int32_t slot) {
    for (int64_t i = 0; i < p_.v * p_.k; ++i) {
      state_[i] =
          slot < 0 ? 0 : LoadAsDouble(a_.state.data, p_.state, slot * a_.state.stride(0) + h_ * a_.state.stride(1) + i);
    }
  }

  void Write(const TensorView& to, int64_t row) {
    if (row < 0) return;
    for (int64_t i = 0; i < p_.v * p_.k; ++i) {
      StoreFromDouble(to.data, p_.state, row * to.stride(0) + h_ * to.stride(1) + i, state_[i]);
    }
  }

  const Problem& p_;
  const Args& a_;
  int32_t n_;
  int64_t h_;
  double *state_, *delta_, *out_;
  Token token_;
};

int64_t DoublesPerThread(const Problem& p) { return int64_t{p.v} * p.k + 2 * int64_t{p.v}; }

Check CheckReference(const Problem&, const DeviceInfo& device) {
  if (device.kind == DeviceKind::kCpu) return Check::Accept();
  return Check::Refuse("it runs on the CPU, and the device is " + device.Arch());
}

Status Run(Stream& stream, const Problem& problem, const Args& args, Workspace workspace) {
  return RunReference(stream.pool(), problem, args, workspace);
}

}  // namespace

void LoadToken(const Problem& p, const Args& a, int64_t t, int64_t h, Token* token) {
  const int64_t key_head = h / (p.hv / p.hk);
  LoadRow(a.q, t, key_head, &token->q);
  LoadRow(a.k, t, key_head, &token->k);
  LoadRow(a.v, t, h, &token->v);
  Normalise(p, &token->q);
  Normalise(p, &token->k);
  for (double& x : token->q) x *= p.scale;
  const double a_log = p.has_a_log ? static_cast<const float*>(a.a_log.data)[h] : 0;
  const auto* bias = static_cast<const float*>(p.has_dt_bias ? a.dt_bias.data : nullptr);
  if (p.kda()) {
    LoadRow(a.gate, t, h, &token->g);
    for (int64_t c = 0; c < p.k; ++c) {
      token->g[c] = LogDecay(p, token->g[c], a_log, bias != nullptr ? bias[h * p.k + c] : 0);
    }
  } else {
    const double x = LoadAsDouble(a.gate.data, p.gate_dtype, t * a.gate.stride(0) + h);
    std::fill(token->g.begin(), token->g.end(), LogDecay(p, x, a_log, bias != nullptr ? bias[h] : 0));
  }
  const double b = LoadAsDouble(a.beta.data, p.beta_dtype, t * a.beta.stride(0) + h);
  token->beta = p.beta == BetaForm::kProbability ? b : (p.beta == BetaForm::kLogit ? 1 : 2) * Sigmoid(b);
}

size_t ReferenceWorkspaceBytes(const Problem& p, int threads) {
  return static_cast<size_t>(threads) * static_cast<size_t>(DoublesPerThread(p)) * sizeof(double);
}

Status RunReference(ThreadPool& pool, const Problem& p, const Args& a, Workspace workspace,
                    const ReferenceOptions& options) {
  const size_t need = ReferenceWorkspaceBytes(p, pool.threads());
  if (workspace.bytes < need) {
    return Status::Resource("delta rule reference: workspace of " + std::to_string(workspace.bytes) +
                            " bytes, but it needs " + std::to_string(need));
  }
  auto* memory = static_cast<double*>(workspace.data);
  pool.ParallelFor(int64_t{a.plan->sequences()} * p.hv, [&](int64_t task, int worker) {
    Head(p, a, static_cast<int32_t>(task / p.hv), task % p.hv, memory + worker * DoublesPerThread(p)).Run(options);
  });
  return Status::Ok();
}

const DeltaBackend kReference = {
    .name = "reference",
    .description = "fp64 token loop on the CPU: every form, for checking the others",
    .check = CheckReference,
    .workspace_bytes = [](const Problem& p, const DeviceInfo& device) -> size_t {
      return ReferenceWorkspaceBytes(p, std::max(device.multiprocessors, 1));
    },
    // About 1.5 ns per state element and token, plus reading and writing the states.
    .cost_us = [](const Problem& p, const DeviceInfo&) -> double {
      return 1.5e-3 * static_cast<double>((p.tokens + p.sequences) * p.hv) * p.k * p.v;
    },
    .run = Run,
};

}  // namespace fluvial::ops::delta_rule
