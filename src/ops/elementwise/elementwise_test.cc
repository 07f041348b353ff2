// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "ops/common/rounding_interval_test.h"
#include "ops/common/simd_targets_test.h"
#include "ops/common/strided_test.h"

namespace fluvial::ops::elementwise {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr double kInf = std::numeric_limits<double>::infinity();

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Exact(Function f, double x) {
  switch (f) {
    case Function::kSigmoid:
      return Sigmoid(x);
    case Function::kSilu:
      return x * Sigmoid(x);
    case Function::kGelu:
      return 0.5 * x * std::erfc(-x * 0.70710678118654752440);
    case Function::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case Function::kSoftplus:
      return x > 20 ? x : std::log1p(std::exp(x));
  }
  return 0;
}

/// The fp32 evaluation's error. Sigmoid, silu: exp (1 unit in the last place = 2 roundoffs), add, divide. Softplus: exp
/// and log1p (2 units). The gelus add 1 + erf or 1 + tanh, so their error is relative to |x| and not to the result: erf
/// to 3 units below 1, the argument of tanh to 4 roundoffs and tanh to 4 units, times x/2.
Interval Evaluated(Function f, double x) {
  const double exact = Exact(f, x);
  switch (f) {
    case Function::kGelu:
      return Interval(exact).Plus(6 * kUnit * std::abs(x)).Widen(2);
    case Function::kGeluTanh:
      return Interval(exact).Plus(8 * kUnit * std::abs(x)).Widen(2);
    case Function::kSoftplus:
      return Interval(exact).Widen(10);
    default:
      // exp(-x) overflows fp32 below -88.7, in transformers as here: the result is then zero.
      if (x < -88) return Interval(std::min(exact, 0.0), std::max(exact, 0.0)).Widen(6);
      return Interval(exact).Widen(6);
  }
}

/// Ordinary values, values near every branch, and the edges of the range.
std::function<double()> Values(uint32_t seed) {
  return [rng = std::mt19937(seed)]() mutable -> double {
    constexpr double special[] = {0,  -0.0, 1,   -1,   4,   -4,    20,     20.5, -20,  88,
                                  90, -88,  -90, -105, 105, 1e-30, -1e-30, 6e4,  -6e4, 0.7071};
    if (rng() % 4 == 0) return special[rng() % std::size(special)];
    return std::normal_distribution<double>(0, rng() % 2 ? 1 : 6)(rng);
  };
}

struct Tensors {
  Tensors(DType in, DType out, int64_t a, int64_t b, int64_t c) : x(in, a, b, c), z(in, a, b, c), y(out, a, b, c) {
    x.Fill(Values(31)), z.Fill(Values(32));
  }
  Strided x, z, y;
};

constexpr int64_t kWidths[] = {1, 2, 15, 16, 17, 65, 511, 512, 513, 1300};

/// Runs `call` on every pair of types, width and instruction set; every y must lie in want(i, j, l) rounded to y.
void ExpectEverywhere(const std::function<Status(Stream&, Tensors&)>& call,
                      const std::function<Interval(const Tensors&, DType, int64_t, int64_t, int64_t)>& want) {
  ForEachSimdTarget([&] {
    for (DType in : kTypes) {
      for (DType out : kTypes) {
        for (int64_t n : kWidths) {
          SCOPED_TRACE(std::string(Name(in)) + " -> " + std::string(Name(out)) + " n=" + std::to_string(n) +
                       " seeds 31, 32");
          Tensors t(in, out, 2, 3, n);
          auto stream = MakeCpuStream(1);
          const Status s = call(*stream, t);
          ASSERT_TRUE(s.ok()) << s.message();
          t.y.ForEach([&](int64_t i, int64_t j, int64_t l) {
            const Interval w = want(t, out, i, j, l).Rounded(out);
            ASSERT_TRUE(w.Contains(t.y.Get(i, j, l))) << "x=" << t.x.Get(i, j, l) << " z=" << t.z.Get(i, j, l) << ": "
                                                      << t.y.Get(i, j, l) << " not in [" << w.lo << ", " << w.hi << "]";
          });
          t.y.ExpectGapsUntouched();
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(Elementwise, Functions) {
  for (Function f : {Function::kSigmoid, Function::kSilu, Function::kGelu, Function::kGeluTanh, Function::kSoftplus}) {
    SCOPED_TRACE(Name(f));
    ExpectEverywhere(
        [f](Stream& s, Tensors& t) { return Apply(s, f, t.x.view(), t.y.view()); },
        [f](const Tensors& t, DType, int64_t i, int64_t j, int64_t l) { return Evaluated(f, t.x.Get(i, j, l)); });
  }
}

TEST(Elementwise, FunctionsKeepNanAndKnowInfinity) {
  ForEachSimdTarget([] {
    float x[] = {std::nanf(""), float(kInf), float(-kInf), 3e38f, -3e38f}, y[5];
    auto stream = MakeCpuStream(1);
    for (Function f :
         {Function::kSigmoid, Function::kSilu, Function::kGelu, Function::kGeluTanh, Function::kSoftplus}) {
      SCOPED_TRACE(Name(f));
      ASSERT_TRUE(Apply(*stream, f, TensorView(x, DType::kF32, {5}), TensorView(y, DType::kF32, {5})).ok());
      EXPECT_TRUE(std::isnan(y[0]));
      EXPECT_EQ(y[1], f == Function::kSigmoid ? 1 : kInf);
      EXPECT_EQ(y[3], f == Function::kSigmoid ? 1 : 3e38f);
      EXPECT_EQ(y[4], 0);  // finite input, finite output
    }
  });
}

TEST(Elementwise, SwiGluRoundsSiluFirst) {
  ExpectEverywhere(
      [](Stream& s, Tensors& t) {
        GluArgs a;
        a.gate = t.x.view(), a.up = t.z.view(), a.y = t.y.view();
        return Glu(s, a);
      },
      [](const Tensors& t, DType out, int64_t i, int64_t j, int64_t l) {
        return (Evaluated(Function::kSilu, t.x.Get(i, j, l)).Rounded(out) * t.z.Get(i, j, l)).Widen(1);
      });
}

TEST(Elementwise, ClampedSwiGlu) {
  ExpectEverywhere(
      [](Stream& s, Tensors& t) {
        GluArgs a;
        a.form = GluArgs::Form::kClamped, a.limit = 2.5f;
        a.gate = t.x.view(), a.up = t.z.view(), a.y = t.y.view();
        return Glu(s, a);
      },
      [](const Tensors& t, DType out, int64_t i, int64_t j, int64_t l) {
        const double g = std::min(t.x.Get(i, j, l), 2.5), u = std::clamp(t.z.Get(i, j, l), -2.5, 2.5);
        return (Evaluated(Function::kSilu, g).Rounded(out) * u).Widen(1);
      });
}

TEST(Elementwise, Situ) {
  ExpectEverywhere(
      [](Stream& s, Tensors& t) {
        GluArgs a;
        a.form = GluArgs::Form::kSitu, a.beta = 4, a.linear_beta = 25;
        a.gate = t.x.view(), a.up = t.z.view(), a.y = t.y.view();
        return Glu(s, a);
      },
      [](const Tensors& t, DType, int64_t i, int64_t j, int64_t l) {
        // A tanh is good to 4 units in the last place (8 roundoffs); its argument's rounding adds one, each product
        // one.
        const double g = t.x.Get(i, j, l), u = t.z.Get(i, j, l);
        const Interval left = Interval(4 * std::tanh(g / 4)).Widen(10) * Evaluated(Function::kSigmoid, g);
        return (left.Widen(1) * Interval(25 * std::tanh(u / 25)).Widen(10)).Widen(1);
      });
}

TEST(Elementwise, SigmoidMulRoundsTheGateFirst) {
  ExpectEverywhere([](Stream& s, Tensors& t) { return SigmoidMul(s, t.x.view(), t.z.view(), t.y.view()); },
                   [](const Tensors& t, DType out, int64_t i, int64_t j, int64_t l) {
                     return (Evaluated(Function::kSigmoid, t.z.Get(i, j, l)).Rounded(out) * t.x.Get(i, j, l)).Widen(1);
                   });
}

TEST(Elementwise, SigmoidMulWithOneGatePerRow) {
  ExpectEverywhere(
      [](Stream& s, Tensors& t) {
        TensorView gate = t.z.view();
        gate.dims[2] = 1;
        return SigmoidMul(s, t.x.view(), gate, t.y.view());
      },
      [](const Tensors& t, DType out, int64_t i, int64_t j, int64_t l) {
        return (Evaluated(Function::kSigmoid, t.z.Get(i, j, 0)).Rounded(out) * t.x.Get(i, j, l)).Widen(1);
      });
}

TEST(Elementwise, AddScaleAndCastRoundOnce) {
  ExpectEverywhere([](Stream& s, Tensors& t) { return Add(s, t.x.view(), t.z.view(), t.y.view()); },
                   [](const Tensors& t, DType, int64_t i, int64_t j, int64_t l) {
                     return Interval(float(t.x.Get(i, j, l)) + float(t.z.Get(i, j, l)));
                   });
  ExpectEverywhere([](Stream& s, Tensors& t) { return Scale(s, t.x.view(), 0.3f, t.y.view()); },
                   [](const Tensors& t, DType, int64_t i, int64_t j, int64_t l) {
                     return Interval(float(t.x.Get(i, j, l)) * 0.3f);
                   });
  ExpectEverywhere([](Stream& s, Tensors& t) { return Cast(s, t.x.view(), t.y.view()); },
                   [](const Tensors& t, DType, int64_t i, int64_t j, int64_t l) { return Interval(t.x.Get(i, j, l)); });
}

TEST(Elementwise, CastOfEveryHalfAndItsNeighbourhood) {
  // Every bf16 and fp16 pattern to fp32 and back, and fp32 values on and beside the ties between them.
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    for (float v : {ToFloat(BFloat16{uint16_t(bits)}), ToFloat(Float16{uint16_t(bits)})}) {
      const uint32_t u = std::bit_cast<uint32_t>(v);
      for (uint32_t step : {0u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
        x.push_back(std::bit_cast<float>(u + step));
      }
    }
  }
  std::vector<BFloat16> b(x.size());
  std::vector<Float16> h(x.size());
  const int64_t n = int64_t(x.size());
  const TensorView from(x.data(), DType::kF32, {n});
  ForEachSimdTarget([&] {
    auto stream = MakeCpuStream(1);
    ASSERT_TRUE(Cast(*stream, from, TensorView(b.data(), DType::kBF16, {n})).ok());
    ASSERT_TRUE(Cast(*stream, from, TensorView(h.data(), DType::kF16, {n})).ok());
    for (int64_t i = 0; i < n; ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(ToFloat(b[i])) && std::isnan(ToFloat(h[i])));
        continue;
      }
      ASSERT_EQ(b[i].bits, ToBFloat16(x[i]).bits) << x[i];
      ASSERT_EQ(h[i].bits, ToFloat16(x[i]).bits) << x[i];
    }
  });
}

TEST(Elementwise, InPlaceAndThreads) {
  Tensors one(DType::kBF16, DType::kBF16, 40, 3, 700), two(DType::kBF16, DType::kBF16, 40, 3, 700);
  GluArgs a;
  a.gate = one.x.view(), a.up = one.z.view(), a.y = one.y.view();
  ASSERT_TRUE(Glu(*MakeCpuStream(3), a).ok());
  a.gate = two.x.view(), a.up = two.z.view(), a.y = two.x.view();
  ASSERT_TRUE(Glu(*MakeCpuStream(1), a).ok());
  EXPECT_TRUE(one.y.SameBytes(two.x));
}

template <class T>
void ExpectGatherScatter(DType index_type) {
  for (DType in : kTypes) {
    for (DType out : kTypes) {
      Strided table(in, 7, 1, 33), y(out, 5, 1, 33), back(in, 7, 1, 33);
      table.Fill(Values(33));
      std::vector<T> ids = {6, 0, 3, 3, 5};
      auto stream = MakeCpuStream(2);
      ASSERT_TRUE(GatherRows(*stream, table.view(true), TensorView(ids.data(), index_type, {5}), y.view(true)).ok());
      y.ForEach([&](int64_t i, int64_t, int64_t l) {
        ASSERT_EQ(y.Get(i, 0, l), Interval(table.Get(ids[i], 0, l)).Rounded(out).lo);
      });
      y.ExpectGapsUntouched();
      ids = {6, 0, 2, 1, 5};
      ASSERT_TRUE(ScatterRows(*stream, y.view(true), TensorView(ids.data(), index_type, {5}), back.view(true)).ok());
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t l = 0; l < 33; ++l) {
          ASSERT_EQ(back.Get(ids[i], 0, l), Interval(y.Get(i, 0, l)).Rounded(in).lo);
          ASSERT_TRUE(std::isnan(back.Get(3, 0, l))) << "a row nobody named was written";
        }
      }
      back.ExpectGapsUntouched();
    }
  }
}

TEST(Elementwise, GatherAndScatterRows) {
  ExpectGatherScatter<int32_t>(DType::kI32);
  ExpectGatherScatter<int64_t>(DType::kI64);
}

TEST(Elementwise, BadInput) {
  auto stream = MakeCpuStream(1);
  std::vector<float> room(64, 7);
  std::vector<int32_t> ids = {0, 1, 9};
  const TensorView x(room.data(), DType::kF32, {3, 4}), y(room.data() + 12, DType::kF32, {3, 4});
  const TensorView short_x(room.data(), DType::kF32, {3, 3}), index(ids.data(), DType::kI32, {3});
  auto invalid = [](const Status& s, const char* part) {
    ASSERT_EQ(s.code(), Code::kInvalidArgument) << part;
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  invalid(Add(*stream, x, short_x, y), "same shape");
  invalid(Apply(*stream, Function::kSilu, x, TensorView(room.data(), DType::kI32, {3, 4})), "use fp32");
  invalid(Apply(*stream, Function::kSilu, TensorView(nullptr, DType::kF32, {3, 4}), y), "no data");
  invalid(Cast(*stream, TensorView(room.data(), DType::kF32, {3, 4}, {8, 2}), y), "inner stride");
  invalid(Cast(*stream, TensorView(room.data(), DType::kF32, {3, 4}, {-4, 1}), y), "negative");
  GluArgs a;
  a.gate = x, a.up = x, a.y = y;
  a.form = GluArgs::Form::kClamped;
  invalid(Glu(*stream, a), "limit=0");
  a.form = GluArgs::Form::kSitu;
  invalid(Glu(*stream, a), "beta=0");
  invalid(SigmoidMul(*stream, x, TensorView(room.data(), DType::kF32, {3, 2}), y), "gate");
  invalid(GatherRows(*stream, x, index, y), "ids[2] = 9");
  ids[2] = -1;
  invalid(GatherRows(*stream, x, index, y), "ids[2] = -1");
  invalid(ScatterRows(*stream, x, index, y), "rows[2] = -1");
  invalid(GatherRows(*stream, x, TensorView(ids.data(), DType::kI32, {2}), y), "packed i32[3]");
  invalid(GatherRows(*stream, short_x, index, y), "3 elements");
  for (float v : room) ASSERT_EQ(v, 7) << "something was written";
  EXPECT_TRUE(Add(*stream, TensorView(nullptr, DType::kF32, {0, 4}), TensorView(nullptr, DType::kF32, {0, 4}),
                  TensorView(nullptr, DType::kF32, {0, 4}))
                  .ok());
}

}  // namespace
}  // namespace fluvial::ops::elementwise
