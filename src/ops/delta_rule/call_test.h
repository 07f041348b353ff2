// SPDX-License-Identifier: Apache-2.0
// Host tensors of one problem line, for tests that call backends themselves.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/common/test_kit.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// Tensors of one problem with outputs that are NaN until written.
struct Call {
  Problem problem;
  std::vector<std::vector<char>> memory;
  Args args;
  std::vector<char> workspace;

  TensorView Make(DType dtype, std::initializer_list<int64_t> dims, double spread, uint64_t seed) {
    TensorView t(nullptr, dtype, dims);
    memory.emplace_back(static_cast<size_t>(t.elements()) * SizeOf(dtype));
    t.data = memory.back().data();
    test_kit::Random random(seed);
    for (int64_t i = 0; i < t.elements(); ++i) StoreFromDouble(t.data, dtype, i, spread * random.Normal());
    return t;
  }

  Call(const std::string& line, int64_t slots) {
    const auto parsed = ParseProblemLine(line);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    problem = parsed->problem;
    memory.reserve(16);
    const Problem& p = problem;
    args.q = Make(p.io, {p.tokens, p.hk, p.k}, 1, 1);
    args.k = Make(p.io, {p.tokens, p.hk, p.k}, 1, 2);
    args.v = Make(p.io, {p.tokens, p.hv, p.v}, 1, 3);
    args.out = Make(p.io, {p.tokens, p.hv, p.v}, NAN, 4);
    args.gate = p.kda() ? Make(p.gate_dtype, {p.tokens, p.hv, p.k}, 1, 5) : Make(p.gate_dtype, {p.tokens, p.hv}, 1, 5);
    args.beta = Make(p.beta_dtype, {p.tokens, p.hv}, 1, 6);
    args.a_log = Make(DType::kF32, {p.hv}, 0.3, 7);
    args.dt_bias = p.kda() ? Make(DType::kF32, {p.hv, p.k}, 0.3, 8) : Make(DType::kF32, {p.hv}, 0.3, 8);
    args.state = Make(p.state, {slots, p.hv, p.v, p.k}, 0.3, 9);
    // More rows than any arrangement of the lengths needs.
    if (p.checkpoint_every > 0) args.checkpoints = Make(p.state, {8, p.hv, p.v, p.k}, NAN, 10);
  }
};

}  // namespace fluvial::ops::delta_rule
