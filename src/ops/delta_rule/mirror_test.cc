// SPDX-License-Identifier: Apache-2.0
// The mirror of `cpu_bf16` must come at least 64 times closer to the kernel than the exact result does, and both
// distances must be of the size that is predicted. verify compares with the mirror, too, in every case that allows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "ops/delta_rule/call_test.h"
#include "ops/delta_rule/mirror.h"
#include "ops/delta_rule/reference.h"

namespace fluvial::ops::delta_rule {
namespace {

std::vector<double> Values(const TensorView& t) {
  std::vector<double> x(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = LoadAsDouble(t.data, t.dtype, static_cast<int64_t>(i));
  return x;
}

double Rms(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

void ExpectMirrored(const std::string& line) {
  Call call(line, 1);
  const auto stream = MakeCpuStream(1);
  const auto chosen = Choose(call.problem, stream->device(), "cpu_bf16");
  if (!chosen.ok()) GTEST_SKIP() << "needs AVX-512 BF16: " << chosen.status().message();
  const SequencePlan plan = std::move(SequencePlan::Make(*stream, {{call.problem.tokens}, {}, {}})).value();
  call.args.plan = &plan;
  ASSERT_TRUE(Validate(call.problem, call.args).ok());
  const std::vector<double> initial = Values(call.args.state), none(initial.size(), 0.0);
  const auto run = [&](auto&& body) {
    for (size_t i = 0; i < initial.size(); ++i) {
      StoreFromDouble(call.args.state.data, call.problem.state, static_cast<int64_t>(i), initial[i]);
    }
    body();
    return std::pair(Values(call.args.state), Values(call.args.out));
  };
  std::vector<char> workspace(std::max(chosen->backend->workspace_bytes(call.problem, stream->device()),
                                       ReferenceWorkspaceBytes(call.problem, 1)));
  const auto [state, out] = run([&] {
    ASSERT_TRUE(chosen->backend->run(*stream, call.problem, call.args, {workspace.data(), workspace.size()}).ok());
  });
  const auto [exact_state, exact_out] = run([&] {
    ASSERT_TRUE(RunReference(stream->pool(), call.problem, call.args, {workspace.data(), workspace.size()}, {}).ok());
  });
  const Problem& p = call.problem;
  std::vector<double> mirror_state, mirror_out(exact_out.size());
  for (int64_t h = 0; h < p.hv; ++h) {
    const int64_t size = int64_t{p.v} * p.k;
    std::vector<double> s(initial.begin() + h * size, initial.begin() + (h + 1) * size), o;
    ASSERT_TRUE(MirrorBf16(p, call.args, 0, p.tokens, h, &s, &o)) << line;
    mirror_state.insert(mirror_state.end(), s.begin(), s.end());
    for (int64_t t = 0; t < p.tokens; ++t) {
      std::copy(o.begin() + t * p.v, o.begin() + (t + 1) * p.v, mirror_out.begin() + (t * p.hv + h) * p.v);
    }
  }
  const double size = Rms(exact_state, none);
  const double exact = Rms(state, exact_state) / size, mirror = Rms(state, mirror_state) / size;
  std::printf("%s: state, relative to its size: from the exact one %.2e, from the mirror %.2e\n", line.c_str(), exact,
              mirror);
  EXPECT_LT(mirror, exact / 64) << line;
  // Prediction: some roundings of 2^-9 each for the exact one; 2^-24 and ties of one operand in 2^14 for the mirror.
  EXPECT_LT(exact, 0x1p-7) << line;
  EXPECT_GT(exact, 0x1p-12) << line << ": where is the rounding to bf16?";
  EXPECT_LT(mirror, 0x1p-16) << line;
  // Outputs are stored in bf16: as far from the mirror as one rounding makes them.
  const double out_size = Rms(exact_out, std::vector<double>(exact_out.size(), 0.0));
  EXPECT_LT(Rms(out, mirror_out) / out_size, 0x1p-9) << line;
}

TEST(DeltaRuleMirror, Gdn) {
  ExpectMirrored("gdn_prefill hk=1 hv=2 k=64 v=32 lens=32");
  ExpectMirrored("gdn_prefill hk=1 hv=2 k=64 v=64 lens=77");
  ExpectMirrored("gdn_prefill hk=2 hv=2 lens=300 gate=bounded:-1 beta=two_sigmoid norm=l2_max:1e-12");
}

TEST(DeltaRuleMirror, Kda) {
  ExpectMirrored("kda_prefill hk=2 hv=2 k=64 v=32 lens=32 gate=bounded:-1");
  ExpectMirrored("kda_prefill hk=1 hv=1 k=64 v=64 lens=77 gate=bounded:-1");
  ExpectMirrored("kda_prefill hk=2 hv=2 lens=300 gate=bounded:-0.5 beta=two_sigmoid");
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
