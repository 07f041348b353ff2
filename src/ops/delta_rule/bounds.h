// SPDX-License-Identifier: Apache-2.0
// How far a correct body may be from the fp64 reference: a running error analysis along the recurrence.
//
// Rows v of S (V x K) are independent, so follow one row s and the 2-norm e of its error. With a = exp(g),
// one token maps s to (I - beta k k^T) diag(a) s + beta v k. The matrix is symmetric times diagonal, so an error
// is carried on with factor
//     rho = max_c a_c * max(1, |1 - beta |k|^2|).
// Let m be the mass that passes through rounded operations of the current 64-token chunk, whatever form the body
// uses (token loop, WY form with substitution, WY form with an explicit inverse):
//     m^2 = |s at chunk start|^2 + sum over the chunk's tokens j of (d_j^2 + (beta_j v_j)^2) |k_j|^2.
// A token then adds, per unit of
//   * operand roundoff:      beta |k|^2 m + |d| |k|          (rounded S, k, A, T and U entering products)
//   * accumulation roundoff: beta |k|^2 m + |d| |k| + m      (sums, decay products)
//   * systematic error (the same sign for many tokens: gates, norms, sigmoid):
//       |dg * a * s| with |dg| <= gate * |g| (1 + |ln|g||) + accumulate * |G|, G the sum of g since the chunk
//       start (bodies that use prefix sums), plus 4 accumulate (beta |k|^2 |s| + |d| |k|).
// Rounding errors are independent with mean zero, so they are added in quadrature, and lambda times the root
// bounds the sum with probability 1 - 2 exp(-lambda^2/2) (Higham and Mary, "A new approach to probabilistic
// rounding error analysis", 2019); systematic errors are added linearly. Where the mass meets q or k, Cauchy-
// Schwarz replaces the (smaller) typical inner product. An output adds |q| (e + the local terms), and the store
// adds half an ulp of its type - twice, because the reference is stored in that type too. Absolute
// terms for underflow (denormals, decays below 2^-125) are added where results are compared (test_compare.cc).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/delta_rule/reference.h"

namespace fluvial::ops::delta_rule {

/// 2 exp(-36/2) = 3e-8 per element.
inline constexpr double kLambda = 6;

/// Number of roundings behind one unit of local error (operands of both factors; product, sum, tree).
inline constexpr double kLocalRoundings = 4;

/// Coefficients of the three kinds of roundoff for one row.
struct RowError {
  double operand2 = 0;     ///< squared
  double accumulate2 = 0;  ///< squared
  double gate = 0;         ///< multiplies Precision::gate
  double systematic = 0;   ///< multiplies Precision::accumulate
};

/// Follows all rows of one (sequence, head).
class ErrorTracker {
 public:
  ErrorTracker(const Problem& p, int32_t chunk = 64) : v_(p.v), k_(p.k), chunk_(chunk), row_(p.v), mass2_(p.v, 0) {
    prefix_.assign(p.k, 0);
  }

  /// After a token. `step.state` is the state after the write.
  void Step(const TokenStep& step) {
    const Token& t = step.token;
    double k2 = 0, q2 = 0, decay = 0;
    for (int c = 0; c < k_; ++c) {
      k2 += t.k[c] * t.k[c];
      q2 += t.q[c] * t.q[c];
      decay = std::max(decay, std::exp(t.g[c]));
    }
    if (step.position % chunk_ == 0) std::fill(prefix_.begin(), prefix_.end(), 0.0);
    for (int c = 0; c < k_; ++c) prefix_[c] += t.g[c];
    q_norm_ = std::sqrt(q2);
    const double k_norm = std::sqrt(k2);
    const double rho = decay * std::max(1.0, std::abs(1 - t.beta * k2));
    for (int v = 0; v < v_; ++v) {
      const double* s = step.state.data() + static_cast<int64_t>(v) * k_;
      const double d = std::abs(step.delta[v]);
      double norm2 = 0, gate = 0, prefix = 0;
      for (int c = 0; c < k_; ++c) {
        const double decayed = s[c] - step.delta[v] * t.k[c];
        norm2 += decayed * decayed;
        const double g = std::abs(t.g[c]);
        const double relative = g > 0 ? g * (1 + std::abs(std::log(g))) : 0;
        gate += decayed * decayed * relative * relative;
        prefix += decayed * decayed * prefix_[c] * prefix_[c];
      }
      if (step.position % chunk_ == 0) mass2_[v] = norm2;
      mass2_[v] += (d * d + t.beta * t.beta * t.v[v] * t.v[v]) * k2;
      const double m = std::sqrt(mass2_[v]);
      const double local = kLocalRoundings * (t.beta * k2 * m + d * k_norm);
      RowError& e = row_[v];
      e.operand2 = rho * rho * e.operand2 + local * local;
      e.accumulate2 = rho * rho * e.accumulate2 + (local + kLocalRoundings * m) * (local + kLocalRoundings * m);
      e.gate = rho * e.gate + std::sqrt(gate);
      e.systematic = rho * e.systematic + std::sqrt(prefix) + 4 * (t.beta * k2 * std::sqrt(norm2) + d * k_norm);
    }
  }

  const RowError& row(int v) const { return row_[v]; }
  /// Of the output of the last token.
  RowError Out(int v) const {
    const RowError& e = row_[v];
    const double local2 = kLocalRoundings * kLocalRoundings * mass2_[v];
    const double q2 = q_norm_ * q_norm_;
    return {(e.operand2 + local2) * q2, (e.accumulate2 + local2) * q2, e.gate * q_norm_,
            (e.systematic + 4 * std::sqrt(mass2_[v])) * q_norm_};
  }

 private:
  int v_, k_, chunk_;
  double q_norm_ = 0;
  std::vector<RowError> row_;
  std::vector<double> mass2_;
  std::vector<double> prefix_;
};

}  // namespace fluvial::ops::delta_rule
