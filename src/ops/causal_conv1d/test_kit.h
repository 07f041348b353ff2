// SPDX-License-Identifier: Apache-2.0
// Internal to this room: builds a call of the operator with poisoned memory around everything. For tests and
// benchmarks.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/hash.h"
#include "ops/causal_conv1d/causal_conv1d.h"

namespace fluvial::ops::causal_conv1d::test {

/// Deterministic numbers, independent of the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Mix64(state_++); }
  int64_t Integer(int64_t low, int64_t high) {  // inclusive
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  float Unit() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }
  float Symmetric(float scale) { return scale * (2.0f * Unit() - 1.0f); }

 private:
  uint64_t state_;
};

/// What a call looks like besides the problem.
struct CallSetup {
  Problem problem;
  std::vector<int64_t> lengths;
  std::vector<int32_t> read_slots, write_slots;  ///< empty: slot i for sequence i
  std::vector<int32_t> token_slots;
  int64_t slots = 0;  ///< of the state; 0 = as many as sequences
  int64_t x_pad = 0;  ///< extra elements per row
  int64_t out_pad = 0;
  int64_t slot_pad = 0;
  bool integers = false;  ///< small whole numbers: every result is exact
  uint64_t seed = 1;
};

/// Owns the memory of one call. Outputs, padding, and unused slots hold NaN before the run.
struct Call {
  Problem problem;
  std::vector<char> x, weight, bias, out, state, checkpoints;
  std::vector<int32_t> token_slots;
  Args args;

  Call(const CallSetup& s, const SequencePlan& plan) : problem(s.problem) {
    SetLengths(problem, s.lengths);
    if (problem.token_states) problem.max_length = plan.max_length();
    const int64_t c = problem.channels, w = problem.width, t = problem.tokens;
    const int64_t slots = s.slots != 0 ? s.slots : static_cast<int64_t>(s.lengths.size());
    Random random(s.seed);
    auto value = [&](float scale) {
      return s.integers ? static_cast<float>(random.Integer(-3, 3)) : random.Symmetric(scale);
    };
    Poison(x, t * (c + s.x_pad), problem.io);
    Poison(out, t * (c + s.out_pad), problem.io);
    for (int64_t i = 0; i < t; ++i) {
      for (int64_t j = 0; j < c; ++j) StoreFromDouble(x.data(), problem.io, i * (c + s.x_pad) + j, value(2.0f));
    }
    Poison(weight, c * w, problem.weight);
    for (int64_t i = 0; i < c * w; ++i) StoreFromDouble(weight.data(), problem.weight, i, value(0.7f));
    Poison(bias, c, problem.weight);
    for (int64_t i = 0; i < c; ++i) StoreFromDouble(bias.data(), problem.weight, i, value(0.5f));
    const int64_t pitch = (w - 1) * c + s.slot_pad;
    Poison(state, slots * pitch, problem.state);
    for (int32_t slot : plan.read_slots()) {
      if (slot < 0) continue;
      // A state holds io values exactly; values depend on the slot alone.
      Random slot_random(s.seed * 1000003 + static_cast<uint64_t>(slot));
      for (int64_t i = 0; i < (w - 1) * c; ++i) {
        uint32_t io_value = 0;
        const float v = s.integers ? static_cast<float>(slot_random.Integer(-3, 3)) : slot_random.Symmetric(2.0f);
        StoreFromDouble(&io_value, problem.io, 0, v);
        StoreFromDouble(state.data(), problem.state, slot * pitch + i, LoadAsDouble(&io_value, problem.io, 0));
      }
    }
    int64_t rows = 0;
    if (problem.checkpoint_every > 0) {
      for (int64_t n : s.lengths) rows += n / problem.checkpoint_every;
    }
    Poison(checkpoints, rows * (w - 1) * c, problem.state);
    token_slots = s.token_slots;

    args.x = TensorView(x.data(), problem.io, {t, c}, {c + s.x_pad, 1});
    args.out = TensorView(out.data(), problem.io, {t, c}, {c + s.out_pad, 1});
    args.weight = TensorView(weight.data(), problem.weight, {c, w});
    if (problem.has_bias) args.bias = TensorView(bias.data(), problem.weight, {c});
    args.state = TensorView(state.data(), problem.state, {slots, w - 1, c}, {pitch, c, 1});
    if (rows > 0) args.checkpoints = TensorView(checkpoints.data(), problem.state, {rows, w - 1, c});
    if (problem.token_states) {
      args.token_slots = TensorView(token_slots.data(), DType::kI32, {int64_t{problem.sequences}, problem.max_length});
    }
    args.plan = &plan;
  }

  /// All-ones bytes: NaN in fp32, bf16 and fp16. One spare element at the end, so that overruns meet it.
  static void Poison(std::vector<char>& v, int64_t elements, DType dtype) {
    v.assign(static_cast<size_t>(elements + 1) * SizeOf(dtype), static_cast<char>(0xff));
  }
};

inline Result<SequencePlan> MakePlan(Stream& stream, const CallSetup& s) {
  return SequencePlan::Make(stream, {s.lengths, s.read_slots, s.write_slots});
}

}  // namespace fluvial::ops::causal_conv1d::test
