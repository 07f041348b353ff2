// SPDX-License-Identifier: Apache-2.0
// A rounding mirror of `cpu_bf16`: its chunks in fp64 with a rounding to bf16 exactly where the kernel has one. The
// bounds of verify allow every operand an error of 2^-8; the mirror leaves fp32 sums and rare ties only, so that a
// wrong order, a missing or an extra rounding, or a small systematic error hiding below those bounds shows. It must
// come at least 64 times closer to the kernel than the exact result does, and both distances must be of the size
// that is predicted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "ops/delta_rule/call_test.h"
#include "ops/delta_rule/reference.h"

namespace fluvial::ops::delta_rule {
namespace {

constexpr int64_t kChunk = 32, kBlock = 16;

/// To fp32 first, as the kernel's operands are.
double Bf16(double x) { return ToFloat(ToBFloat16(static_cast<float>(x))); }

using Rows = std::vector<std::vector<double>>;

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// What multiplies S, what meets it, and the decays of one chunk, rounded as the kernel rounds.
struct Factors {
  Rows key, query;                  ///< [rows][K] operands of K S^T and Q S^T, as used
  Rows write;                       ///< [rows][K] operand of K^T U
  Rows a, p;                        ///< [rows][rows]; a without beta
  std::vector<double> write_scale;  ///< of U before it is rounded for K^T U
  std::vector<double> decay;        ///< [K]
  std::vector<double> beta;
};

Factors MakeFactors(const Call& call, int64_t t, int64_t count, int64_t head) {
  const Problem& p = call.problem;
  Problem raw = p;
  raw.norm = NormForm::kNone;
  raw.scale = 1;
  Factors f;
  std::vector<Token> tokens(count), plain(count);
  Rows sum(count, std::vector<double>(p.k, 0));
  for (int64_t i = 0; i < count; ++i) {
    for (Token* x : {&tokens[i], &plain[i]}) x->q.resize(p.k), x->k.resize(p.k), x->g.resize(p.k), x->v.resize(p.v);
    LoadToken(p, call.args, t + i, head, &tokens[i]);
    LoadToken(raw, call.args, t + i, head, &plain[i]);
    for (int c = 0; c < p.k; ++c) sum[i][c] = (i > 0 ? sum[i - 1][c] : 0) + tokens[i].g[c];
    f.beta.push_back(tokens[i].beta);
  }
  const auto& last = sum[count - 1];
  for (int c = 0; c < p.k; ++c) f.decay.push_back(std::exp(last[c]));
  for (int64_t i = 0; i < count; ++i) {
    std::vector<double> key(p.k), query(p.k), write(p.k);
    for (int c = 0; c < p.k; ++c) {
      const double e = std::exp(sum[i][c]);
      // GDN's operands are the raw rows, exact in bf16: norms and gates meet the fp32 sums.
      key[c] = p.kda() ? Bf16(tokens[i].k[c] * e) : tokens[i].k[c] * e;
      query[c] = p.kda() ? Bf16(tokens[i].q[c] * e) : tokens[i].q[c] * e;
      write[c] = p.kda() ? Bf16(tokens[i].k[c] * std::exp(last[c] - sum[i][c])) : plain[i].k[c];
    }
    f.key.push_back(key), f.query.push_back(query), f.write.push_back(write);
    double norm = 1;
    for (int c = 0; c < p.k && !p.kda(); ++c) {
      if (std::abs(plain[i].k[c]) > 0.5) norm = tokens[i].k[c] / plain[i].k[c];
    }
    f.write_scale.push_back(p.kda() ? 1 : std::exp(last[0] - sum[i][0]) * norm);
  }
  for (int64_t i = 0; i < count; ++i) {
    f.a.emplace_back(count, 0.0), f.p.emplace_back(count, 0.0);
    for (int64_t j = 0; j <= i; ++j) {
      double a = 0, pm = 0;
      for (int c = 0; c < p.k; ++c) {
        if (p.kda()) {
          const double inverse = Bf16(tokens[j].k[c] * std::exp(-sum[j][c]));
          a += f.key[i][c] * inverse, pm += f.query[i][c] * inverse;
        } else {
          const double e = std::exp(sum[i][c] - sum[j][c]);
          a += tokens[i].k[c] * tokens[j].k[c] * e, pm += tokens[i].q[c] * tokens[j].k[c] * e;
        }
      }
      const bool diagonal_block = i / kBlock == j / kBlock;
      if (j < i) f.a[i][j] = diagonal_block ? a : Bf16(a);
      f.p[i][j] = Bf16(pm);
    }
  }
  return f;
}

/// States [Hv, V, K] after the only sequence, and outputs before they are stored.
void Mirror(const Call& call, std::vector<double>* states, std::vector<double>* out) {
  const Problem& p = call.problem;
  out->assign(static_cast<size_t>(p.tokens) * p.hv * p.v, 0);
  for (int64_t h = 0; h < p.hv; ++h) {
    for (int64_t t = 0; t < p.tokens; t += kChunk) {
      const int64_t count = std::min(kChunk, p.tokens - t);
      const Factors f = MakeFactors(call, t, count, h);
      for (int64_t v = 0; v < p.v; ++v) {
        double* s = states->data() + (h * p.v + v) * p.k;
        std::vector<double> s16(p.k), u(count), u16(count);
        for (int c = 0; c < p.k; ++c) s16[c] = Bf16(s[c]);
        for (int64_t i = 0; i < count; ++i) {
          double x = Dot(f.key[i], s16), inside = 0;
          for (int64_t j = 0; j < i; ++j) {
            const bool diagonal_block = i / kBlock == j / kBlock;
            (diagonal_block ? inside : x) += f.a[i][j] * (diagonal_block ? u[j] : u16[j]);
          }
          const double value = LoadAsDouble(call.args.v.data, p.io, (t + i) * call.args.v.stride(0) + h * p.v + v);
          u[i] = f.beta[i] * (value - x - inside);
          u16[i] = Bf16(u[i]);
        }
        for (int64_t i = 0; i < count; ++i) {
          double o = Dot(f.query[i], s16);
          for (int64_t j = 0; j <= i; ++j) o += f.p[i][j] * u16[j];
          (*out)[static_cast<size_t>(((t + i) * p.hv + h) * p.v + v)] = o;
        }
        for (int c = 0; c < p.k; ++c) {
          s[c] *= f.decay[c];
          for (int64_t j = 0; j < count; ++j) s[c] += f.write[j][c] * Bf16(f.write_scale[j] * u[j]);
        }
      }
    }
  }
}

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
  std::vector<double> mirror_state = initial, mirror_out;
  Mirror(call, &mirror_state, &mirror_out);
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
