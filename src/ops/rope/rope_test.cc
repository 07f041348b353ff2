// SPDX-License-Identifier: Apache-2.0
#include "ops/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "ops/common/simd_targets_test.h"
#include "ops/common/strided_test.h"

namespace fluvial::ops::rope {
namespace {

struct Table {
  std::vector<float> cos, sin;
  TensorView cos_view, sin_view;
};

Table MakeTable(const Spec& spec, std::vector<int64_t> positions, int64_t rows) {
  const int64_t tokens = int64_t(positions.size()) / rows, half = spec.dim / 2, pitch = half + 3;
  Table t;
  t.cos.assign(tokens * pitch, std::nanf(""));
  t.sin = t.cos;
  t.cos_view = TensorView(t.cos.data(), DType::kF32, {tokens, half}, {pitch, 1});
  t.sin_view = TensorView(t.sin.data(), DType::kF32, {tokens, half}, {pitch, 1});
  auto stream = MakeCpuStream(2);
  const Status s =
      Tables(*stream, spec, TensorView(positions.data(), DType::kI64, {rows, tokens}), t.cos_view, t.sin_view);
  EXPECT_TRUE(s.ok()) << s.message();
  return t;
}

std::vector<int64_t> Integers(std::istream& in, int64_t count) {
  std::vector<int64_t> v(count);
  for (int64_t& x : v) in >> x;
  return v;
}

// Made by transformers (testdata/make_tables.py). Bound: one unit of torch's cos plus half a unit of ours, and one unit
// of torch's fp32 power, which moves the angle by 2^-23 of itself - 0.01 at the far positions, so that a frequency with
// a wrong exponent or a wrong row stands out by orders of magnitude.
TEST(RopeTables, AgreeWithTransformers) {
  std::ifstream in(FLUVIAL_SOURCE_DIR "/src/ops/rope/testdata/tables.txt");
  ASSERT_TRUE(in.good());
  std::string line, kind;
  std::getline(in, line);  // version
  int cases = 0;
  while (in >> kind) {
    Spec spec;
    int64_t tokens = 0;
    in >> spec.theta >> spec.dim >> spec.sections[0] >> spec.sections[1] >> spec.sections[2] >> tokens;
    spec.kind = kind == "plain"     ? Kind::kPlain
                : kind == "chunked" ? Kind::kMropeChunked
                : kind == "axial"   ? Kind::kAxial
                                    : Kind::kMropeInterleaved;
    SCOPED_TRACE(kind + " dim=" + std::to_string(spec.dim));
    const std::vector<int64_t> positions = Integers(in, spec.position_rows() * tokens);
    const Table t = MakeTable(spec, positions, spec.position_rows());
    for (const TensorView* view : {&t.cos_view, &t.sin_view}) {
      for (int64_t i = 0; i < tokens; ++i) {
        for (int64_t j = 0; j < spec.dim / 2; ++j) {
          float want = std::nanf("");
          in >> want;
          const float got = view->as<float>()[i * view->stride(0) + j];
          const bool axial = spec.kind == Kind::kAxial;
          const double exponent = axial ? 4.0 * double(j % (spec.dim / 4)) / spec.dim : 2.0 * double(j) / spec.dim;
          const double angle = double(positions[i] + 100) * std::pow(spec.theta, -exponent);
          ASSERT_LE(std::abs(double(got) - want), 0x1.8p-24 + 0x1p-23 * angle) << "token " << i << " pair " << j;
        }
      }
    }
    ++cases;
  }
  EXPECT_EQ(cases, 6);
}

TEST(RopeTables, EqualRowsAndOneRowAreThePlainTable) {
  Spec plain;
  plain.dim = 64;
  plain.theta = 1e7;
  const Table want = MakeTable(plain, {5, 6, 1000}, 1);
  for (Kind kind : {Kind::kMropeChunked, Kind::kMropeInterleaved}) {
    Spec spec = plain;
    spec.kind = kind;
    spec.sections = {11, 11, 10};
    for (int64_t rows : {3, 1}) {
      const Table got = MakeTable(
          spec, rows == 3 ? std::vector<int64_t>{5, 6, 1000, 5, 6, 1000, 5, 6, 1000} : std::vector<int64_t>{5, 6, 1000},
          rows);
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < 32; ++j) {
          ASSERT_EQ(got.cos[i * 35 + j], want.cos[i * 35 + j]);
          ASSERT_EQ(got.sin[i * 35 + j], want.sin[i * 35 + j]);
        }
        ASSERT_TRUE(std::isnan(got.cos[i * 35 + 32]));
      }
    }
  }
}

float Rounded(double v, DType t) {
  char room[8];
  StoreFromDouble(room, t, 0, v);
  return float(LoadAsDouble(room, t, 0));
}

// A mirror of every rounding point: equal bits, not closeness.
TEST(RopeApply, MirrorsEveryRoundingOnEveryInstructionSet) {
  Spec spec;
  spec.kind = Kind::kPlain;
  ForEachSimdTarget([&] {
    for (DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (Rounding rounding : {Rounding::kModel, Rounding::kFp32}) {
        for (int32_t dim : {2, 6, 32, 64, 70}) {
          spec.dim = dim;
          const Table t = MakeTable(spec, {0, 3, 17, 40000}, 1);
          const int64_t width = dim == 6 ? dim : dim + 5;  // with and without elements to pass through
          Strided x(io, 4, 3, width), y(io, 4, 3, width);
          std::mt19937 rng(21);
          std::normal_distribution<double> normal;
          x.Fill([&] { return normal(rng); });
          auto stream = MakeCpuStream(1);
          const Status s = Apply(*stream, x.view(), t.cos_view, t.sin_view, rounding, y.view());
          ASSERT_TRUE(s.ok()) << s.message();
          const DType inner = rounding == Rounding::kModel ? io : DType::kF32;
          const int64_t half = dim / 2;
          y.ForEach([&](int64_t i, int64_t h, int64_t l) {
            double want = x.Get(i, h, l);
            if (l < dim) {
              const float c = Rounded(t.cos[i * (half + 3) + l % half], inner);
              const float sn = Rounded(t.sin[i * (half + 3) + l % half], inner);
              const float straight = Rounded(float(want) * c, inner);
              const float turned = Rounded(float(x.Get(i, h, l < half ? l + half : l - half)) * sn, inner);
              want = Rounded(l < half ? straight - turned : straight + turned, io);
            }
            ASSERT_EQ(y.Get(i, h, l), want) << "seed=21 dim=" << dim << " at " << i << "," << h << "," << l;
          });
          y.ExpectGapsUntouched();
          ASSERT_TRUE(Apply(*stream, x.view(), t.cos_view, t.sin_view, rounding, x.view()).ok());
          ASSERT_TRUE(x.SameBytes(y)) << "in place";
        }
      }
    }
  });
}

TEST(RopeApply, RankTwoIsOneHead) {
  Spec spec;
  spec.dim = 8;
  const Table t = MakeTable(spec, {1, 2}, 1);
  Strided x(DType::kF32, 2, 1, 8), y(DType::kF32, 2, 1, 8), z(DType::kF32, 2, 1, 8);
  x.Fill([] { return 1.5; });
  auto stream = MakeCpuStream(1);
  ASSERT_TRUE(Apply(*stream, x.view(), t.cos_view, t.sin_view, Rounding::kModel, y.view()).ok());
  ASSERT_TRUE(Apply(*stream, x.view(true), t.cos_view, t.sin_view, Rounding::kModel, z.view(true)).ok());
  EXPECT_TRUE(y.SameBytes(z));
}

TEST(Rope, BadInput) {
  auto invalid = [](const Status& s, const char* part) {
    ASSERT_EQ(s.code(), Code::kInvalidArgument) << part;
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  Spec spec;
  spec.dim = 7;
  invalid(Validate(spec), "dim=7");
  spec.dim = 6;
  spec.kind = Kind::kAxial;
  invalid(Validate(spec), "multiple of 4");
  spec = {};
  spec.dim = 8;
  spec.theta = -1;
  invalid(Validate(spec), "theta");
  spec.theta = 1e4;
  spec.kind = Kind::kMropeChunked;
  spec.sections = {1, 1, 1};
  invalid(Validate(spec), "add up to 3");
  spec.sections = {5, -1, 0};
  invalid(Validate(spec), "negative");

  spec = {};
  spec.dim = 8;
  auto stream = MakeCpuStream(1);
  std::vector<int64_t> ids = {0, 1, 2};
  std::vector<float> room(64);
  const TensorView positions(ids.data(), DType::kI64, {1, 3});
  const TensorView cos(room.data(), DType::kF32, {3, 4}), sin(room.data() + 12, DType::kF32, {3, 4});
  const TensorView x(room.data() + 24, DType::kF32, {3, 1, 8});
  ASSERT_TRUE(Tables(*stream, spec, positions, cos, sin).ok());
  invalid(Tables(*stream, spec, TensorView(ids.data(), DType::kI64, {3, 1}), cos, sin), "positions");
  invalid(Tables(*stream, spec, TensorView(ids.data(), DType::kF64, {1, 3}), cos, sin), "positions");
  invalid(Tables(*stream, spec, positions, TensorView(room.data(), DType::kF32, {3, 8}), sin), "cos");
  invalid(Tables(*stream, spec, positions, cos, TensorView(room.data(), DType::kF32, {2, 4})), "sin");
  ASSERT_TRUE(Apply(*stream, x, cos, sin, Rounding::kModel, x).ok());
  invalid(Apply(*stream, TensorView(room.data(), DType::kF32, {3, 1, 6}), cos, sin, Rounding::kModel,
                TensorView(room.data(), DType::kF32, {3, 1, 6})),
          "tables rotate 8");
  invalid(Apply(*stream, x, cos, sin, Rounding::kModel, TensorView(room.data(), DType::kF32, {3, 8})), "same shape");
  invalid(Apply(*stream, TensorView(room.data(), DType::kF32, {2, 1, 8}), cos, sin, Rounding::kModel,
                TensorView(room.data(), DType::kF32, {2, 1, 8})),
          "cos");
}

}  // namespace
}  // namespace fluvial::ops::rope
