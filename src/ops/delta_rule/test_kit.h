// SPDX-License-Identifier: Apache-2.0
// Test bed of the delta rule, for gtest, `fluvial verify` and CUDA alike: a case is one line of text; its inputs
// follow from that line alone; a backend's results are compared with the fp64 reference.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/test_kit.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

enum class Fill : uint8_t {
  kExact,      ///< small integers, unit keys, decay 1 or 0: every sum is exact, compared with ==
  kRandom,     ///< the distributions of freshly initialised models
  kEqual,      ///< all keys of a sequence equal, beta 1, no decay: only the newest value survives
  kCollinear,  ///< keys that differ by 1e-3, beta near 1, slow decay
  kPositive,   ///< q and k uniform in (0, 1): keys far from orthogonal
  kStrong,     ///< gates at their strongest: the lower bound, or -80 per token where there is none
  kMixed,      ///< strong and absent decay alternating at random
  kNoDecay,    ///< gates at 0
  kTiny,       ///< every fourth q and k row zero, the next scaled by 1e-5
  kLarge,      ///< values up to 1e4 and gate inputs up to +-1e4: finite in, finite out
};

enum class Slots : uint8_t {
  kIdentity,  ///< sequence i reads and writes slot i
  kShuffled,  ///< reads and writes the same slot, permuted, with holes
  kApart,     ///< reads one slot, writes another
  kFresh,     ///< reads nothing (zeros)
  kMixed,     ///< all of these, and some that write nothing
};

struct Case {
  ProblemLine line;
  Fill fill = Fill::kRandom;
  Slots slots = Slots::kIdentity;
  int32_t pad = 0;    ///< extra elements between rows and slots (rounded up to the alignment)
  int32_t extra = 0;  ///< rows (tokens) behind the last sequence that no backend may touch
  int32_t nan = -1;   ///< a sequence whose inputs are NaN; its results do not count, the others' do
  /// The plan first holds the sequences in reverse order, is run, and is then refilled in place: nothing of the first
  /// contents may be seen again.
  bool refill = false;
  /// Prefill, fp32 states: every sequence that is written alone and in two calls, cut at a place that follows from the
  /// seed.
  bool split = false;
};

/// The problem line with fill=, slots=, pad=, extra=, nan=, refill=, split= added.
Result<Case> ParseCase(std::string_view line);
std::string FormatCase(const Case& c);

/// Unit roundoffs that a backend promises; what bounds are derived from (see bounds.h).
struct Precision {
  double operand = 0x1p-24;     ///< matrix operands (S, decayed q and k, corrected values)
  double accumulate = 0x1p-24;  ///< sums and element-wise arithmetic
  double gate = 0x1p-21;        ///< relative error of a log decay
};

/// By name: bf16 operands for backends whose name says so ("cuda_chunk...", "..._bf16"), fp32 otherwise.
Precision PrecisionOf(const DeltaBackend& backend);

struct Verdict {
  bool passed = true;
  std::string why;         ///< empty when passed: the first thing that is wrong, with indexes and values
  double worst_ratio = 0;  ///< largest |difference| / bound over outputs and states; 0 in exact cases
  bool mirrored = false;   ///< also compared with the rounding mirror (mirror.h)
};

/// Inputs of a case, its reference results and error coefficients. Made once, checked against many backends.
class PreparedCase {
 public:
  /// Uses `pool` for the reference.
  static Result<PreparedCase> Make(const Case& c, ThreadPool& pool);

  /// Runs the backend (its check must accept) on the stream's device; verdict or the run's own error.
  Result<Verdict> Check(Stream& stream, const DeltaBackend& backend, const Precision& precision) const;

  const Case& spec() const { return case_; }

 private:
  struct Tensors {
    test_kit::HostTensor q, k, v, gate, beta, a_log, dt_bias, out, state, checkpoints, token_slots;
    Args HostArgs();
  };
  void Build();
  double GateInput(test_kit::Random& random, int64_t head, bool strong) const;
  double BetaInput(test_kit::Random& random) const;
  void BuildKeys(test_kit::Random& random);
  void BuildSlots(test_kit::Random& random);
  Status Reference(ThreadPool& pool);
  void CompareWithMirror(const Tensors& got, Verdict* verdict) const;
  Status RunSplit(Stream& stream, const DeltaBackend& backend, const Args& args) const;
  Verdict Compare(const Tensors& got, const Precision& precision) const;
  std::vector<int32_t> WrittenSlots() const;

  Case case_;
  SequenceSpec spec_;
  Tensors inputs_;   ///< outputs poisoned, unused slots poisoned
  Tensors results_;  ///< after the reference
  // Error coefficients per [T, Hv, V] of out, and per [row, Hv, V] of state and checkpoints (bounds.h).
  struct Coefficients {
    std::vector<float> operand, accumulate, gate, systematic;
    void Resize(size_t n) {
      for (auto* x : {&operand, &accumulate, &gate, &systematic}) x->assign(n, 0);
    }
  };
  Coefficients out_error_, state_error_, checkpoint_error_;
};

}  // namespace fluvial::ops::delta_rule
