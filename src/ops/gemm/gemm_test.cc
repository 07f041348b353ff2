// SPDX-License-Identifier: Apache-2.0
// Every backend of gemm against the contract: exact integers, fp64 bounds, poisoned padding, batch = alone.
#include "ops/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "ops/common/simd_targets_test.h"
#include "ops/gemm/kernels.h"

namespace fluvial::ops::gemm {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// A matrix with room between its rows; the room is filled with NaN.
struct Matrix {
  Matrix(int64_t rows, int64_t columns, DType dtype, int64_t gap)
      : rows(rows), columns(columns), pitch(columns + gap), dtype(dtype), bytes((rows * pitch + 1) * SizeOf(dtype)) {
    for (int64_t i = 0; i < rows * pitch; ++i) Set(i, std::numeric_limits<double>::quiet_NaN());
  }
  // One element in: never aligned to more than the element.
  void* data() { return bytes.data() + SizeOf(dtype); }
  void Set(int64_t i, double v) { StoreFromDouble(data(), dtype, i, v); }
  double Get(int64_t i, int64_t j) { return LoadAsDouble(data(), dtype, i * pitch + j); }
  void Fill(const std::function<double()>& value) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) Set(i * pitch + j, value());
  }
  TensorView view() { return TensorView(data(), dtype, {rows, columns}, {pitch, 1}); }
  TensorView row(int64_t i) {
    return TensorView(static_cast<char*>(data()) + i * pitch * SizeOf(dtype), dtype, {1, columns}, {pitch, 1});
  }
  void ExpectGapsUntouched() {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = columns; j < pitch; ++j) ASSERT_TRUE(std::isnan(Get(i, j))) << "gap " << i << "," << j;
  }
  int64_t rows, columns, pitch;
  DType dtype;
  std::vector<char> bytes;
};

struct Case {
  Case(const Problem& p, int64_t gap)
      : p(p), x(p.m, p.k, p.x, gap), w(p.n, p.k, p.w, gap), bias(1, p.n, p.bias, 0), y(p.m, p.n, p.y, gap) {}
  Args args() {
    Args a;
    a.x = x.view();
    a.w = w.view();
    if (p.has_bias) a.bias = TensorView(bias.data(), p.bias, {p.n});
    a.y = y.view();
    return a;
  }
  Status Run(std::string_view backend, Stream& stream) {
    auto s = Choose(p, stream.device(), backend);
    if (!s.ok()) return s.status();
    std::vector<char> room(s->backend->workspace_bytes(p, stream.device()) + 256, char(0xff));
    void* base = room.data() + (256 - reinterpret_cast<uintptr_t>(room.data()) % 256) % 256;
    return s->backend->run(stream, p, args(), {base, room.size() - 256});
  }
  Problem p;
  Matrix x, w, bias, y;
};

Problem Make(int64_t m, int64_t n, int64_t k, DType x, DType w, DType y, bool has_bias = false,
             DType bias = DType::kF32) {
  Problem p;
  p.m = m, p.n = n, p.k = k, p.x = x, p.w = w, p.y = y, p.has_bias = has_bias, p.bias = bias;
  return p;
}

bool CanRun(const Problem& p, std::string_view backend, const Stream& s) {
  for (const GemmBackend& b : Backends()) {
    if (b.name == backend) return b.check(p, s.device()).ok();
  }
  return false;
}

/// Small integers: every product and sum is exact in fp32, so any order of summing gives the same bits.
void ExpectExact(Case& c, std::string_view backend, Stream& stream, uint32_t seed) {
  SCOPED_TRACE(c.p.ToString() + " seed=" + std::to_string(seed) + " backend=" + std::string(backend));
  std::mt19937 rng(seed);
  auto small = [&] { return double(int(rng() % 5) - 2); };
  c.x.Fill(small), c.w.Fill(small), c.bias.Fill(small);
  const Status s = c.Run(backend, stream);
  ASSERT_TRUE(s.ok()) << s.message();
  for (int64_t i = 0; i < c.p.m; ++i) {
    for (int64_t j = 0; j < c.p.n; ++j) {
      double want = c.p.has_bias ? c.bias.Get(0, j) : 0;
      for (int64_t l = 0; l < c.p.k; ++l) want += c.x.Get(i, l) * c.w.Get(j, l);
      char rounded[8];
      StoreFromDouble(rounded, c.p.y, 0, want);
      ASSERT_EQ(c.y.Get(i, j), LoadAsDouble(rounded, c.p.y, 0)) << "at " << i << "," << j;
    }
  }
  c.y.ExpectGapsUntouched();
}

constexpr int64_t kSizes[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65};

std::vector<std::string_view> BackendNames() {
  std::vector<std::string_view> names;
  for (const GemmBackend& b : Backends()) names.push_back(b.name);
  return names;
}

TEST(Gemm, ExactIntegersAtAwkwardSizes) {
  auto stream = MakeCpuStream(2);
  std::mt19937 rng(1);
  for (std::string_view backend : BackendNames()) {
    // cpu runs on every instruction set below; here it runs on the best one.
    for (int64_t m : kSizes) {
      for (int64_t n : kSizes) {
        const int64_t k = kSizes[rng() % std::size(kSizes)];
        const DType x = kTypes[rng() % 3], y = kTypes[rng() % 3];
        const DType w = backend == "cpu_bf16" ? DType::kBF16 : kTypes[rng() % 3];
        const Problem p =
            Make(m, n, k, backend == "cpu_bf16" ? DType::kBF16 : x, w, y, rng() % 2 == 0, kTypes[rng() % 3]);
        if (!CanRun(p, backend, *stream)) continue;
        Case c(p, int64_t(rng() % 4));
        ExpectExact(c, backend, *stream, uint32_t(rng() % 1000));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Gemm, ExactIntegersAcrossBlocksOnEveryInstructionSet) {
  auto stream = MakeCpuStream(3);
  ForEachSimdTarget([&] {
    for (DType w : kTypes) {
      for (DType x : kTypes) {
        for (int64_t k : {1023, 1024, 1025, 2049}) {
          Case c(Make(13, 29, k, x, w, DType::kF32, true, x), 3);
          ExpectExact(c, "cpu", *stream, 7);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
    Case many(Make(265, 130, 40, DType::kBF16, DType::kF32, DType::kBF16), 0);
    ExpectExact(many, "cpu", *stream, 8);
  });
}

TEST(Gemm, ExactIntegersAcrossBlocksOfTheBf16Kernel) {
  auto stream = MakeCpuStream(3);
  for (int64_t k : {2047, 2048, 2049, 4100}) {
    for (int64_t m : {1, 5, 13}) {
      const Problem p = Make(m, 29, k, DType::kBF16, DType::kBF16, DType::kF32, true);
      if (!CanRun(p, "cpu_bf16", *stream)) {
        GTEST_SKIP() << "this machine has no AVX512-BF16";
      }
      Case c(p, 5);
      ExpectExact(c, "cpu_bf16", *stream, 9);
      if (HasFatalFailure()) return;
    }
  }
}

/// |y - exact| <= (K + 1) 2^-24 sum |x w| + |bias| 2^-24 before rounding: every partial sum of any order of K terms has
/// at most K roundings (Higham, Accuracy and Stability, 3.1). Then half a unit in the last place of y's type.
void ExpectWithinBound(Case& c, std::string_view backend, Stream& stream, uint32_t seed) {
  SCOPED_TRACE(c.p.ToString() + " seed=" + std::to_string(seed) + " backend=" + std::string(backend));
  std::mt19937 rng(seed);
  std::normal_distribution<double> normal;
  auto value = [&] { return normal(rng); };
  c.x.Fill(value), c.w.Fill(value), c.bias.Fill(value);
  const Status s = c.Run(backend, stream);
  ASSERT_TRUE(s.ok()) << s.message();
  const double unit = c.p.y == DType::kF32 ? 0x1p-24 : c.p.y == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  for (int64_t i = 0; i < c.p.m; ++i) {
    for (int64_t j = 0; j < c.p.n; ++j) {
      double want = c.p.has_bias ? c.bias.Get(0, j) : 0, magnitude = std::abs(want);
      for (int64_t l = 0; l < c.p.k; ++l) {
        const double product = c.x.Get(i, l) * c.w.Get(j, l);
        want += product;
        magnitude += std::abs(product);
      }
      const double sum_error = double(c.p.k + 2) * 0x1p-24 * magnitude;
      const double bound = sum_error + unit * (std::abs(want) + sum_error);
      ASSERT_LE(std::abs(c.y.Get(i, j) - want), bound) << "at " << i << "," << j;
    }
  }
}

TEST(Gemm, WithinTheBoundOfFp64) {
  auto stream = MakeCpuStream(2);
  for (std::string_view backend : BackendNames()) {
    for (DType x : kTypes) {
      for (DType w : kTypes) {
        for (DType y : kTypes) {
          const Problem p = Make(11, 27, 1500, x, w, y, true, y);
          if (!CanRun(p, backend, *stream)) continue;
          Case c(p, 1);
          ExpectWithinBound(c, backend, *stream, 11);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Gemm, WithinTheBoundOnEveryInstructionSet) {
  auto stream = MakeCpuStream(2);
  ForEachSimdTarget([&] {
    for (DType w : kTypes) {
      Case c(Make(6, 19, 1111, DType::kF32, w, DType::kF32), 2);
      ExpectWithinBound(c, "cpu", *stream, 12);
    }
  });
}

/// Row r of a batch = the row alone, columns of a wide weight = the columns alone, any number of threads: bit for bit.
void ExpectBatchIsAlone(std::string_view backend, DType x, DType w, int64_t k) {
  auto stream = MakeCpuStream(2);
  auto one_thread = MakeCpuStream(1);
  const Problem p = Make(275, 101, k, x, w, DType::kF32, true);
  if (!CanRun(p, backend, *stream)) return;
  SCOPED_TRACE(p.ToString() + " seed=13 backend=" + std::string(backend));
  std::mt19937 rng(13);
  std::normal_distribution<double> normal;
  auto value = [&] { return normal(rng); };
  Case whole(p, 3);
  whole.x.Fill(value), whole.w.Fill(value), whole.bias.Fill(value);
  ASSERT_TRUE(whole.Run(backend, *stream).ok());
  for (int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 64, 257}) {
    for (int64_t n : {101, 7, 1}) {
      Case part(Make(m, n, k, x, w, DType::kF32, true), 0);
      const int64_t i0 = int64_t(rng() % uint64_t(p.m - m + 1)), j0 = int64_t(rng() % uint64_t(p.n - n + 1));
      for (int64_t l = 0; l < k; ++l) {
        for (int64_t i = 0; i < m; ++i) part.x.Set(i * part.x.pitch + l, whole.x.Get(i0 + i, l));
        for (int64_t j = 0; j < n; ++j) part.w.Set(j * part.w.pitch + l, whole.w.Get(j0 + j, l));
      }
      for (int64_t j = 0; j < n; ++j) part.bias.Set(j, whole.bias.Get(0, j0 + j));
      ASSERT_TRUE(part.Run(backend, *one_thread).ok());
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          ASSERT_EQ(part.y.Get(i, j), whole.y.Get(i0 + i, j0 + j)) << "m=" << m << " n=" << n << " " << i << "," << j;
        }
      }
    }
  }
}

TEST(Gemm, BatchIsAloneBitwiseOnEveryInstructionSet) {
  ForEachSimdTarget([] {
    for (DType w : kTypes) {
      for (DType x : {DType::kF32, DType::kBF16}) ExpectBatchIsAlone("cpu", x, w, 1061);
    }
  });
}

TEST(Gemm, BatchIsAloneBitwiseForTheBf16Kernel) {
  for (int64_t k : {33, 1024, 2501}) ExpectBatchIsAlone("cpu_bf16", DType::kBF16, DType::kBF16, k);
}

TEST(Gemm, FiniteInputNearTheEdgeOfTheRange) {
  auto stream = MakeCpuStream(1);
  // Subnormal weights: cpu keeps them, cpu_bf16 takes them as zero (its documented difference).
  for (std::string_view backend : {"cpu", "cpu_bf16"}) {
    const Problem p = Make(1, 1, 4, DType::kBF16, DType::kBF16, DType::kF32);
    if (!CanRun(p, backend, *stream)) continue;
    Case c(p, 0);
    c.x.Fill([] { return 0x1p100; });
    c.w.Fill([] { return 0x1p-130; });
    ASSERT_TRUE(c.Run(backend, *stream).ok());
    EXPECT_EQ(c.y.Get(0, 0), backend == std::string_view("cpu") ? 0x1p-28 : 0.0);
  }
}

TEST(Gemm, InfinityAndNanPassThrough) {
  auto stream = MakeCpuStream(1);
  for (std::string_view backend : BackendNames()) {
    const Problem p = Make(2, 3, 40, DType::kBF16, DType::kBF16, DType::kBF16);
    if (!CanRun(p, backend, *stream)) continue;
    SCOPED_TRACE(backend);
    Case c(p, 2);
    c.x.Fill([] { return 1.0; });
    c.w.Fill([] { return 1.0; });
    c.w.Set(0 * c.w.pitch + 39, std::numeric_limits<double>::infinity());
    c.w.Set(1 * c.w.pitch + 5, std::numeric_limits<double>::quiet_NaN());
    ASSERT_TRUE(c.Run(backend, *stream).ok());
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(c.y.Get(i, 0), std::numeric_limits<double>::infinity());
      EXPECT_TRUE(std::isnan(c.y.Get(i, 1)));
      EXPECT_EQ(c.y.Get(i, 2), 40);
    }
  }
}

}  // namespace
}  // namespace fluvial::ops::gemm
