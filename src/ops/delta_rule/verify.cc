// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/verify.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fluvial::ops::delta_rule {
namespace {

using test_kit::Random;

template <class T, size_t N>
T Pick(Random& r, const std::array<T, N>& from) {
  return from[static_cast<size_t>(r.Int(0, N - 1))];
}

std::vector<int64_t> Lengths(Random& r, bool prefill, int64_t budget) {
  static constexpr std::array<int64_t, 22> kEdges = {0,  1,  2,  7,  8,  15, 16,  17,  31,  32,  33,
                                                     37, 48, 63, 64, 65, 97, 111, 127, 128, 129, 255};
  std::vector<int64_t> lengths;
  const int64_t n = r.Int(1, prefill ? 5 : 9);
  for (int64_t i = 0; i < n; ++i) {
    int64_t length = 1;
    if (prefill) length = r.Chance(0.7) ? Pick(r, kEdges) : r.Int(0, 300);
    if (!prefill && r.Chance(0.4)) length = r.Int(0, kMaxDecodeTokens);
    lengths.push_back(std::min(length, budget));
    budget -= lengths.back();
  }
  return lengths;
}

struct Target {
  std::string name;  ///< "" on devices other than the CPU
  Stream* stream;
};

}  // namespace

Case GenerateCase(Op op, uint64_t seed, int64_t index) {
  Random r(Hasher().Add(seed).Add(static_cast<uint64_t>(op)).Add(static_cast<uint64_t>(index)).Get());
  Case c;
  Problem& p = c.line.problem;
  p.op = op;
  p.hk = static_cast<int32_t>(r.Int(1, 2));
  p.hv = p.hk * static_cast<int32_t>(Pick(r, std::array<int64_t, 4>{1, 1, 2, 4}));
  // The models' dims in half of the cases.
  if (r.Chance(0.5)) {
    p.k = static_cast<int32_t>(Pick(r, std::array<int64_t, 9>{16, 32, 64, 60, 96, 100, 7, 256, 33}));
    p.v = static_cast<int32_t>(Pick(r, std::array<int64_t, 8>{16, 32, 64, 96, 20, 5, 128, 160}));
  }
  static constexpr std::array<DType, 5> kIo = {DType::kBF16, DType::kBF16, DType::kBF16, DType::kF16, DType::kF32};
  static constexpr std::array<DType, 5> kState = {DType::kF32, DType::kF32, DType::kF32, DType::kBF16, DType::kF16};
  p.io = Pick(r, kIo);
  p.state = Pick(r, kState);
  p.gate_dtype = r.Chance(0.7) ? p.io : DType::kF32;
  p.beta_dtype = r.Chance(0.7) ? p.io : DType::kF32;
  p.gate = Pick(r, std::array<GateForm, 3>{GateForm::kLog, GateForm::kSoftplus, GateForm::kBounded});
  if (p.gate == GateForm::kBounded) p.lower_bound = Pick(r, std::array<float, 3>{-5.0f, -5.0f, -1.0f});
  p.has_a_log = p.gate == GateForm::kSoftplus || (p.gate == GateForm::kBounded && r.Chance(0.8));
  p.has_dt_bias = p.gate != GateForm::kLog && r.Chance(0.8);
  p.beta = Pick(
      r, std::array<BetaForm, 4>{BetaForm::kLogit, BetaForm::kLogit, BetaForm::kProbability, BetaForm::kTwoSigmoid});
  p.norm = Pick(r, std::array<NormForm, 4>{NormForm::kL2Add, NormForm::kL2Add, NormForm::kL2Max, NormForm::kNone});
  p.norm_eps = p.norm == NormForm::kL2Max ? 1e-12f : 1e-6f;
  p.scale = 1.0f / std::sqrt(static_cast<float>(p.k));
  c.fill = r.Chance(0.25) ? Fill::kExact
                          : Pick(r, std::array<Fill, 12>{Fill::kRandom, Fill::kRandom, Fill::kRandom, Fill::kRandom,
                                                         Fill::kEqual, Fill::kCollinear, Fill::kPositive, Fill::kStrong,
                                                         Fill::kMixed, Fill::kNoDecay, Fill::kTiny, Fill::kLarge});
  if (c.fill == Fill::kExact) {
    p.scale = Pick(r, std::array<float, 3>{1.0f, 0.5f, 2.0f});
    if (p.norm == NormForm::kL2Add) p.norm = NormForm::kL2Max;
    p.norm_eps = 1e-12f;
  }
  // About 2e6 state elements times tokens: a few milliseconds of reference time.
  const int64_t budget = std::clamp<int64_t>(4'000'000 / (int64_t{p.hv} * p.k * p.v), 20, 700);
  c.line.lengths = Lengths(r, p.prefill(), budget);
  SetLengths(p, c.line.lengths);
  c.line.seed = r.Bits() >> 40;
  c.slots = Pick(r, std::array<Slots, 7>{Slots::kIdentity, Slots::kShuffled, Slots::kApart, Slots::kFresh,
                                         Slots::kMixed, Slots::kMixed, Slots::kShuffled});
  const int32_t size = static_cast<int32_t>(SizeOf(p.io));
  p.alignment = std::max(size, static_cast<int32_t>(Pick(r, std::array<int64_t, 5>{16, 16, 8, 4, 2})));
  if (r.Chance(0.4)) c.pad = static_cast<int32_t>(r.Int(1, 40));
  if (r.Chance(0.3)) c.extra = static_cast<int32_t>(r.Int(1, 4));
  if (p.prefill() && r.Chance(0.3)) p.checkpoint_every = r.Chance(0.7) ? 64 : 128;
  if (!p.prefill() && r.Chance(0.3)) p.token_states = true;
  if (p.sequences > 1 && r.Chance(0.2)) c.nan = static_cast<int32_t>(r.Int(0, p.sequences - 1));
  c.refill = !p.token_states && r.Chance(0.2);
  c.split = p.prefill() && p.state == DType::kF32 && p.checkpoint_every == 0 && r.Chance(0.3);
  return c;
}

std::vector<std::string> LargeCases(Op op) {
  const std::string name(Name(op)), small = " hk=1 hv=2 k=16 v=16";
  std::vector<std::string> lines;
  if (op == Op::kGdnPrefill || op == Op::kKdaPrefill) {
    for (const std::string fill : {"random", "no_decay", "strong"}) {
      lines.push_back(name + " lens=20000 hk=1 k=64 v=32 fill=" + fill);
    }
    lines.push_back(name + " lens=20000 hk=1 gate=bounded:-5 fill=random");
    lines.push_back(name + " lens=20000 hk=1 k=64 v=32 gate=bounded:-5 fill=strong split=1");
    lines.push_back(name + " lens=1,20000,1 hk=1 k=64 v=32 fill=collinear checkpoint_every=4096");
    lines.push_back(name + " lens=3000x1" + small + " slots=shuffled fill=random refill=1");
    lines.push_back(name + " lens=3000x1" + small + " slots=mixed fill=exact norm=none scale=1");
  } else {
    lines.push_back(name + " lens=3000x1" + small + " slots=shuffled fill=random refill=1");
    lines.push_back(name + " lens=3000x1" + small + " state=bf16 slots=mixed fill=random");
    lines.push_back(name + " lens=3000x1" + small + " slots=apart fill=exact norm=none scale=1");
  }
  return lines;
}

Result<VerifyReport> Verify(std::span<const std::unique_ptr<Stream>> streams, const VerifyOptions& options) {
  FLUVIAL_CHECK(!streams.empty() && streams[0]->device().kind == DeviceKind::kCpu);
  std::vector<Case> cases;
  if (!options.line.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(Case c, ParseCase(options.line));
    cases.push_back(std::move(c));
  } else {
    std::vector<Op> ops = options.ops;
    if (ops.empty()) ops = {Op::kGdnPrefill, Op::kGdnDecode, Op::kKdaPrefill, Op::kKdaDecode};
    for (int64_t i = 0; i < options.cases; ++i) {
      for (const Op op : ops) cases.push_back(GenerateCase(op, options.seed, i));
    }
    for (const Op op : ops) {
      if (options.cases < kFullCases) continue;
      for (const std::string& line : LargeCases(op)) {
        FLUVIAL_ASSIGN_OR_RETURN(Case c, ParseCase(line));
        cases.push_back(std::move(c));
      }
    }
  }
  std::vector<std::string> targets = {""};
  if (options.cpu_targets) {
    // The best one is what "" runs.
    const auto all = CpuTargets();
    targets.insert(targets.end(), all.begin() + (all.empty() ? 0 : 1), all.end());
  }
  VerifyReport report;
  std::string last_refusal, known;
  bool named = options.backend.empty();
  int64_t done = 0;
  for (const Case& c : cases) {
    const Op op = c.line.problem.op;
    const auto list = options.instead.empty() ? Backends(op) : options.instead;
    Result<PreparedCase> prepared = Status::Ok();
    for (const auto& stream : streams) {
      const DeviceInfo& device = stream->device();
      for (const DeltaBackend& b : list) {
        if (known.find(b.name) == std::string::npos) known += (known.empty() ? "" : ", ") + std::string(b.name);
        if (!options.backend.empty() && b.name != options.backend) continue;
        named = true;
        const Check check = b.check(c.line.problem, device);
        if (!check.ok()) {
          ++report.TallyOf(std::string(b.name), device.Arch()).refused;
          last_refusal = check.reason();
          continue;
        }
        const bool simd = device.kind == DeviceKind::kCpu && b.name == "cpu";
        for (const std::string& target : targets) {
          if (!target.empty() && !simd) continue;
          if (!prepared.ok() || report.runs == 0 || prepared->spec().line.seed != c.line.seed ||
              FormatCase(prepared->spec()) != FormatCase(c)) {
            prepared = PreparedCase::Make(c, streams[0]->pool());
            if (!prepared.ok()) return prepared.status();
          }
          if (simd) ForceCpuTarget(target);
          const auto verdict = prepared->Check(*stream, b, PrecisionOf(b));
          if (simd) ForceCpuTarget("");
          BackendTally& tally =
              report.TallyOf(std::string(b.name) + (target.empty() ? "" : "/" + target), device.Arch());
          ++report.runs;
          const bool passed = verdict.ok() && verdict->passed;
          ++(passed ? tally.passed : tally.failed);
          if (passed && verdict->mirrored) ++tally.mirrored;
          if (passed && verdict->worst_ratio > tally.worst_ratio) {
            tally.worst_ratio = verdict->worst_ratio;
            tally.worst_line = FormatCase(c);
          }
          if (passed) continue;
          ++report.failed;
          if (report.failures.size() < 100) {
            report.failures.push_back(tally.backend + " on " + tally.device + ": " + FormatCase(c) + ": " +
                                      (verdict.ok() ? verdict->why : verdict.status().message()));
          }
        }
      }
    }
    ++report.cases;
    ++done;
    if ((options.stop_at_first_failure && report.failed > 0) ||
        (options.progress && !options.progress(done, static_cast<int64_t>(cases.size())))) {
      report.stopped = true;
      break;
    }
  }
  if (!named) {
    return Status::InvalidArgument("there is no backend '" + options.backend + "'; backends: " + known);
  }
  if (report.runs == 0 && !options.backend.empty()) {
    return Status::Refused("backend '" + options.backend + "' refused every case here: " + last_refusal);
  }
  return report;
}

}  // namespace fluvial::ops::delta_rule
