// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/norm.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "ops/common/rounding_interval_test.h"
#include "ops/common/simd_targets_test.h"
#include "ops/common/strided_test.h"

namespace fluvial::ops::norm {
namespace {

constexpr Form kForms[] = {Form::kRms,   Form::kRmsZeroCentred, Form::kRmsSiluGate, Form::kRmsSigmoidGate,
                           Form::kLayer, Form::kUnweighted};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

bool Gated(Form f) { return f == Form::kRmsSiluGate || f == Form::kRmsSigmoidGate; }

struct Case {
  Case(Form form, DType io, DType weight_type, int64_t t, int64_t h, int64_t n, bool with_residual)
      : form(form),
        io(io),
        n(n),
        with_residual(with_residual),
        x(io, t, h, n),
        gate(io, t, h, n),
        residual(io, t, h, n),
        y(io, t, h, n),
        weight(weight_type, 1, 1, n, 0),
        bias(weight_type, 1, 1, n, 0) {}

  Args args() {
    Args a;
    a.form = form;
    a.eps = 1e-5f;
    a.x = x.view();
    a.y = y.view();
    auto vector = [&](Strided& s) {
      TensorView v = s.view();
      return TensorView(v.data, v.dtype, {n});
    };
    if (form != Form::kUnweighted) a.weight = vector(weight);
    if (form == Form::kLayer) a.bias = vector(bias);
    if (Gated(form)) a.gate = gate.view();
    if (with_residual) a.residual = residual.view();
    return a;
  }
  void Fill(uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<double> normal;
    for (Strided* s : {&x, &gate, &residual, &weight, &bias}) s->Fill([&] { return 0.3 + normal(rng); });
  }

  Form form;
  DType io;
  int64_t n;
  bool with_residual;
  Strided x, gate, residual, y, weight, bias;
};

Interval Sigmoid(double z) { return Interval(1 / (1 + std::exp(-z))).Widen(6); }
Interval Silu(double z) { return Interval(z / (1 + std::exp(-z))).Widen(6); }

/// Every y of row (i, j) must lie in the interval of the formulas in norm.h. Sums of n terms have n roundings.
void ExpectRow(const Case& c, const std::vector<double>& x, int64_t i, int64_t j) {
  const double n = double(c.n);
  double sum = 0, magnitude = 0;
  for (double v : x) sum += v, magnitude += std::abs(v);
  const bool centred = c.form == Form::kLayer;
  const Interval mean = centred ? Interval(sum / n).Plus((n + 1) * kUnit * magnitude / n) : Interval(0);
  Interval squares = 0;
  for (double v : x) {
    const Interval d = (Interval(v) - mean).Widen(1);
    const double hi = std::max(std::abs(d.lo), std::abs(d.hi));
    const double lo = d.lo <= 0 && d.hi >= 0 ? 0 : std::min(std::abs(d.lo), std::abs(d.hi));
    squares = squares + Interval(lo * lo, hi * hi);
  }
  squares = squares.Widen(n + 2);
  const double eps = 1e-5f;
  const Interval rstd = Interval(1 / std::sqrt(squares.hi / n + eps), 1 / std::sqrt(squares.lo / n + eps)).Widen(4);
  for (int64_t l = 0; l < c.n; ++l) {
    const Interval t = ((Interval(x[l]) - mean).Widen(centred) * rstd).Widen(1);
    const double w = c.weight.Get(0, 0, l), z = c.gate.Get(i, j, l);
    Interval want = 0;
    switch (c.form) {
      case Form::kRms:
        want = (t.Rounded(c.io) * w).Widen(1);
        break;
      case Form::kRmsZeroCentred:
        want = (t * Interval(1 + w).Widen(1)).Widen(1);
        break;
      case Form::kRmsSiluGate:
        want = ((t.Rounded(c.io) * w).Widen(1).Rounded(c.io) * Silu(z)).Widen(1);
        break;
      case Form::kRmsSigmoidGate:
        want = (((t * w).Widen(1)) * Sigmoid(z)).Widen(1);
        break;
      case Form::kLayer:
        want = ((t * w).Widen(1) + c.bias.Get(0, 0, l)).Widen(1);
        break;
      case Form::kUnweighted:
        want = t;
        break;
    }
    want = want.Rounded(c.io);
    const double got = c.y.Get(i, j, l);
    ASSERT_TRUE(want.Contains(got)) << Name(c.form) << " " << Name(c.io) << " n=" << c.n << " element " << l << ": "
                                    << got << " not in [" << want.lo << ", " << want.hi << "]";
  }
}

void ExpectRight(Case& c, uint32_t seed) {
  SCOPED_TRACE("seed=" + std::to_string(seed));
  c.Fill(seed);
  std::optional<Strided> before;
  if (c.with_residual) before = c.residual;
  auto stream = MakeCpuStream(2);
  const Status s = norm::Run(*stream, c.args());
  ASSERT_TRUE(s.ok()) << s.message();
  std::vector<double> row(c.n);
  const TensorView shape = c.args().x;
  for (int64_t i = 0; i < shape.dim(0); ++i) {
    for (int64_t j = 0; j < shape.dim(1); ++j) {
      for (int64_t l = 0; l < c.n; ++l) {
        row[l] = c.x.Get(i, j, l);
        if (!c.with_residual) continue;
        // The stored sum is exact up to one rounding.
        const double sum = before->Get(i, j, l) + row[l];
        row[l] = c.residual.Get(i, j, l);
        ASSERT_TRUE(Interval(sum).Rounded(c.io).Contains(row[l]));
      }
      ExpectRow(c, row, i, j);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  c.y.ExpectGapsUntouched();
  c.residual.ExpectGapsUntouched();
}

TEST(Norm, FormulasAndRoundingPointsOnEveryInstructionSet) {
  ForEachSimdTarget([] {
    for (Form form : kForms) {
      for (DType io : kTypes) {
        for (int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 128, 513, 1024, 1100}) {
          Case c(form, io, n % 2 ? DType::kF32 : io, 3, 2, n, n % 3 == 0);
          ExpectRight(c, 17);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(Norm, RowsDoNotDependOnOneAnother) {
  for (Form form : kForms) {
    Case many(form, DType::kBF16, DType::kBF16, 40, 3, 640, false);
    many.Fill(18);
    auto two = MakeCpuStream(2);
    ASSERT_TRUE(norm::Run(*two, many.args()).ok());
    auto one = MakeCpuStream(1);
    for (int64_t t : {0, 7, 39}) {
      Case alone(form, DType::kBF16, DType::kBF16, 1, 3, 640, false);
      alone.Fill(18);
      alone.x.ForEach([&](int64_t, int64_t j, int64_t l) {
        alone.x.Set(0, j, l, many.x.Get(t, j, l));
        alone.gate.Set(0, j, l, many.gate.Get(t, j, l));
        alone.weight.Set(0, 0, l, many.weight.Get(0, 0, l));
        alone.bias.Set(0, 0, l, many.bias.Get(0, 0, l));
      });
      ASSERT_TRUE(norm::Run(*one, alone.args()).ok());
      alone.y.ForEach([&](int64_t, int64_t j, int64_t l) { ASSERT_EQ(alone.y.Get(0, j, l), many.y.Get(t, j, l)); });
    }
  }
}

TEST(Norm, InPlaceGivesTheSameBits) {
  for (Form form : kForms) {
    Case c(form, DType::kBF16, DType::kF32, 5, 2, 700, false);
    c.Fill(19);
    auto stream = MakeCpuStream(1);
    ASSERT_TRUE(norm::Run(*stream, c.args()).ok());
    Args a = c.args();
    a.y = a.x;
    ASSERT_TRUE(norm::Run(*stream, a).ok());
    EXPECT_TRUE(c.x.SameBytes(c.y)) << Name(form);
  }
}

TEST(Norm, ZeroRowsStayFiniteAndEmptyIsFine) {
  Case c(Form::kRms, DType::kF32, DType::kF32, 2, 1, 64, false);
  c.Fill(1);
  c.x.Fill([] { return 0.0; });
  auto stream = MakeCpuStream(1);
  ASSERT_TRUE(norm::Run(*stream, c.args()).ok());
  c.y.ForEach([&](int64_t i, int64_t j, int64_t l) { ASSERT_EQ(c.y.Get(i, j, l), 0); });
  Args a = c.args();
  a.x.dims[0] = a.y.dims[0] = 0;
  a.x.data = a.y.data = nullptr;
  EXPECT_TRUE(norm::Run(*stream, a).ok());
}

TEST(Norm, BadInput) {
  auto expect = [](const char* part, Form form, auto&& change) {
    Case c(form, DType::kBF16, DType::kBF16, 3, 2, 16, false);
    Args a = c.args();
    ASSERT_TRUE(Validate(a).ok()) << Validate(a).message();
    change(a);
    const Status s = Validate(a);
    ASSERT_EQ(s.code(), Code::kInvalidArgument) << part;
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  expect("same shape", Form::kRms, [](Args& a) { a.y.dims[1] = 1; });
  expect("eps=0", Form::kRms, [](Args& a) { a.eps = 0; });
  expect("eps=nan", Form::kRms, [](Args& a) { a.eps = std::nanf(""); });
  expect("needs a weight", Form::kRms, [](Args& a) { a.weight = {}; });
  expect("takes no weight", Form::kUnweighted, [](Args& a) { a.weight = TensorView(a.x.data, DType::kF32, {16}); });
  expect("have 16 elements", Form::kRms, [](Args& a) { a.weight.dims[0] = 15; });
  expect("needs a gate", Form::kRmsSiluGate, [](Args& a) { a.gate = {}; });
  expect("takes no gate", Form::kRms, [](Args& a) { a.gate = a.x; });
  expect("takes no bias", Form::kRms, [](Args& a) { a.bias = a.weight; });
  expect("inner stride", Form::kRms, [](Args& a) { a.x.strides[2] = 2; });
  expect("use fp32", Form::kRms, [](Args& a) { a.x.dtype = DType::kI16; });
  expect("no data", Form::kRms, [](Args& a) { a.x.data = nullptr; });
  expect("one type", Form::kRms, [](Args& a) { a.residual = a.x, a.residual.dtype = DType::kF16; });
  expect("rank", Form::kRms, [](Args& a) { a.x.rank = 1; });
}

}  // namespace
}  // namespace fluvial::ops::norm
