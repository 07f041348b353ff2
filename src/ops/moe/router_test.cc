// SPDX-License-Identifier: Apache-2.0
#include "ops/moe/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "ops/common/test_kit.h"
#include "ops/moe/moe.h"

namespace fluvial::ops::moe {
namespace {

using test_kit::HostTensor;
using test_kit::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<double>> weights;
};

/// Logits (and answers) in rows with poisoned gaps.
Routed RunRoute(const RouterSpec& s, const std::vector<std::vector<double>>& rows, DType dtype = DType::kF32,
                const std::vector<float>& bias = {}, int threads = 2) {
  const int64_t n = static_cast<int64_t>(rows.size());
  HostTensor logits(dtype, {n, s.experts}, s.experts + 3), ids(DType::kI32, {n, s.per_token}, s.per_token + 1),
      weights(DType::kF32, {n, s.per_token}, s.per_token + 2);
  for (int64_t t = 0; t < n; ++t) {
    for (int32_t e = 0; e < s.experts; ++e) logits.Set(t, e, rows[size_t(t)][size_t(e)]);
  }
  RouteArgs args{logits.view(), {}, ids.view(), weights.view()};
  if (!bias.empty()) {
    args.bias = TensorView(const_cast<float*>(bias.data()), DType::kF32, {static_cast<int64_t>(bias.size())});
  }
  auto stream = MakeCpuStream(threads);
  const Status status = Route(*stream, s, args);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(ids.PoisonIntact());
  EXPECT_TRUE(weights.PoisonIntact());
  Routed out;
  for (int64_t t = 0; t < n; ++t) {
    out.ids.emplace_back();
    out.weights.emplace_back();
    for (int32_t k = 0; k < s.per_token; ++k) {
      out.ids.back().push_back(ids.ints()[t * ids.pitch() + k]);
      out.weights.back().push_back(weights.Get(t, k));
    }
  }
  return out;
}

std::vector<double> Weights(const Routed& routed) { return routed.weights[0]; }

RouterSpec Spec(Scoring scoring, int32_t experts, int32_t per_token, int32_t groups = 1, int32_t kept = 1) {
  RouterSpec s;
  s.scoring = scoring, s.experts = experts, s.per_token = per_token, s.groups = groups, s.groups_kept = kept;
  return s;
}

/// The definition in fp64 for one token: ids by full sort, weights.
void Oracle(const RouterSpec& s, const std::vector<double>& logits, const std::vector<float>& bias,
            std::vector<int32_t>* ids, std::vector<double>* weights) {
  const int32_t size = s.experts / s.groups;
  std::vector<double> score(logits.size()), choice(logits.size());
  double total = 0;
  for (const double x : logits) total += std::exp(x);
  for (size_t e = 0; e < logits.size(); ++e) {
    score[e] = s.scoring == Scoring::kSoftmax ? std::exp(logits[e]) / total : 1 / (1 + std::exp(-logits[e]));
    choice[e] = score[e] + (bias.empty() ? 0 : double(bias[e]));
  }
  std::vector<int32_t> groups(size_t(s.groups));
  std::iota(groups.begin(), groups.end(), 0);
  const auto group_score = [&](int32_t g) {
    std::vector<double> c(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(c.rbegin(), c.rend());
    return size == 1 ? c[0] : c[0] + c[1];
  };
  std::stable_sort(groups.begin(), groups.end(), [&](int32_t a, int32_t b) { return group_score(a) > group_score(b); });
  std::vector<int32_t> all;
  for (int32_t g = 0; g < s.groups_kept; ++g) {
    for (int32_t e = groups[size_t(g)] * size; e < (groups[size_t(g)] + 1) * size; ++e) all.push_back(e);
  }
  std::sort(all.begin(), all.end());
  std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) { return choice[size_t(a)] > choice[size_t(b)]; });
  all.resize(size_t(s.per_token));
  *ids = all;
  double sum = 0;
  for (const int32_t e : all) sum += score[size_t(e)];
  if (s.scoring == Scoring::kSigmoid) sum += 1e-20;
  weights->clear();
  for (const int32_t e : all) weights->push_back(score[size_t(e)] / (s.renormalise ? sum : 1) * double(s.scale));
}

TEST(Router, MatchesTheDefinition) {
  Random rng(1);
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid}) {
    for (const auto& [experts, per_token, groups, kept] : {std::array{8, 2, 1, 1},
                                                           {1, 1, 1, 1},
                                                           {64, 64, 1, 1},
                                                           {512, 10, 1, 1},
                                                           {24, 6, 4, 2},
                                                           {12, 3, 12, 5},
                                                           {16, 8, 2, 1}}) {
      if (scoring == Scoring::kSoftmax && groups != 1) continue;
      for (const bool renormalise : {true, false}) {
        RouterSpec s = Spec(scoring, experts, per_token, groups, kept);
        s.renormalise = renormalise;
        s.scale = renormalise ? 2.446f : 1;
        // Logits a multiple of 1/4096 apart, so that fp32 cannot confuse two; no ties.
        std::vector<std::vector<double>> rows(70);
        for (auto& row : rows) {
          std::set<int64_t> taken;
          while (int32_t(taken.size()) < experts) taken.insert(rng.Int(-12000, 12000));
          row.assign(taken.begin(), taken.end());
          for (size_t e = row.size(); e > 1; --e) std::swap(row[e - 1], row[size_t(rng.Int(0, int64_t(e) - 1))]);
          for (double& x : row) x /= 4096;
        }
        std::vector<float> bias;
        if (scoring == Scoring::kSigmoid) {
          for (int32_t e = 0; e < experts; ++e) bias.push_back(float(rng.Int(-3, 3)) / 8);
        }
        const Routed got = RunRoute(s, rows, DType::kF32, bias);
        for (size_t t = 0; t < rows.size(); ++t) {
          std::vector<int32_t> ids;
          std::vector<double> weights;
          Oracle(s, rows[t], bias, &ids, &weights);
          ASSERT_EQ(got.ids[t], ids) << "token " << t << " experts " << experts << " groups " << groups;
          // exp and a sum of E terms in fp32.
          const double bound = (experts + 16) * 0x1p-23;
          for (size_t k = 0; k < ids.size(); ++k) ASSERT_NEAR(got.weights[t][k], weights[k], bound * weights[k]);
        }
      }
    }
  }
}

TEST(Router, TiesGoToTheLowestId) {
  RouterSpec s = Spec(Scoring::kSoftmax, 6, 3);
  EXPECT_EQ(RunRoute(s, {{1, 1, 1, 1, 1, 1}}).ids[0], (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(RunRoute(s, {{0, 2, 1, 2, 1, 1}}).ids[0], (std::vector<int32_t>{1, 3, 2}));
  for (const double w : Weights(RunRoute(s, {{1, 1, 1, 1, 1, 1}}))) EXPECT_EQ(w, double(1.0f / 3));
  // bf16 logits that differ below its precision are equal.
  EXPECT_EQ(RunRoute(s, {{1, 1.001, 1, 1, 1, 1}}, DType::kBF16).ids[0], (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(RunRoute(s, {{1, 1.001, 1, 1, 1, 1}}).ids[0], (std::vector<int32_t>{1, 0, 2}));
  // Groups of equal score: the lower group.
  s = Spec(Scoring::kSigmoid, 6, 2, 3, 1);
  EXPECT_EQ(RunRoute(s, {{0, 0, 0, 0, 0, 0}}).ids[0], (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(RunRoute(s, {{0, 0, 1, 0, 1, 0}}).ids[0], (std::vector<int32_t>{2, 3}));
}

TEST(Router, BiasChoosesButDoesNotWeigh) {
  RouterSpec s = Spec(Scoring::kSigmoid, 4, 2);
  s.renormalise = false;
  const Routed got = RunRoute(s, {{0, 3, 0, 3}}, DType::kF32, {5, 0, 4, 0});
  EXPECT_EQ(got.ids[0], (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(got.weights[0], (std::vector<double>{0.5, 0.5}));
}

TEST(Router, GroupsAreScoredByTheirTwoBest) {
  // Group 0 has the single best expert, group 1 the best pair.
  const RouterSpec s = Spec(Scoring::kSigmoid, 6, 2, 2, 1);
  EXPECT_EQ(RunRoute(s, {{4, -9, -9, 2, 1, -9}}).ids[0], (std::vector<int32_t>{3, 4}));
  // A negative choice in a kept group still beats the masked ones.
  EXPECT_EQ(RunRoute(s, {{0, 0, 0, 1, 1, 1}}, DType::kF32, {-9, -9, -9, -5, -5, -6}).ids[0],
            (std::vector<int32_t>{3, 4}));
}

TEST(Router, WeightsAreRoundedToTheirType) {
  RouterSpec s = Spec(Scoring::kSoftmax, 3, 3);
  s.weight_type = DType::kBF16;
  const Routed got = RunRoute(s, {{0.3, 0.1, -0.7}}, DType::kBF16);
  for (const double w : got.weights[0]) EXPECT_EQ(w, double(ToFloat(ToBFloat16(float(w)))));
  s.weight_type = DType::kF16;
  for (const double w : Weights(RunRoute(s, {{0.3, 0.1, -0.7}}))) EXPECT_EQ(w, double(ToFloat(ToFloat16(float(w)))));
}

TEST(Router, ExtremeLogits) {
  RouterSpec s = Spec(Scoring::kSoftmax, 4, 2);
  // Far beyond what exp can hold.
  const Routed far = RunRoute(s, {{1e30, -1e30, 3, 1e30}, {-2000, -2001, -kInf, -kInf}});
  EXPECT_EQ(far.ids[0], (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(far.weights[0], (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(far.ids[1], (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(far.weights[1][0], 1 / (1 + std::exp(-1.0)), 1e-6);
  s = Spec(Scoring::kSigmoid, 4, 2);
  const Routed none = RunRoute(s, {{-kInf, -kInf, -kInf, -kInf}, {-200, -300, -kInf, -kInf}});
  EXPECT_EQ(none.ids[0], (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(none.weights[0], (std::vector<double>{0, 0}));  // 0 / 1e-20, not 0 / 0
}

TEST(Router, NanGivesValidDistinctIdsAndNanWeights) {
  Random rng(2);
  const double nan = std::nan("");
  for (const RouterSpec& s : {Spec(Scoring::kSoftmax, 6, 3), Spec(Scoring::kSigmoid, 6, 3, 3, 2)}) {
    const Routed got = RunRoute(s, {{nan, nan, nan, nan, nan, nan}, {1, nan, 2, 0, 0, 0}, {1, 2, 3, 4, 5, 6}});
    for (size_t t = 0; t < 3; ++t) {
      std::set<int32_t> distinct(got.ids[t].begin(), got.ids[t].end());
      EXPECT_EQ(distinct.size(), 3u);
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), 6);
      for (const double w : got.weights[t]) EXPECT_EQ(std::isnan(w), t != 2);
    }
  }
}

TEST(Router, ManyTokensEqualEachAlone) {
  Random rng(3);
  std::vector<std::vector<double>> rows(300, std::vector<double>(96));
  for (auto& row : rows) {
    for (double& x : row) x = rng.Normal();
  }
  const RouterSpec s = Spec(Scoring::kSigmoid, 96, 6, 8, 3);
  const Routed all = RunRoute(s, rows, DType::kF32, {}, 3);
  for (size_t t = 0; t < rows.size(); ++t) {
    const Routed one = RunRoute(s, {rows[t]}, DType::kF32, {}, 1);
    ASSERT_EQ(all.ids[t], one.ids[0]);
    ASSERT_EQ(all.weights[t], one.weights[0]);
  }
  EXPECT_TRUE(RunRoute(s, {}).ids.empty());
}

TEST(Router, RefusesWhatDoesNotFit) {
  const auto says = [](RouterSpec s, const char* what) {
    const Status status = Validate(s);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  says(Spec(Scoring::kSoftmax, 0, 1), "experts=0");
  says(Spec(Scoring::kSoftmax, 8, 9), "per_token=9");
  says(Spec(Scoring::kSoftmax, 80, kMaxPerToken + 1), "per_token=65");
  says(Spec(Scoring::kSoftmax, 8, 0), "per_token=0");
  says(Spec(Scoring::kSigmoid, 8, 2, 3), "groups=3");
  says(Spec(Scoring::kSoftmax, 8, 2, 2), "softmax router has no groups");
  says(Spec(Scoring::kSigmoid, 8, 2, 2, 3), "groups_kept=3");
  says(Spec(Scoring::kSigmoid, 8, 3, 4, 1), "cannot give 3");
  RouterSpec s = Spec(Scoring::kSigmoid, 8, 2);
  s.scale = kInf;
  says(s, "scale");
  s.scale = 1, s.weight_type = DType::kI32;
  says(s, "weight_type");

  auto stream = MakeCpuStream(1);
  std::vector<float> logits(16), weights(4), bias(8);
  std::vector<int32_t> ids(4);
  s = Spec(Scoring::kSoftmax, 8, 2);
  RouteArgs good{TensorView(logits.data(), DType::kF32, {2, 8}),
                 {},
                 TensorView(ids.data(), DType::kI32, {2, 2}),
                 TensorView(weights.data(), DType::kF32, {2, 2})};
  EXPECT_TRUE(Route(*stream, s, good).ok());
  const auto refused = [&](const RouteArgs& a, const char* what) {
    const Status status = Route(*stream, s, a);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  RouteArgs a = good;
  a.logits = TensorView(logits.data(), DType::kF32, {4, 4});
  refused(a, "logits");
  a = good;
  a.ids = TensorView(weights.data(), DType::kF32, {2, 2});
  refused(a, "ids");
  a = good;
  a.weights = TensorView(weights.data(), DType::kF32, {1, 2});
  refused(a, "weights");
  a = good;
  a.bias = TensorView(bias.data(), DType::kF32, {8});
  refused(a, "takes no bias");
  s.scoring = Scoring::kSigmoid;
  EXPECT_TRUE(Route(*stream, s, a).ok());
  a.bias = TensorView(bias.data(), DType::kF32, {7});
  refused(a, "bias");
}

}  // namespace
}  // namespace fluvial::ops::moe
