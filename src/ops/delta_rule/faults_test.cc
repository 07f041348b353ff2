// SPDX-License-Identifier: Apache-2.0
// Does the checker see? A small fp32 token loop is right as it stands, and each of the faults below - mistakes that
// real kernels have made - must be caught by the quick cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/delta_rule/reference.h"
#include "ops/delta_rule/verify.h"

namespace fluvial::ops::delta_rule {
namespace {

enum Fault {
  kNone,
  kDecayAfterWrite,       // predicts with the state before the decay
  kOutputBeforeWrite,     // o from the state before the write
  kHeadTile,              // value head h reads key head h % hk
  kStateTransposed,       // [K, V] instead of [V, K] (64 of the bug list)
  kNegativeSlotIsZero,    // slot -1 clamped to slot 0
  kEmptyUntouched,        // an empty sequence's state is not handed on
  kMaskByMultiply,        // tail of a 16-token tile: the next sequence's rows times zero
  kCheckpointBefore,      // snapshot before the token instead of after
  kNormEpsConvention,     // max(sum, eps) and sum + eps swapped
  kBoundedALogOutside,    // A_log outside the sigmoid
  kScaleOnKeys,           // scale multiplies k as well
  kTailDecay,             // the last token of a 16-token tile takes its neighbour's decay
  kWritesPadding,         // whole 16-row tiles of out are stored
  kStateRoundedPerToken,  // fp32 state carried in bf16
};

template <Fault kFault>
class Loop {
 public:
  static Status Run(Stream&, const Problem& problem, const Args& a, Workspace) {
    Problem p = problem;
    if (kFault == kNormEpsConvention && p.norm != NormForm::kNone) {
      p.norm = p.norm == NormForm::kL2Add ? NormForm::kL2Max : NormForm::kL2Add;
    }
    for (int32_t n = 0; n < a.plan->sequences(); ++n) {
      for (int64_t h = 0; h < p.hv; ++h) Head(p, a, n, h);
    }
    return Status::Ok();
  }

 private:
  static void Head(const Problem& p, const Args& a, int32_t n, int64_t h) {
    const int64_t begin = a.plan->offsets()[n], end = a.plan->offsets()[n + 1], matrix = int64_t{p.v} * p.k;
    std::vector<float> s(matrix, 0.0f);
    int32_t read = a.plan->read_slots()[n], write = a.plan->write_slots()[n];
    if (kFault == kNegativeSlotIsZero) read = std::max(read, 0), write = std::max(write, 0);
    for (int64_t i = 0; i < matrix && read >= 0; ++i) {
      s[Index(p, i)] = static_cast<float>(LoadAsDouble(a.state.data, p.state, At(a.state, p, read, h) + i));
    }
    int64_t row = 0;
    for (int32_t m = 0; m < n && p.checkpoint_every > 0; ++m) {
      row += (a.plan->offsets()[m + 1] - a.plan->offsets()[m]) / p.checkpoint_every;
    }
    for (int64_t t = begin; t < end; ++t) {
      const bool snapshot = p.checkpoint_every > 0 && (t + 1 - begin) % p.checkpoint_every == 0;
      if (snapshot && kFault == kCheckpointBefore) Store(p, a.checkpoints, row, h, s);
      Step(p, a, n, t, h, &s);
      if (snapshot && kFault != kCheckpointBefore) Store(p, a.checkpoints, row, h, s);
      row += snapshot ? 1 : 0;
      if (p.token_states) {
        const auto* slots = static_cast<const int32_t*>(a.token_slots.data);
        Store(p, a.state, slots[n * a.token_slots.stride(0) + t - begin], h, s);
      }
    }
    if (kFault == kWritesPadding && (end - begin) % 16 != 0 && n + 1 == a.plan->sequences() && h == 0) {
      // The start of one row more: it lies in the guard when no spare rows follow.
      for (int64_t v = 0; v < std::min<int64_t>(p.v, 32); ++v) {
        StoreFromDouble(a.out.data, p.io, end * a.out.stride(0) + v, 0);
      }
    }
    if (kFault == kEmptyUntouched && begin == end) return;
    if (!p.token_states) Store(p, a.state, write, h, s);
  }

  static void Step(const Problem& p, const Args& a, int32_t n, int64_t t, int64_t h, std::vector<float>* s) {
    Token x;
    x.q.resize(p.k), x.k.resize(p.k), x.g.resize(p.k), x.v.resize(p.v);
    Problem asked = p;
    if (kFault == kHeadTile) {
      LoadToken(p, a, t, h, &x);
      // Head h % hk: the one that LoadToken gives to value head (h % hk) * (hv / hk).
      Token other = x;
      LoadToken(p, a, t, h % p.hk * (p.hv / p.hk), &other);
      x.q = other.q, x.k = other.k;
    } else {
      LoadToken(asked, a, t, h, &x);
    }
    const int64_t position = t - a.plan->offsets()[n], length = a.plan->offsets()[n + 1] - a.plan->offsets()[n];
    if (kFault == kTailDecay && position % 16 == 15 && position > 0) {
      Token neighbour = x;
      LoadToken(p, a, t - 1, h, &neighbour);
      x.g = neighbour.g;
    }
    if (kFault == kBoundedALogOutside && p.gate == GateForm::kBounded && p.has_a_log) {
      const double factor = std::exp(static_cast<const float*>(a.a_log.data)[h]);
      for (double& g : x.g) {
        const double y = std::log(g / p.lower_bound / (1 - g / p.lower_bound)) / factor;
        g = p.lower_bound * factor / (1 + std::exp(-y));
      }
    }
    if (kFault == kScaleOnKeys) {
      for (double& k : x.k) k *= p.scale;
    }
    for (int64_t v = 0; v < p.v; ++v) {
      float* row = s->data() + v * p.k;
      double predicted = 0, out = 0;
      for (int64_t c = 0; c < p.k; ++c) {
        if (kFault == kDecayAfterWrite) predicted += row[c] * x.k[c];
        row[c] = static_cast<float>(row[c] * std::exp(x.g[c]));
        if (kFault != kDecayAfterWrite) predicted += row[c] * x.k[c];
      }
      double v_in = x.v[v];
      if (kFault == kMaskByMultiply && position + 1 == length && length % 16 != 0 && t + 1 < p.tokens) {
        v_in += 0 * LoadAsDouble(a.v.data, p.io, (t + 1) * a.v.stride(0) + h * p.v + v);
      }
      const double d = x.beta * (v_in - predicted);
      for (int64_t c = 0; c < p.k; ++c) {
        if (kFault == kOutputBeforeWrite) out += row[c] * x.q[c];
        row[c] = static_cast<float>(row[c] + d * x.k[c]);
        if (kFault != kOutputBeforeWrite) out += row[c] * x.q[c];
        if (kFault == kStateRoundedPerToken) row[c] = ToFloat(ToBFloat16(row[c]));
      }
      StoreFromDouble(a.out.data, p.io, t * a.out.stride(0) + h * p.v + v, out);
    }
  }

  // Where element i of a stored state goes in the loop's [V, K].
  static int64_t Index(const Problem& p, int64_t i) { return kFault == kStateTransposed ? i % p.v * p.k + i / p.v : i; }
  static int64_t At(const TensorView& t, const Problem& p, int64_t slot, int64_t h) {
    return slot * t.stride(0) + h * p.v * p.k;
  }
  static void Store(const Problem& p, const TensorView& t, int64_t slot, int64_t h, const std::vector<float>& s) {
    for (int64_t i = 0; i < int64_t{p.v} * p.k && slot >= 0; ++i) {
      StoreFromDouble(t.data, p.state, At(t, p, slot, h) + i, s[Index(p, i)]);
    }
  }
};

template <Fault kFault>
DeltaBackend Make() {
  return {.name = "loop",
          .description = "",
          .check = [](const Problem&, const DeviceInfo&) { return Check::Accept(); },
          .workspace_bytes = [](const Problem&, const DeviceInfo&) -> size_t { return 0; },
          .cost_us = [](const Problem&, const DeviceInfo&) { return 0.0; },
          .run = Loop<kFault>::Run};
}

template <Fault kFault>
VerifyReport CheckLoop(std::vector<Op> ops) {
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(MakeCpuStream(1));
  const DeltaBackend backend = Make<kFault>();
  VerifyOptions options;
  options.ops = std::move(ops);
  options.instead = {&backend, 1};
  options.cpu_targets = false;
  options.stop_at_first_failure = kFault != kNone;
  auto report = Verify(streams, options);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? *report : VerifyReport{};
}

TEST(DeltaRuleFaults, TheLoopWithoutFaultPasses) {
  const VerifyReport report = CheckLoop<kNone>({});
  for (const std::string& f : report.failures) ADD_FAILURE() << f;
  EXPECT_EQ(report.runs, 4 * kQuickCases);
}

template <Fault kFault>
void ExpectCaught(const char* name, std::vector<Op> ops) {
  const VerifyReport report = CheckLoop<kFault>(std::move(ops));
  EXPECT_GT(report.failed, 0) << name << " was not noticed in " << report.runs << " runs";
  std::printf("%-22s caught in run %3ld\n", name, report.runs);
}

const std::vector<Op> kPrefill = {Op::kGdnPrefill, Op::kKdaPrefill};

TEST(DeltaRuleFaults, DecayAfterWrite) { ExpectCaught<kDecayAfterWrite>("decay after write", kPrefill); }
TEST(DeltaRuleFaults, OutputBeforeWrite) { ExpectCaught<kOutputBeforeWrite>("output before write", kPrefill); }
TEST(DeltaRuleFaults, HeadTile) { ExpectCaught<kHeadTile>("heads tiled", kPrefill); }
TEST(DeltaRuleFaults, StateTransposed) { ExpectCaught<kStateTransposed>("state transposed", kPrefill); }
TEST(DeltaRuleFaults, NegativeSlotIsZero) { ExpectCaught<kNegativeSlotIsZero>("slot -1 is slot 0", {Op::kGdnDecode}); }
TEST(DeltaRuleFaults, EmptyUntouched) { ExpectCaught<kEmptyUntouched>("empty untouched", kPrefill); }
TEST(DeltaRuleFaults, MaskByMultiply) { ExpectCaught<kMaskByMultiply>("mask by multiply", kPrefill); }
TEST(DeltaRuleFaults, CheckpointBefore) { ExpectCaught<kCheckpointBefore>("checkpoint before", kPrefill); }
TEST(DeltaRuleFaults, NormEpsConvention) { ExpectCaught<kNormEpsConvention>("eps convention", kPrefill); }
TEST(DeltaRuleFaults, BoundedALogOutside) { ExpectCaught<kBoundedALogOutside>("A_log outside", kPrefill); }
TEST(DeltaRuleFaults, ScaleOnKeys) { ExpectCaught<kScaleOnKeys>("scale on keys", kPrefill); }
TEST(DeltaRuleFaults, TailDecay) { ExpectCaught<kTailDecay>("neighbour's decay", kPrefill); }
TEST(DeltaRuleFaults, WritesPadding) { ExpectCaught<kWritesPadding>("writes padding", kPrefill); }
TEST(DeltaRuleFaults, StateRoundedPerToken) { ExpectCaught<kStateRoundedPerToken>("bf16 carrier", kPrefill); }

}  // namespace
}  // namespace fluvial::ops::delta_rule
