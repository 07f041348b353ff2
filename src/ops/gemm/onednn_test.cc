// SPDX-License-Identifier: Apache-2.0
// Packed weights and primitive reuse of the oneDNN backend; gemm_test.cc runs its common cases.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/gemm/gemm.h"

namespace fluvial::ops::gemm {
namespace {

#if FLUVIAL_HAVE_ONEDNN

// Integers small enough that every order of summing is exact.
template <class T>
std::vector<T> Integers(int64_t count, int64_t step) {
  std::vector<T> v(count);
  for (int64_t i = 0; i < count; ++i) v[i] = FromFloat<T>(float(i * step % 7 - 3));
  return v;
}

template <class T>
void ExpectPackedIsPlain() {
  const DType type = DTypeOf<T>::value;
  const int64_t n = 80, k = 130, pitch = 133;
  const auto w = Integers<T>(n * pitch, 5);
  const TensorView weight(const_cast<T*>(w.data()), type, {n, k}, {pitch, 1});
  auto packed = Pack("onednn", weight, type, DType::kF32, 16);
  if (!packed.ok()) GTEST_SKIP() << packed.status().message();
  EXPECT_GE((*packed)->bytes(), size_t(n * k) * sizeof(T));
  auto stream = MakeCpuStream(2);
  // Rows other than those it was tuned for, and the same shape twice (a kept primitive).
  for (int64_t m : {16, 1, 3, 16, 100}) {
    const auto x = Integers<T>(m * k, 3);
    std::vector<float> y(m * n, -1), want(m * n, -2);
    Args a;
    a.x = TensorView(const_cast<T*>(x.data()), type, {m, k});
    a.w = weight;
    a.y = TensorView(want.data(), DType::kF32, {m, n});
    ASSERT_TRUE(Linear(stream->device(), "reference").Run(*stream, a, {}).ok());
    a.w = {};
    a.packed = packed->get();
    a.y = TensorView(y.data(), DType::kF32, {m, n});
    Linear linear(stream->device(), "onednn");
    const Status s = linear.Run(*stream, a, {});
    ASSERT_TRUE(s.ok()) << s.message();
    ASSERT_EQ(y, want) << "m=" << m;
    EXPECT_EQ(*linear.BackendName(ProblemOf(a)), "onednn");
    // A packed weight is nobody else's.
    EXPECT_EQ(Linear(stream->device(), "cpu").Run(*stream, a, {}).code(), Code::kRefused);
    EXPECT_TRUE(Linear(stream->device(), "auto").Run(*stream, a, {}).ok());
  }
}

TEST(OneDnn, PackedWeightsGiveTheSameNumbersFp32) { ExpectPackedIsPlain<float>(); }
TEST(OneDnn, PackedWeightsGiveTheSameNumbersBf16) { ExpectPackedIsPlain<BFloat16>(); }

TEST(OneDnn, RefusesWhatItHasNoKernelForWithTheTypes) {
  Problem p;
  p.m = 4, p.n = 5, p.k = 6;
  p.x = DType::kF32, p.w = DType::kBF16, p.y = DType::kF32;
  const auto s = Choose(p, CpuDeviceInfo(2), "onednn");
  ASSERT_EQ(s.status().code(), Code::kRefused);
  EXPECT_NE(s.status().message().find("w=bf16"), std::string::npos) << s.status().message();
  p.w = DType::kF32;
  EXPECT_TRUE(Choose(p, CpuDeviceInfo(2), "onednn").ok());
  p.k = 0;
  EXPECT_EQ(Choose(p, CpuDeviceInfo(2), "onednn").status().code(), Code::kRefused);
}

#else

TEST(OneDnn, TheStubRefusesWithTheReason) {
  Problem p;
  p.m = 4, p.n = 5, p.k = 6;
  const auto s = Choose(p, CpuDeviceInfo(2), "onednn");
  ASSERT_EQ(s.status().code(), Code::kRefused);
  EXPECT_NE(s.status().message().find("built without oneDNN"), std::string::npos) << s.status().message();
}

#endif

}  // namespace
}  // namespace fluvial::ops::gemm
