// SPDX-License-Identifier: Apache-2.0
#include "ops/hyper_connection/hyper_connection.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "ops/common/rounding_interval_test.h"
#include "ops/common/simd_targets_test.h"
#include "ops/common/strided_test.h"

namespace fluvial::ops::hyper_connection {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// One call of everything, in poisoned memory.
struct Case {
  Case(DType io, int32_t s, int64_t t, int64_t h)
      : tokens(t),
        hidden(h),
        streams(io, t, 1, s * h),
        x(io, t, 1, h),
        y(io, t, 1, h),
        projected(DType::kF32, t, 1, (2 + s) * s),
        base(DType::kF32, 1, 1, (2 + s) * s, 0),
        scale(DType::kF32, 1, 1, 3, 0),
        post(DType::kF32, t, 1, s),
        mix(DType::kF32, t, 1, s * s) {
    spec.streams = s;
    std::mt19937 rng(static_cast<uint32_t>(17 * s + h));
    std::normal_distribution<double> normal;
    for (Strided* v : {&streams, &y, &projected, &base, &scale}) v->Fill([&] { return normal(rng); });
  }
  CollapseArgs collapse() {
    CollapseArgs a;
    a.streams = streams.view(true);
    a.projected = projected.view(true);
    a.base = Row(base);
    a.scale = Row(scale);
    a.x = x.view(true);
    a.post = post.view(true);
    a.mix = mix.view(true);
    return a;
  }
  ExpandArgs expand() { return {streams.view(true), y.view(true), post.view(true), mix.view(true)}; }
  static TensorView Row(Strided& v) {
    const TensorView m = v.view(true);
    return TensorView(m.data, m.dtype, {m.dims[1]});
  }

  Spec spec;
  int64_t tokens, hidden;
  Strided streams, x, y, projected, base, scale, post, mix;
};

/// The header's formula in fp64.
struct Routed {
  std::vector<double> pre, post, mix;
};
Routed Route(const Case& c, int64_t t) {
  const int32_t n = c.spec.streams;
  double squares = 0;
  for (int64_t i = 0; i < n * c.hidden; ++i) squares += std::pow(c.streams.Get(t, 0, i), 2);
  const double norm = std::sqrt(squares / static_cast<double>(n * c.hidden) + c.spec.norm_eps), eps = c.spec.eps;
  const auto m = [&](int32_t i, int32_t k) {
    return c.projected.Get(t, 0, i) / norm * c.scale.Get(0, 0, k) + c.base.Get(0, 0, i);
  };
  Routed r;
  for (int32_t s = 0; s < n; ++s) {
    r.pre.push_back(1 / (1 + std::exp(-m(s, 0))) + eps);
    r.post.push_back(2 / (1 + std::exp(-m(n + s, 1))));
  }
  for (int32_t s = 0; s < n; ++s) {
    double sum = 0;
    for (int32_t u = 0; u < n; ++u) sum += std::exp(m(2 * n + s * n + u, 2));
    for (int32_t u = 0; u < n; ++u) r.mix.push_back(std::exp(m(2 * n + s * n + u, 2)) / sum + eps);
  }
  const auto columns = [&] {
    for (int32_t u = 0; u < n; ++u) {
      double sum = eps;
      for (int32_t s = 0; s < n; ++s) sum += r.mix[static_cast<size_t>(s * n + u)];
      for (int32_t s = 0; s < n; ++s) r.mix[static_cast<size_t>(s * n + u)] /= sum;
    }
  };
  const auto rows = [&] {
    for (int32_t s = 0; s < n; ++s) {
      double sum = eps;
      for (int32_t u = 0; u < n; ++u) sum += r.mix[static_cast<size_t>(s * n + u)];
      for (int32_t u = 0; u < n; ++u) r.mix[static_cast<size_t>(s * n + u)] /= sum;
    }
  };
  columns();
  for (int32_t i = 1; i < c.spec.iterations; ++i) {
    rows();
    columns();
  }
  return r;
}

// Relative error of a weight, in fp32 roundoffs: the sum of squares (n terms in lanes), the argument of the exponential
// (|m| < 16, so its error counts 16 times), exp and divisions, and two sums with a division per iteration.
double WeightUnits(const Case& c) {
  return 64 + static_cast<double>(c.spec.streams * c.hidden) / 8 + 2.0 * c.spec.iterations * (c.spec.streams + 2);
}

TEST(HyperConnection, CollapseIsTheFormula) {
  auto stream = MakeCpuStream(3);
  ForEachSimdTarget([&] {
    for (const DType io : kTypes) {
      for (const int32_t s : {1, 2, 4, 8}) {
        for (const int64_t h : {1, 7, 16, 67}) {
          Case c(io, s, 9, h);
          ASSERT_TRUE(Collapse(*stream, c.spec, c.collapse()).ok());
          const double units = WeightUnits(c);
          for (int64_t t = 0; t < c.tokens; ++t) {
            const Routed want = Route(c, t);
            for (int32_t i = 0; i < s; ++i) {
              ASSERT_NEAR(c.post.Get(t, 0, i), want.post[static_cast<size_t>(i)], 2 * units * kUnit);
            }
            for (int32_t i = 0; i < s * s; ++i) {
              ASSERT_NEAR(c.mix.Get(t, 0, i), want.mix[static_cast<size_t>(i)], units * kUnit) << s << " " << h;
            }
            for (int64_t i = 0; i < h; ++i) {
              double sum = 0, size = 0;
              for (int32_t k = 0; k < s; ++k) {
                sum += want.pre[static_cast<size_t>(k)] * c.streams.Get(t, 0, k * h + i);
                size += std::abs(want.pre[static_cast<size_t>(k)] * c.streams.Get(t, 0, k * h + i));
              }
              const Interval ok = Interval(sum).Plus((units + s) * kUnit * size).Rounded(io);
              ASSERT_TRUE(ok.Contains(c.x.Get(t, 0, i))) << s << " " << h << " " << i;
            }
          }
          for (const Strided* v : {&c.x, &c.post, &c.mix}) v->ExpectGapsUntouched();
        }
      }
    }
  });
}

TEST(HyperConnection, MixIsDoublyStochastic) {
  auto stream = MakeCpuStream(1);
  Case c(DType::kF32, 4, 50, 12);
  ASSERT_TRUE(Collapse(*stream, c.spec, c.collapse()).ok());
  for (int64_t t = 0; t < 50; ++t) {
    for (int32_t i = 0; i < 4; ++i) {
      double column = 0;
      for (int32_t s = 0; s < 4; ++s) column += c.mix.Get(t, 0, s * 4 + i);
      EXPECT_NEAR(column, 1, 1e-5);  // columns were divided last; eps 1e-6 per sum
    }
  }
}

// Small whole numbers: every product and sum is exact in all three types, so the order of indexes is what is tested.
TEST(HyperConnection, ExpandOfWholeNumbersIsExact) {
  auto stream = MakeCpuStream(3);
  ForEachSimdTarget([&] {
    for (const DType io : kTypes) {
      for (const int32_t s : {1, 3, 4, 8}) {
        for (const int64_t h : {1, 5, 16, 33}) {
          Case c(io, s, 6, h);
          std::mt19937 rng(5);
          const auto small = [&] { return static_cast<double>(rng() % 5) - 2; };
          for (Strided* v : {&c.streams, &c.y, &c.post, &c.mix}) v->Fill(small);
          const Strided before = c.streams;
          ASSERT_TRUE(Expand(*stream, c.spec, c.expand()).ok());
          for (int64_t t = 0; t < 6; ++t) {
            for (int64_t u = 0; u < s; ++u) {
              for (int64_t i = 0; i < h; ++i) {
                double want = c.post.Get(t, 0, u) * c.y.Get(t, 0, i);
                for (int64_t k = 0; k < s; ++k) want += c.mix.Get(t, 0, k * s + u) * before.Get(t, 0, k * h + i);
                ASSERT_EQ(c.streams.Get(t, 0, u * h + i), want);
              }
            }
          }
          c.streams.ExpectGapsUntouched();
        }
      }
    }
  });
}

// bf16: post and C are rounded, then both terms, then their sum.
TEST(HyperConnection, ExpandRoundsWhereTransformersDoes) {
  auto stream = MakeCpuStream(1);
  Case c(DType::kBF16, 4, 20, 40);
  ASSERT_TRUE(Collapse(*stream, c.spec, c.collapse()).ok());
  const Strided before = c.streams;
  ASSERT_TRUE(Expand(*stream, c.spec, c.expand()).ok());
  const DType io = DType::kBF16;
  for (int64_t t = 0; t < 20; ++t) {
    for (int64_t u = 0; u < 4; ++u) {
      for (int64_t i = 0; i < 40; ++i) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < 4; ++k) {
          const double term = Interval(c.mix.Get(t, 0, k * 4 + u)).Rounded(io).lo * before.Get(t, 0, k * 40 + i);
          sum += term;
          size += std::abs(term);
        }
        const Interval added = Interval(Interval(c.post.Get(t, 0, u)).Rounded(io).lo * c.y.Get(t, 0, i)).Rounded(io);
        const Interval mixed = Interval(sum).Plus(4 * kUnit * size).Rounded(io);
        ASSERT_TRUE((added + mixed).Rounded(io).Contains(c.streams.Get(t, 0, u * 40 + i)));
      }
    }
  }
}

TEST(HyperConnection, SpreadAndMean) {
  auto stream = MakeCpuStream(2);
  for (const DType io : kTypes) {
    Case c(io, 4, 5, 19);
    ASSERT_TRUE(Spread(*stream, c.spec, c.y.view(true), c.streams.view(true)).ok());
    c.streams.ForEach([&](int64_t t, int64_t, int64_t i) { EXPECT_EQ(c.streams.Get(t, 0, i), c.y.Get(t, 0, i % 19)); });
    ASSERT_TRUE(Mean(*stream, c.spec, c.streams.view(true), c.x.view(true)).ok());
    c.x.ForEach([&](int64_t t, int64_t, int64_t i) { EXPECT_EQ(c.x.Get(t, 0, i), c.y.Get(t, 0, i)); });
    c.x.ExpectGapsUntouched();
    c.streams.ExpectGapsUntouched();
  }
}

TEST(HyperConnection, BadInput) {
  auto stream = MakeCpuStream(1);
  const auto expect = [&](auto change, std::string_view text) {
    Case c(DType::kBF16, 4, 3, 8);
    CollapseArgs a = c.collapse();
    change(c.spec, a);
    const Status s = Collapse(*stream, c.spec, a);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Spec& s, CollapseArgs&) { s.streams = 9; }, "streams is 9");
  expect([](Spec& s, CollapseArgs&) { s.iterations = 0; }, "iterations is 0");
  expect([](Spec& s, CollapseArgs&) { s.norm_eps = 0; }, "norm_eps");
  expect([](Spec&, CollapseArgs& a) { a.x.dims[1] = 7; }, "streams must be");
  expect([](Spec&, CollapseArgs& a) { a.x.dtype = DType::kF32; }, "x must be");
  expect([](Spec&, CollapseArgs& a) { a.x.data = a.streams.data; }, "x overlaps");
  expect([](Spec&, CollapseArgs& a) { a.projected.dims[1] = 20; }, "projected must be");
  expect([](Spec&, CollapseArgs& a) { a.base = {}; }, "base must be");
  expect([](Spec&, CollapseArgs& a) { a.scale.dims[0] = 4; }, "scale must be");
  expect([](Spec&, CollapseArgs& a) { a.mix.dims[1] = 4; }, "mix must be");
}

}  // namespace
}  // namespace fluvial::ops::hyper_connection
