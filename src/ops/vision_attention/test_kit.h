// SPDX-License-Identifier: Apache-2.0
// Test bed of vision attention, for gtest, `fluvial verify` and CUDA alike: a case is one line of text; its inputs
// follow from that line alone; a backend's results are compared with an fp64 evaluation and a derived bound.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/common/test_kit.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::ops::vision_attention {

enum class Fill : uint8_t {
  kRandom,  ///< q, k, v standard normal
  kLarge,   ///< q and k times 8: scores of hundreds, most probabilities vanish
  kMean,    ///< q = 0, v whole numbers: every key weighs the same, all sums are exact
  kPick,    ///< keys are +-1 codes of their position, each query a loud copy of one: exactly that key's value (d >= 16)
};

enum class Layout : uint8_t {
  kSeparate,    ///< q, k, v [T, H, D] in memory of their own
  kQkv,         ///< views of one [T, 3, H, D] buffer
  kHeadsFirst,  ///< [H, T, D] in memory
};

struct Case {
  ProblemLine line;
  Fill fill = Fill::kRandom;
  Layout layout = Layout::kSeparate;
  int32_t pad = 0;     ///< extra elements between rows (rounded up to the alignment), NaN
  int32_t extra = 0;   ///< packed: rows behind the last sequence, NaN, that no backend may touch
  int32_t nan = -1;    ///< a sequence whose inputs are NaN; its results do not count, the others' do
  bool batch = false;  ///< packed: tensors with a leading dimension of 1
};

/// The problem line with fill=, layout=, pad=, extra=, nan=, batch= added.
Result<Case> ParseCase(std::string_view line);
std::string FormatCase(const Case& c);

/// Unit roundoffs that a backend promises; what bounds are derived from.
struct Precision {
  double sum = 0x1p-24;          ///< of each addition of scores, sums and outputs
  double exponential = 0x1p-22;  ///< relative error of an exponential
  double probability = 0;        ///< relative rounding of the probabilities that meet the values
  double divide = 0;             ///< beyond correct rounding, of the final division
};

/// By name: 16-bit probabilities for backends that run on bf16 or tensor-core hardware, fp32 otherwise.
Precision PrecisionOf(const VisionBackend& backend, DType io);

struct Verdict {
  bool passed = true;
  std::string why;         ///< empty when passed: the first thing that is wrong, with indexes and values
  double worst_ratio = 0;  ///< largest |difference| / bound; 0 in exact cases
};

/// Inputs of a case and its expected results with error coefficients. Made once, checked against many backends.
class PreparedCase {
 public:
  /// Uses `pool` for the fp64 evaluation.
  static PreparedCase Make(const Case& c, ThreadPool& pool);

  /// Runs the backend (its check must accept) twice on the stream's device: results within the bound, the same bits
  /// both times, nothing else touched, inputs as they were. Verdict, or the run's own error.
  Result<Verdict> Check(Stream& stream, const VisionBackend& backend, const Precision& precision) const;

  const Case& spec() const { return case_; }
  /// The problem with capacity: tokens include `extra` rows.
  const Problem& problem() const { return problem_; }

  /// Host memory of one call. q, k, v share `q` in layout kQkv.
  struct Tensors {
    test_kit::HostTensor q, k, v, out, lse;
  };
  /// Views of these tensors at their copies' addresses (the full views of ViewAt, in the order of Tensors).
  Args Views(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
             const TensorView& lse) const;
  const Tensors& inputs() const { return inputs_; }
  /// Expected values [tokens of all sequences, heads, d] in sequence order.
  const std::vector<double>& expected() const { return out_; }
  /// Row of the out tensor (its first dimension) that holds token `i` of sequence `n`.
  int64_t OutRow(int64_t n, int64_t i) const;

 private:
  void Build();
  void Evaluate(ThreadPool& pool);
  Result<Tensors> RunOnce(Stream& stream, const VisionBackend& backend, bool* guard_intact) const;
  Verdict Compare(const Tensors& got, const Precision& precision) const;

  Case case_;
  Problem problem_;
  std::vector<int64_t> offsets_;
  Tensors inputs_;
  // Per [token, head, d]: result and mean of |v|; per [token, head]: lse, and the coefficients of its score error.
  std::vector<double> out_, mean_, lse_, products_, scores_;
};

}  // namespace fluvial::ops::vision_attention
