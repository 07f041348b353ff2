// SPDX-License-Identifier: Apache-2.0
// Every backend of moe against the contract: exact integers, fp64 bounds, poisoned gaps, batch = alone.
#include "ops/moe/moe.h"

#include <gtest/gtest.h>

#include "ops/common/simd_targets_test.h"
#include "ops/moe/test_kit.h"

namespace fluvial::ops::moe {
namespace {

using test::Case;
using test::Make;
using test::Storage;
using test_kit::Random;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr Layout kLayouts[] = {Layout::kOutputMajor, Layout::kInputMajor};

double Round(DType dtype, double x) {
  char bytes[8];
  StoreFromDouble(bytes, dtype, 0, x);
  return LoadAsDouble(bytes, dtype, 0);
}

/// Numbers for which every sum is exact in fp32: x >= 0 small integers, gate rows 0 or 32 times such, so that a gate is
/// 0 or at least 32, where silu(gate) = gate in fp32; up and down are small integers, weights powers of two.
void FillExact(Case& c, Random& rng) {
  c.Fill(c.x, [&] { return double(rng.Int(0, 1)); });
  for (const ExpertWeights& w : c.experts) {
    c.Fill(w.gate, [&] { return rng.Chance(0.9) ? 0.0 : 32.0; });
    c.Fill(w.up, [&] { return double(rng.Int(-1, 1)); });
    c.Fill(w.down, [&] { return double(rng.Int(-1, 1)); });
  }
  c.Fill(c.weights, [&] { return std::ldexp(1.0, int(rng.Int(-2, 1))); });
}

/// y of one token by the contract, for numbers as above; independent of the reference backend.
std::vector<double> Oracle(Case& c, int64_t t) {
  const Problem& p = c.p;
  std::vector<double> y(size_t(p.hidden), 0.0);
  for (int32_t e = 0; e < p.experts; ++e) {
    for (int32_t k = 0; k < p.per_token; ++k) {
      if (c.Id(t, k) != e) continue;
      const ExpertWeights& w = c.experts[size_t(e)];
      std::vector<double> a(size_t(p.inter));
      for (int64_t i = 0; i < p.inter; ++i) {
        double gate = 0, up = 0;
        for (int64_t h = 0; h < p.hidden; ++h) {
          gate += c.x.Get(t, h) * c.Get(w.gate, i, h);
          up += c.x.Get(t, h) * c.Get(w.up, i, h);
        }
        gate = Round(p.io, gate);
        up = Round(p.io, up);
        if (p.limit > 0) {
          gate = std::min(gate, double(p.limit));
          up = std::clamp(up, -double(p.limit), double(p.limit));
        }
        a[size_t(i)] = Round(p.io, gate * up);
      }
      for (int64_t h = 0; h < p.hidden; ++h) {
        double out = 0;
        for (int64_t i = 0; i < p.inter; ++i) out += a[size_t(i)] * c.Get(w.down, h, i);
        y[size_t(h)] = Round(p.io, y[size_t(h)] + Round(p.io, c.weights.Get(t, k) * Round(p.io, out)));
      }
    }
  }
  return y;
}

void ExpectOracle(Case& c, std::string_view backend, Stream& stream) {
  SCOPED_TRACE(c.p.ToString() + " backend=" + std::string(backend));
  for (int64_t t = 0; t < c.p.tokens; ++t) c.y.PoisonRow(t);
  const Status s = c.Run(backend, stream);
  ASSERT_TRUE(s.ok()) << s.message();
  for (int64_t t = 0; t < c.p.tokens; ++t) {
    const std::vector<double> want = Oracle(c, t);
    for (int64_t h = 0; h < c.p.hidden; ++h) ASSERT_EQ(c.y.Get(t, h), want[size_t(h)]) << "token " << t << ", " << h;
  }
  EXPECT_TRUE(c.y.PoisonIntact());
  for (const auto& w : c.tensors) EXPECT_TRUE(w.PoisonIntact());
}

TEST(Moe, ExactIntegersAtAwkwardSizes) {
  auto stream = MakeCpuStream(2);
  Random rng(1);
  constexpr int64_t kTokens[] = {0, 1, 2, 7, 13, 33}, kSizes[] = {1, 2, 15, 16, 17, 33, 65};
  for (int i = 0; i < 60; ++i) {
    const int32_t experts = int32_t(rng.Int(1, 9)), top = int32_t(rng.Int(1, experts));
    const Problem p =
        Make(kTokens[rng.Int(0, 5)], experts, top, kSizes[rng.Int(0, 6)], kSizes[rng.Int(0, 6)], kTypes[rng.Int(0, 2)],
             kTypes[rng.Int(0, 2)], kLayouts[rng.Int(0, 1)], kLayouts[rng.Int(0, 1)]);
    Case c(p, rng.Chance(0.5) ? Storage::kStacked : Storage::kSeparate, rng.Int(0, 3));
    FillExact(c, rng);
    c.RandomIds(rng);
    for (const MoeBackend& b : Backends()) ExpectOracle(c, b.name, *stream);
    if (HasFatalFailure()) return;
  }
}

TEST(Moe, ExactIntegersOnEveryInstructionSet) {
  auto stream = MakeCpuStream(3);
  ForEachSimdTarget([&] {
    Random rng(2);
    for (const DType io : kTypes) {
      for (const Layout layout : kLayouts) {
        Case c(Make(40, 6, 3, 70, 37, io, io, layout, layout), Storage::kStacked, 1);
        FillExact(c, rng);
        c.RandomIds(rng);
        ExpectOracle(c, "cpu", *stream);
      }
    }
  });
}

TEST(Moe, ClampedSwiGlu) {
  auto stream = MakeCpuStream(2);
  Random rng(3);
  for (const float limit : {0.5f, 3.0f, 40.0f}) {
    // A limit below 32 clamps gates to where silu is not the identity: keep those at 0.
    Case c(Make(9, 4, 2, 48, 20, DType::kF32, DType::kF32, Layout::kOutputMajor, Layout::kOutputMajor, limit));
    FillExact(c, rng);
    if (limit < 32) {
      for (const ExpertWeights& w : c.experts) c.Fill(w.gate, [] { return 0.0; });
    }
    c.RandomIds(rng);
    for (const MoeBackend& b : Backends()) ExpectOracle(c, b.name, *stream);
  }
}

TEST(Moe, RoutingEdgeCases) {
  auto stream = MakeCpuStream(2);
  Random rng(4);
  const auto run = [&](const Problem& p, const std::function<int32_t(int64_t, int64_t)>& id) {
    Case c(p, Storage::kSeparate, 1);
    FillExact(c, rng);
    for (int64_t t = 0; t < p.tokens; ++t) {
      for (int64_t k = 0; k < p.per_token; ++k) c.Id(t, k) = id(t, k);
    }
    for (const MoeBackend& b : Backends()) ExpectOracle(c, b.name, *stream);
  };
  const Problem wide = Make(30, 8, 3, 33, 17, DType::kBF16, DType::kBF16);
  {
    SCOPED_TRACE("all tokens on the same experts");
    run(wide, [](int64_t, int64_t k) { return int32_t(k) + 2; });
  }
  {
    SCOPED_TRACE("more rows of one expert than a piece holds");
    run(Make(600, 3, 1, 8, 4, DType::kF32, DType::kF32), [](int64_t, int64_t) { return 1; });
  }
  {
    SCOPED_TRACE("more tokens than a block holds");
    run(Make(2100, 3, 2, 4, 3, DType::kF32, DType::kF32), [](int64_t t, int64_t k) { return int32_t((t + k) % 3); });
  }
  {
    SCOPED_TRACE("more experts than tokens");
    run(Make(2, 40, 2, 33, 17, DType::kF32, DType::kF32), [](int64_t t, int64_t k) { return int32_t(39 - t * 2 - k); });
  }
  {
    SCOPED_TRACE("empty slots, and tokens of nothing else");
    run(wide, [](int64_t t, int64_t k) { return t % 3 == 0 || k == t % 3 ? -1 : int32_t(k); });
  }
  {
    SCOPED_TRACE("nobody names anything");
    run(wide, [](int64_t, int64_t) { return -7; });
  }
  {
    SCOPED_TRACE("an expert named twice");
    run(wide, [](int64_t, int64_t k) { return k == 1 ? 5 : 4; });
  }
  {
    SCOPED_TRACE("no tokens");
    run(Make(0, 8, 3, 33, 17, DType::kF32, DType::kF32), [](int64_t, int64_t) { return 0; });
  }
}

TEST(Moe, ExpertsThatNobodyNamesAreNotRead) {
  auto stream = MakeCpuStream(2);
  Random rng(5);
  Case c(Make(20, 6, 2, 40, 24, DType::kF32, DType::kF32));
  FillExact(c, rng);
  for (int64_t t = 0; t < 20; ++t) {
    c.Id(t, 0) = 4;
    c.Id(t, 1) = 1;
  }
  for (const int32_t e : {0, 2, 3, 5}) {
    for (const TensorView& w : {c.experts[size_t(e)].gate, c.experts[size_t(e)].up, c.experts[size_t(e)].down}) {
      c.Fill(w, [] { return std::nan(""); });
    }
  }
  for (const MoeBackend& b : Backends()) ExpectOracle(c, b.name, *stream);
}

TEST(Moe, InPlace) {
  auto stream = MakeCpuStream(2);
  Random rng(6);
  Case c(Make(1300, 4, 2, 16, 8, DType::kF32, DType::kF32));
  FillExact(c, rng);
  c.RandomIds(rng);
  for (const MoeBackend& b : Backends()) {
    const Status apart = c.Run(b.name, *stream);
    ASSERT_TRUE(apart.ok()) << apart.message();
    Case same = c;
    Args args = c.args();
    args.x = args.y = same.x.view();
    const Status s = same.Run(b.name, *stream, args);
    ASSERT_TRUE(s.ok()) << s.message();
    for (int64_t t = 0; t < c.p.tokens; ++t) {
      for (int64_t h = 0; h < c.p.hidden; ++h) ASSERT_EQ(same.x.Get(t, h), c.y.Get(t, h));
    }
  }
}

void FillNormal(Case& c, Random& rng) {
  c.Fill(c.x, [&] { return rng.Normal(); });
  for (const ExpertWeights& w : c.experts) {
    c.Fill(w.gate, [&] { return rng.Normal() / std::sqrt(double(c.p.hidden)); });
    c.Fill(w.up, [&] { return rng.Normal() / std::sqrt(double(c.p.hidden)); });
    c.Fill(w.down, [&] { return rng.Normal() / std::sqrt(double(c.p.inter)); });
  }
  c.Fill(c.weights, [&] { return rng.Uniform(); });
}

/// Worst case of |cpu - reference| for one output: sums of n fp32 products err by (n + 2) eps of the sum of magnitudes,
/// silu and the product by a few eps, and every r() may fall to the neighbouring value: one unit of the type.
std::vector<double> Bound(Case& c, int64_t t) {
  const Problem& p = c.p;
  const double eps = 0x1p-23;
  const double unit = p.io == DType::kF32 ? 0x1p-23 : p.io == DType::kBF16 ? 0x1p-7 : 0x1p-10;
  // Below the normal range a unit is absolute; flushing subnormals to zero loses no more.
  const double tiny = p.io == DType::kF16 ? 0x1p-24 : 0x1p-126;
  std::vector<double> value(size_t(p.hidden), 0.0), bound(size_t(p.hidden), 0.0);
  for (int32_t k = 0; k < p.per_token; ++k) {
    const ExpertWeights& w = c.experts[size_t(c.Id(t, k))];
    std::vector<double> a(size_t(p.inter)), da(size_t(p.inter));
    for (int64_t i = 0; i < p.inter; ++i) {
      double gate = 0, up = 0, gate_size = 0, up_size = 0;
      for (int64_t h = 0; h < p.hidden; ++h) {
        const double g = c.x.Get(t, h) * c.Get(w.gate, i, h), u = c.x.Get(t, h) * c.Get(w.up, i, h);
        gate += g, up += u, gate_size += std::abs(g), up_size += std::abs(u);
      }
      const double n = double(p.hidden + 2) * eps;
      const double dgate = n * gate_size + unit * std::abs(gate) + tiny, dup = n * up_size + unit * std::abs(up) + tiny;
      const double silu = gate / (1 + std::exp(-gate));
      const double dsilu = 1.1 * dgate + (unit + 8 * eps) * std::abs(silu) + tiny;  // |silu'| < 1.1
      a[size_t(i)] = silu * up;
      da[size_t(i)] = dsilu * (std::abs(up) + dup) + std::abs(silu) * dup + unit * std::abs(silu * up) + tiny;
    }
    for (int64_t h = 0; h < p.hidden; ++h) {
      double out = 0, size = 0, error = 0;
      for (int64_t i = 0; i < p.inter; ++i) {
        const double d = c.Get(w.down, h, i);
        out += a[size_t(i)] * d;
        size += std::abs(a[size_t(i)] * d);
        error += da[size_t(i)] * std::abs(d);
      }
      error += double(p.inter + 2) * eps * (size + error) + unit * (std::abs(out) + error) + tiny;
      const double weight = std::abs(c.weights.Get(t, k));
      error = weight * error + unit * weight * (std::abs(out) + error) + tiny;
      value[size_t(h)] += weight * std::abs(out);
      bound[size_t(h)] += error + unit * (value[size_t(h)] + error);  // and the rounded sum
    }
  }
  return bound;
}

TEST(Moe, WithinBoundsOfTheReference) {
  auto stream = MakeCpuStream(2);
  Random rng(7);
  for (const DType io : kTypes) {
    for (const DType w : {io, DType::kF32}) {
      for (const int64_t tokens : {1, 6, 40}) {
        Case c(Make(tokens, 5, 2, 130, 70, io, w, kLayouts[rng.Int(0, 1)], kLayouts[rng.Int(0, 1)],
                    tokens == 6 ? 0.7f : 0.0f));
        FillNormal(c, rng);
        c.RandomIds(rng);
        SCOPED_TRACE(c.p.ToString());
        Case r = c;
        r.experts = c.experts;
        ASSERT_TRUE(c.Run("cpu", *stream).ok());
        Args args = c.args();
        args.y = r.y.view();
        ASSERT_TRUE(c.Run("reference", *stream, args).ok());
        for (int64_t t = 0; t < tokens; ++t) {
          const auto bound = Bound(c, t);
          for (int64_t h = 0; h < c.p.hidden; ++h) {
            ASSERT_LE(std::abs(c.y.Get(t, h) - r.y.Get(t, h)), bound[size_t(h)]) << t << "," << h;
          }
        }
      }
    }
  }
}

TEST(Moe, BatchEqualsAloneWhateverTheThreads) {
  Random rng(8);
  for (const DType io : {DType::kF32, DType::kBF16}) {
    Case c(Make(150, 7, 3, 96, 80, io, io));
    FillNormal(c, rng);
    c.RandomIds(rng);
    auto one = MakeCpuStream(1), five = MakeCpuStream(5);
    ASSERT_TRUE(c.Run("cpu", *five).ok());
    for (int64_t t = 0; t < c.p.tokens; ++t) {
      Problem p = c.p;
      p.tokens = 1;
      Case alone(p);
      for (int64_t h = 0; h < p.hidden; ++h) alone.x.Set(0, h, c.x.Get(t, h));
      // Slots in another order: the sum follows the experts.
      for (int32_t k = 0; k < p.per_token; ++k) {
        alone.Id(0, k) = c.Id(t, p.per_token - 1 - k);
        alone.weights.Set(0, k, c.weights.Get(t, p.per_token - 1 - k));
      }
      Args args = alone.args();
      args.experts = c.experts;
      ASSERT_TRUE(alone.Run("cpu", *one, args).ok());
      for (int64_t h = 0; h < p.hidden; ++h) ASSERT_EQ(alone.y.Get(0, h), c.y.Get(t, h)) << "token " << t;
    }
  }
}

TEST(Moe, NanStaysWithItsToken) {
  auto stream = MakeCpuStream(2);
  Random rng(9);
  for (const MoeBackend& b : Backends()) {
    Case c(Make(20, 3, 2, 33, 17, DType::kBF16, DType::kBF16));
    FillNormal(c, rng);
    c.RandomIds(rng);
    c.x.Set(11, 5, std::nan(""));
    ASSERT_TRUE(c.Run(b.name, *stream).ok());
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t h = 0; h < c.p.hidden; ++h) ASSERT_EQ(std::isnan(c.y.Get(t, h)), t == 11) << b.name << " " << t;
    }
  }
}

}  // namespace
}  // namespace fluvial::ops::moe
