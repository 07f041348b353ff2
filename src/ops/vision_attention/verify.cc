// SPDX-License-Identifier: Apache-2.0
#include "ops/vision_attention/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace fluvial::ops::vision_attention {
namespace {

using test_kit::Random;

template <class T, size_t N>
T Pick(Random& r, const std::array<T, N>& from) {
  return from[static_cast<size_t>(r.Int(0, N - 1))];
}

}  // namespace

Case GenerateCase(uint64_t seed, int64_t index) {
  Random r(Hasher().Add(seed).Add(static_cast<uint64_t>(index)).Get());
  Case c;
  Problem& p = c.line.problem;
  p.heads = static_cast<int32_t>(r.Int(1, 4));
  // The encoders' dimensions in most cases; what only the CPU takes in the rest.
  p.d = static_cast<int32_t>(r.Chance(0.75) ? Pick(r, std::array<int64_t, 4>{64, 72, 80, 128})
                                            : Pick(r, std::array<int64_t, 8>{16, 32, 40, 96, 17, 1, 160, 256}));
  p.io = Pick(r, std::array<DType, 6>{DType::kBF16, DType::kBF16, DType::kBF16, DType::kF16, DType::kF16, DType::kF32});
  p.scale = DefaultScale(p.d) * Pick(r, std::array<float, 4>{1, 1, 3, 0.25f});
  p.lse = r.Chance(0.5);
  static constexpr std::array<int64_t, 20> kEdges = {0,  1,  2,  3,  15, 16,  17,  32,  48,  63,
                                                     64, 64, 64, 65, 96, 127, 128, 129, 192, 200};
  // About 1e7 multiply-adds of the fp64 evaluation.
  auto budget = static_cast<int64_t>(std::sqrt(1e7 / (2.0 * p.heads * p.d)));
  const int64_t kind = r.Int(0, 4);
  if (kind == 0) {
    c.line.lengths.assign(static_cast<size_t>(r.Int(1, 6)), Pick(r, std::array<int64_t, 4>{64, 64, 16, 100}));
  } else {
    for (int64_t n = r.Int(1, 9); n > 0 && budget >= 0; --n) {
      const int64_t length = std::min(budget, r.Chance(0.75) ? Pick(r, kEdges) : r.Int(0, 400));
      c.line.lengths.push_back(length);
      budget -= length;
    }
  }
  SetLengths(p, c.line.lengths);
  c.line.seed = r.Bits() >> 40;
  c.fill = Pick(r, std::array<Fill, 8>{Fill::kRandom, Fill::kRandom, Fill::kRandom, Fill::kRandom, Fill::kLarge,
                                       Fill::kLarge, Fill::kMean, Fill::kPick});
  if (c.fill == Fill::kPick && p.d < 16) c.fill = Fill::kMean;
  c.layout = Pick(r, std::array<Layout, 3>{Layout::kSeparate, Layout::kQkv, Layout::kHeadsFirst});
  const auto size = static_cast<int32_t>(SizeOf(p.io));
  // Rows of 17 or 1 elements inside a fused buffer are aligned to the element only.
  const bool odd = p.d * size % 16 != 0;
  p.alignment = odd ? size : std::max(size, static_cast<int32_t>(Pick(r, std::array<int64_t, 4>{16, 16, 16, 2})));
  if (r.Chance(0.4)) c.pad = static_cast<int32_t>(r.Int(1, 40));
  if (r.Chance(0.25) && p.max_length > 0) {
    p.padded = p.max_length + r.Int(0, 9);
  } else {
    if (r.Chance(0.3)) c.extra = static_cast<int32_t>(r.Int(1, 200));
    c.batch = r.Chance(0.2);
  }
  if (p.sequences > 1 && r.Chance(0.25)) c.nan = static_cast<int32_t>(r.Int(0, p.sequences - 1));
  return c;
}

Result<VerifyReport> Verify(std::span<const std::unique_ptr<Stream>> streams, const VerifyOptions& options) {
  FLUVIAL_CHECK(!streams.empty() && streams[0]->device().kind == DeviceKind::kCpu);
  std::vector<Case> cases;
  if (!options.line.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(Case c, ParseCase(options.line));
    cases.push_back(std::move(c));
  } else {
    for (int64_t i = 0; i < options.cases; ++i) cases.push_back(GenerateCase(options.seed, i));
  }
  std::vector<std::string> targets = {""};
  if (options.cpu_targets) {
    // The best one is what "" runs.
    const auto all = CpuTargets();
    targets.insert(targets.end(), all.begin() + (all.empty() ? 0 : 1), all.end());
  }
  const auto list = options.instead.empty() ? Backends() : options.instead;
  VerifyReport report;
  std::string last_refusal, known;
  bool named = options.backend.empty();
  for (const VisionBackend& b : list) {
    known += (known.empty() ? "" : ", ") + std::string(b.name);
    named = named || b.name == options.backend;
  }
  if (!named) {
    return Status::InvalidArgument("there is no backend '" + options.backend + "'; backends: " + known);
  }
  for (const Case& c : cases) {
    std::optional<PreparedCase> prepared;
    for (const auto& stream : streams) {
      const DeviceInfo& device = stream->device();
      for (const VisionBackend& b : list) {
        if (!options.backend.empty() && b.name != options.backend) continue;
        // The contract is the tensors': rows behind the last sequence count as tokens.
        Problem problem = c.line.problem;
        problem.tokens += c.extra;
        if (const Check check = b.check(problem, device); !check.ok()) {
          ++report.TallyOf(std::string(b.name), device.Arch()).refused;
          last_refusal = check.reason();
          continue;
        }
        if (!prepared) prepared = PreparedCase::Make(c, streams[0]->pool());
        const bool simd = device.kind == DeviceKind::kCpu && b.name == "cpu";
        for (const std::string& target : targets) {
          if (!target.empty() && !simd) continue;
          if (simd) ForceCpuTarget(target);
          const auto verdict = prepared->Check(*stream, b, PrecisionOf(b, problem.io));
          if (simd) ForceCpuTarget("");
          BackendTally& tally =
              report.TallyOf(std::string(b.name) + (target.empty() ? "" : "/" + target), device.Arch());
          ++report.runs;
          const bool passed = verdict.ok() && verdict->passed;
          ++(passed ? tally.passed : tally.failed);
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
    if (options.progress && !options.progress(report.cases, static_cast<int64_t>(cases.size()))) {
      report.stopped = true;
      break;
    }
  }
  if (report.runs == 0 && !options.backend.empty()) {
    return Status::Refused("backend '" + options.backend + "' refused every case here: " + last_refusal);
  }
  return report;
}

}  // namespace fluvial::ops::vision_attention
