// SPDX-License-Identifier: Apache-2.0
// Two ways to the same answer: split or whole, batched or alone, any order, any number of threads, any pitch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ops/common/test_kit.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {
namespace {

using test_kit::HostTensor;
using test_kit::Random;

// Inputs of one sequence, fp32: row t of everything follows from (seed, t).
struct Sequence {
  uint64_t seed = 1;
  int64_t begin = 0, length = 0;
};

struct Outcome {
  std::vector<float> out;                 // [T, Hv, V]
  std::vector<std::vector<float>> state;  // per sequence [Hv, V, K]
};

constexpr int32_t kHk = 1, kHv = 2, kK = 32, kV = 64;

// K != V, so that a transposed state cannot pass.
Problem MakeProblem(Op op) {
  Problem p;
  p.op = op;
  p.hk = kHk, p.hv = kHv, p.k = kK, p.v = kV;
  p.io = p.gate_dtype = p.beta_dtype = DType::kF32;
  p.alignment = 2;
  p.gate = GateForm::kBounded;
  p.lower_bound = -1;
  p.scale = 0.17f;
  return p;
}

Outcome RunOp(Op op, const std::string& backend, const std::vector<Sequence>& sequences,
              const std::vector<std::vector<float>>& initial, int threads, int64_t pad = 0) {
  Problem p = MakeProblem(op);
  p.io = backend == "cpu_bf16" ? DType::kBF16 : DType::kF32;
  SequenceSpec spec;
  for (const Sequence& s : sequences) spec.lengths.push_back(s.length);
  SetLengths(p, spec.lengths);
  const int64_t t = p.tokens, n = p.sequences, width = p.kda() ? kK : 1;
  const auto pitched = [&](std::vector<int64_t> dims, DType dtype = DType::kF32) {
    int64_t row = 1;
    for (size_t i = 1; i < dims.size(); ++i) row *= dims[i];
    return HostTensor(dtype, dims, row + pad);
  };
  HostTensor q = pitched({t, kHk, kK}, p.io), k = pitched({t, kHk, kK}, p.io), v = pitched({t, kHv, kV}, p.io),
             out = pitched({t, kHv, kV}, p.io);
  HostTensor gate = p.kda() ? pitched({t, kHv, kK}) : pitched({t, kHv}), beta = pitched({t, kHv});
  HostTensor a_log(DType::kF32, {kHv}), state(DType::kF32, {n, kHv, kV, kK});
  HostTensor bias = p.kda() ? HostTensor(DType::kF32, {kHv, kK}) : HostTensor(DType::kF32, {kHv});
  for (int h = 0; h < kHv; ++h) a_log.Set(h, 0, 0.3 * h);
  for (int64_t i = 0; i < kHv * width; ++i)
    bias.Set(p.kda() ? i / kK : i, p.kda() ? i % kK : 0, 0.01 * static_cast<double>(i));
  int64_t row = 0;
  for (int64_t s = 0; s < n; ++s) {
    for (int64_t i = 0; i < sequences[s].length; ++i, ++row) {
      Random r(sequences[s].seed * 100'003 + static_cast<uint64_t>(sequences[s].begin + i));
      const auto fill = [&](HostTensor& x) {
        for (int64_t j = 0; j < x.row_elements(); ++j) x.Set(row, j, r.Normal());
      };
      fill(q), fill(k), fill(v), fill(gate), fill(beta);
    }
    for (int64_t j = 0; j < state.row_elements(); ++j) state.Set(s, j, initial.empty() ? 0.1 : initial[s][j]);
  }
  const auto stream = MakeCpuStream(threads);
  const SequencePlan plan = SequencePlan::Make(*stream, spec).value();
  Args a;
  a.q = q.view(), a.k = k.view(), a.v = v.view(), a.gate = gate.view(), a.beta = beta.view(), a.out = out.view();
  a.a_log = a_log.view(), a.dt_bias = bias.view(), a.state = state.view(), a.plan = &plan;
  p.alignment = p.io == DType::kBF16 ? 2 : 4;
  const Status valid = Validate(p, a);
  EXPECT_TRUE(valid.ok()) << valid.message();
  const auto chosen = Choose(p, stream->device(), backend);
  EXPECT_TRUE(chosen.ok()) << chosen.status().message();
  std::vector<char> memory(chosen->backend->workspace_bytes(p, stream->device()));
  const Status run = chosen->backend->run(*stream, p, a, {memory.data(), memory.size()});
  EXPECT_TRUE(run.ok()) << run.message();
  Outcome o;
  for (int64_t i = 0; i < t; ++i) {
    for (int64_t j = 0; j < out.row_elements(); ++j) o.out.push_back(static_cast<float>(out.Get(i, j)));
  }
  for (int64_t s = 0; s < n; ++s) {
    o.state.emplace_back();
    for (int64_t j = 0; j < state.row_elements(); ++j) o.state.back().push_back(static_cast<float>(state.Get(s, j)));
  }
  return o;
}

// Different chunk boundaries round differently: fp32 sums of some hundred terms of size one, 2^-24 each.
void ExpectClose(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(std::isfinite(a[i])) << what;
    worst = std::max(worst, static_cast<double>(std::abs(a[i] - b[i])));
  }
  EXPECT_LT(worst, 512 * 0x1p-24) << what;
}

const Op kPrefills[] = {Op::kGdnPrefill, Op::kKdaPrefill};

TEST(DeltaRuleEquivalence, SplitAnywhereIsOneShot) {
  for (const Op op : kPrefills) {
    constexpr int64_t kLength = 150;
    const Outcome whole = RunOp(op, "cpu", {{7, 0, kLength}}, {}, 1);
    for (int64_t at = 0; at <= kLength; ++at) {
      const Outcome first = RunOp(op, "cpu", {{7, 0, at}}, {}, 1);
      const Outcome second = RunOp(op, "cpu", {{7, at, kLength - at}}, first.state, 1);
      std::vector<float> joined = first.out;
      joined.insert(joined.end(), second.out.begin(), second.out.end());
      const std::string what = std::string(Name(op)) + " split at " + std::to_string(at);
      ExpectClose(joined, whole.out, what);
      ExpectClose(second.state[0], whole.state[0], what + ", state");
    }
  }
}

// What prefix caching and chunked prefill rest on: whatever is left after the grid, even one token.
TEST(DeltaRuleEquivalence, SplitAtMultiplesOf64IsBitEqual) {
  for (const Op op : kPrefills) {
    for (const int64_t length : {65, 66, 71, 72, 128, 129, 150}) {
      const Outcome whole = RunOp(op, "cpu", {{7, 0, length}}, {}, 1);
      for (int64_t at = 64; at < length; at += 64) {
        const Outcome first = RunOp(op, "cpu", {{7, 0, at}}, {}, 1);
        const Outcome second = RunOp(op, "cpu", {{7, at, length - at}}, first.state, 1);
        std::vector<float> joined = first.out;
        joined.insert(joined.end(), second.out.begin(), second.out.end());
        EXPECT_EQ(joined, whole.out) << Name(op) << " " << length << " split at " << at;
        EXPECT_EQ(second.state[0], whole.state[0]) << Name(op) << " " << length << " split at " << at;
      }
    }
  }
}

TEST(DeltaRuleEquivalence, PrefillIsDecodeAfterDecode) {
  for (const Op op : kPrefills) {
    const Op decode = op == Op::kGdnPrefill ? Op::kGdnDecode : Op::kKdaDecode;
    constexpr int64_t kLength = 70;
    const Outcome whole = RunOp(op, "cpu", {{3, 0, kLength}}, {}, 1);
    Outcome step;
    std::vector<float> out;
    for (int64_t t = 0; t < kLength; ++t) {
      step = RunOp(decode, "cpu", {{3, t, 1}}, step.state, 1);
      out.insert(out.end(), step.out.begin(), step.out.end());
    }
    ExpectClose(out, whole.out, std::string(Name(decode)));
    ExpectClose(step.state[0], whole.state[0], std::string(Name(decode)) + ", state");
  }
}

// Any length, tails included: T tokens at once are T - 1 and a decode step.
TEST(DeltaRuleEquivalence, OneTokenMoreIsOneDecodeStepMore) {
  for (const Op op : kPrefills) {
    const Op decode = op == Op::kGdnPrefill ? Op::kGdnDecode : Op::kKdaDecode;
    Outcome shorter = RunOp(op, "cpu", {{11, 0, 0}}, {}, 1);
    for (int64_t length = 1; length <= 130; ++length) {
      const Outcome whole = RunOp(op, "cpu", {{11, 0, length}}, {}, 1);
      const Outcome step = RunOp(decode, "cpu", {{11, length - 1, 1}}, shorter.state, 1);
      std::vector<float> joined = shorter.out;
      joined.insert(joined.end(), step.out.begin(), step.out.end());
      const std::string what = std::string(Name(op)) + " of " + std::to_string(length);
      ExpectClose(joined, whole.out, what);
      ExpectClose(step.state[0], whole.state[0], what + ", state");
      shorter = whole;
    }
  }
}

void ExpectBatchedPermutedAndThreadedAreBitEqual(const std::string& backend) {
  const std::vector<Sequence> batch = {{1, 0, 33}, {2, 0, 0}, {3, 0, 130}, {4, 0, 1}, {5, 0, 64}};
  for (const Op op : kPrefills) {
    const Outcome together = RunOp(op, backend, batch, {}, 1);
    size_t at = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      const Outcome alone = RunOp(op, backend, {batch[i]}, {}, 1);
      EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + at)) << i;
      EXPECT_EQ(alone.state[0], together.state[i]) << i;
      at += alone.out.size();
    }
    std::vector<Sequence> reversed(batch.rbegin(), batch.rend());
    const Outcome backwards = RunOp(op, backend, reversed, {}, 1);
    for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(backwards.state[batch.size() - 1 - i], together.state[i]);
    // More threads than heads: ranges of V.
    const Outcome threads = RunOp(op, backend, {batch[2]}, {}, 7);
    EXPECT_EQ(threads.state[0], together.state[2]);
  }
}

TEST(DeltaRuleEquivalence, BatchedPermutedAndThreadedAreBitEqual) {
  ExpectBatchedPermutedAndThreadedAreBitEqual("cpu");
}

// Heads that are one task in a batch, and tasks of their own alone.
TEST(DeltaRuleEquivalence, BatchedPermutedAndThreadedAreBitEqualInBf16) {
  Problem p = MakeProblem(Op::kGdnPrefill);
  p.io = DType::kBF16;
  const auto chosen = Choose(p, CpuDeviceInfo(1), "cpu_bf16");
  if (!chosen.ok()) GTEST_SKIP() << "needs AVX-512 BF16: " << chosen.status().message();
  ExpectBatchedPermutedAndThreadedAreBitEqual("cpu_bf16");
}

TEST(DeltaRuleEquivalence, PitchesDoNotChangeABit) {
  for (const Op op : {Op::kGdnPrefill, Op::kKdaPrefill, Op::kGdnDecode, Op::kKdaDecode}) {
    const int64_t length = op == Op::kGdnDecode || op == Op::kKdaDecode ? 4 : 90;
    const Outcome packed = RunOp(op, "cpu", {{9, 0, length}, {8, 0, 3}}, {}, 2);
    const Outcome sliced = RunOp(op, "cpu", {{9, 0, length}, {8, 0, 3}}, {}, 2, 29);
    EXPECT_EQ(packed.out, sliced.out) << Name(op);
    EXPECT_EQ(packed.state, sliced.state) << Name(op);
  }
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
