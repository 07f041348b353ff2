// SPDX-License-Identifier: Apache-2.0
#include "ops/delta_rule/mirror.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/delta_rule/cpu_simd.h"
#include "ops/delta_rule/reference.h"

namespace fluvial::ops::delta_rule {
namespace {

constexpr int64_t kBlock = 16;

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

/// Nothing when the kernel would take another form of KDA for this chunk, or might.
std::optional<Factors> MakeFactors(const Problem& p, const Args& args, int64_t t, int64_t count, int64_t head) {
  Problem raw = p;
  raw.norm = NormForm::kNone;
  raw.scale = 1;
  Factors f;
  std::vector<Token> tokens(count), plain(count);
  Rows sum(count, std::vector<double>(p.k, 0));
  for (int64_t i = 0; i < count; ++i) {
    for (Token* x : {&tokens[i], &plain[i]}) x->q.resize(p.k), x->k.resize(p.k), x->g.resize(p.k), x->v.resize(p.v);
    LoadToken(p, args, t + i, head, &tokens[i]);
    LoadToken(raw, args, t + i, head, &plain[i]);
    for (int c = 0; c < p.k; ++c) sum[i][c] = (i > 0 ? sum[i - 1][c] : 0) + tokens[i].g[c];
    f.beta.push_back(tokens[i].beta);
  }
  const auto& last = sum[count - 1];
  for (int c = 0; c < p.k; ++c) f.decay.push_back(std::exp(last[c]));
  for (int64_t i = 0; i < count && p.kda(); ++i) {
    for (int c = 0; c < p.k; ++c) {
      if (last[c] < -59 || std::abs(tokens[i].k[c]) > 999) return std::nullopt;
    }
  }
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
    double norm = 1, largest = 0;
    for (int c = 0; c < p.k && !p.kda(); ++c) {
      if (std::abs(plain[i].k[c]) <= largest) continue;
      largest = std::abs(plain[i].k[c]);
      norm = tokens[i].k[c] / plain[i].k[c];
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

}  // namespace

bool MirrorBf16(const Problem& p, const Args& args, int64_t begin, int64_t length, int64_t head,
                std::vector<double>* state, std::vector<double>* out) {
  out->assign(static_cast<size_t>(length) * p.v, 0);
  for (int64_t t = 0; t < length; t += kChunk16) {
    const int64_t count = std::min(kChunk16, length - t);
    const std::optional<Factors> factors = MakeFactors(p, args, begin + t, count, head);
    if (!factors) return false;
    const Factors& f = *factors;
    for (int64_t v = 0; v < p.v; ++v) {
      double* s = state->data() + v * p.k;
      std::vector<double> s16(p.k), u(count), u16(count);
      for (int c = 0; c < p.k; ++c) s16[c] = Bf16(s[c]);
      for (int64_t i = 0; i < count; ++i) {
        double x = Dot(f.key[i], s16), inside = 0;
        for (int64_t j = 0; j < i; ++j) {
          const bool diagonal_block = i / kBlock == j / kBlock;
          (diagonal_block ? inside : x) += f.a[i][j] * (diagonal_block ? u[j] : u16[j]);
        }
        const double value = LoadAsDouble(args.v.data, p.io, (begin + t + i) * args.v.stride(0) + head * p.v + v);
        u[i] = f.beta[i] * (value - x - inside);
        u16[i] = Bf16(u[i]);
      }
      for (int64_t i = 0; i < count; ++i) {
        double o = Dot(f.query[i], s16);
        for (int64_t j = 0; j <= i; ++j) o += f.p[i][j] * u16[j];
        (*out)[static_cast<size_t>((t + i) * p.v + v)] = o;
      }
      for (int c = 0; c < p.k; ++c) {
        s[c] *= f.decay[c];
        for (int64_t j = 0; j < count; ++j) s[c] += f.write[j][c] * Bf16(f.write_scale[j] * u[j]);
      }
    }
  }
  return true;
}

}  // namespace fluvial::ops::delta_rule
