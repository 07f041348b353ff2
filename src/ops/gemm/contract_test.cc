// SPDX-License-Identifier: Apache-2.0
// Selection, problem lines, refusals and bad input of gemm.
#include <gtest/gtest.h>

#include <vector>

#include "ops/gemm/gemm.h"
#include "ops/gemm/kernels.h"

namespace fluvial::ops::gemm {
namespace {

Problem Bf16Problem(int64_t m) {
  Problem p;
  p.m = m, p.n = 96, p.k = 64;
  return p;
}

struct Buffers {
  std::vector<float> x = std::vector<float>(64 * 64), w = x, y = x, bias = std::vector<float>(64);
  Args args;
  Buffers() {
    args.x = TensorView(x.data(), DType::kF32, {4, 16});
    args.w = TensorView(w.data(), DType::kF32, {8, 16});
    args.bias = TensorView(bias.data(), DType::kF32, {8});
    args.y = TensorView(y.data(), DType::kF32, {4, 8});
  }
};

TEST(GemmContract, ListEndsWithTheReference) {
  ASSERT_FALSE(Backends().empty());
  EXPECT_EQ(Backends().back().name, "reference");
}

TEST(GemmContract, ProblemLineReadsBack) {
  Problem p = Bf16Problem(3);
  p.has_bias = true;
  p.bias = DType::kF32;
  p.y = DType::kF32;
  p.packed = true;
  auto line = ParseProblemLine(p.ToString() + " seed=9");
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(line->problem, p);
  EXPECT_EQ(line->problem.Hash(), p.Hash());
  EXPECT_EQ(line->seed, 9u);
  Problem other = p;
  other.packed = false;
  EXPECT_NE(other.Hash(), p.Hash());
}

TEST(GemmContract, BadProblemLines) {
  for (const char* line :
       {"gemv m=1 n=1 k=1", "gemm m=1 n=1", "gemm m=-1 n=1 k=1", "gemm m=1 n=1 k=1 z=2", "gemm m=1 n=1 k=1 x=i8",
        "gemm m=1 n=1 k=1 x=fp12", "gemm m=1 n=1 k=1 packed=2", "gemm m=99999999999 n=1 k=1", "gemm m=one n=1 k=1"}) {
    const auto r = ParseProblemLine(line);
    ASSERT_FALSE(r.ok()) << line;
    EXPECT_EQ(r.status().code(), Code::kInvalidArgument) << line;
  }
}

TEST(GemmContract, MisfitsNameTheTensor) {
  auto expect = [](const char* part, auto&& change) {
    Buffers b;
    const Problem p = ProblemOf(b.args);
    ASSERT_TRUE(Validate(p, b.args).ok());
    change(b);
    const Status s = Validate(p, b.args);
    ASSERT_EQ(s.code(), Code::kInvalidArgument) << part;
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  };
  expect("x is fp32[4,15]", [](Buffers& b) { b.args.x.dims[1] = 15; });
  expect("w is bf16", [](Buffers& b) { b.args.w.dtype = DType::kBF16; });
  expect("y is fp32[5,8]", [](Buffers& b) { b.args.y.dims[0] = 5; });
  expect("row pitch", [](Buffers& b) { b.args.w.strides[0] = 15; });
  expect("inner stride", [](Buffers& b) { b.args.y.strides[1] = 2; });
  expect("x has no data", [](Buffers& b) { b.args.x.data = nullptr; });
  expect("w is not aligned", [](Buffers& b) { b.args.w.data = reinterpret_cast<char*>(b.args.w.data) + 2; });
  expect("bias is fp32[7]", [](Buffers& b) { b.args.bias.dims[0] = 7; });
  expect("bias is fp32[8]", [](Buffers& b) { b.args.bias.data = nullptr; });
}

TEST(GemmContract, BiasMustAgreeWithTheProblem) {
  Buffers b;
  Problem p = ProblemOf(b.args);
  p.has_bias = false;
  EXPECT_EQ(Validate(p, b.args).code(), Code::kInvalidArgument);
}

TEST(GemmContract, RankOtherThanTwoIsInvalid) {
  Buffers b;
  b.args.x = TensorView(b.x.data(), DType::kF32, {64});
  auto stream = MakeCpuStream(1);
  Linear linear(stream->device(), "auto");
  EXPECT_EQ(linear.Run(*stream, b.args, {}).code(), Code::kInvalidArgument);
}

TEST(GemmContract, UnknownAndUnableBackends) {
  const DeviceInfo cpu = CpuDeviceInfo(2);
  EXPECT_EQ(Choose(Bf16Problem(1), cpu, "cublas").status().code(), Code::kInvalidArgument);
  Problem p = Bf16Problem(1);
  p.x = DType::kF32;
  const auto refused = Choose(p, cpu, "cpu_bf16");
  ASSERT_EQ(refused.status().code(), Code::kRefused);
  EXPECT_NE(refused.status().message().find("x=fp32"), std::string::npos) << refused.status().message();
  auto gpu = AssumedDevice("sm_90");
  ASSERT_TRUE(gpu.ok());
  EXPECT_EQ(Choose(p, *gpu, "auto").status().code(), Code::kRefused);
}

TEST(GemmContract, AutoTakesTheNativeBf16KernelWhereThereIsOne) {
  const auto s = Choose(Bf16Problem(1), CpuDeviceInfo(2), "auto");
  ASSERT_TRUE(s.ok());
  if (HaveBf16Kernel()) {
    EXPECT_EQ(s->backend->name, "cpu_bf16");
  } else {
    EXPECT_NE(s->backend->name, "reference");
  }
}

TEST(GemmContract, AutoKeepsOneOrderOfSummingForAllRowCounts) {
  // Another backend for another number of rows would break "a row of a batch equals the row alone".
  for (DType w : {DType::kF32, DType::kBF16}) {
    Problem p = Bf16Problem(1);
    p.n = 3584, p.k = 1024;
    p.x = p.y = p.w = w;
    const auto alone = Choose(p, CpuDeviceInfo(2), "auto");
    ASSERT_TRUE(alone.ok());
    for (p.m = 2; p.m <= 8192; p.m *= 2) {
      const auto batch = Choose(p, CpuDeviceInfo(2), "auto");
      ASSERT_TRUE(batch.ok());
      EXPECT_EQ(batch->backend->name, alone->backend->name) << p.ToString();
    }
  }
}

TEST(GemmContract, WorkspaceTooSmallSaysBothNumbers) {
  auto stream = MakeCpuStream(1);
  Buffers b;
  const auto s = Choose(ProblemOf(b.args), stream->device(), "cpu");
  ASSERT_TRUE(s.ok());
  const Status status = s->backend->run(*stream, ProblemOf(b.args), b.args, {});
  EXPECT_EQ(status.code(), Code::kResource);
  EXPECT_NE(status.message().find("0 available"), std::string::npos) << status.message();
}

TEST(GemmContract, LinearRunsWithTheBytesItAskedForAtEverySmallerSize) {
  auto stream = MakeCpuStream(2);
  Linear linear(stream->device(), "auto");
  Problem largest;
  largest.m = 40, largest.n = 50, largest.k = 60;
  largest.x = DType::kBF16, largest.w = DType::kF32, largest.y = DType::kF32;
  const auto bytes = linear.WorkspaceBytes(largest);
  ASSERT_TRUE(bytes.ok());
  auto room = Buffer::Allocate(DeviceKind::kCpu, *bytes);
  ASSERT_TRUE(room.ok());
  std::vector<BFloat16> x(40 * 60, ToBFloat16(1));
  std::vector<float> w(50 * 60, 2), y(40 * 50);
  for (int64_t m = 1; m <= 40; m += 13) {
    for (int64_t n = 1; n <= 50; n += 7) {
      Args a;
      a.x = TensorView(x.data(), DType::kBF16, {m, 60});
      a.w = TensorView(w.data(), DType::kF32, {n, 60});
      a.y = TensorView(y.data(), DType::kF32, {m, n});
      const Status s = linear.Run(*stream, a, {room->data(), room->bytes()});
      ASSERT_TRUE(s.ok()) << s.message();
      EXPECT_EQ(y[m * n - 1], 120);
    }
  }
}

TEST(GemmContract, PackingIsRefusedWhereWeightsAreReadInPlace) {
  Buffers b;
  EXPECT_EQ(Pack("cpu", b.args.w, DType::kF32, DType::kF32, 1).status().code(), Code::kRefused);
  EXPECT_EQ(Pack("none", b.args.w, DType::kF32, DType::kF32, 1).status().code(), Code::kInvalidArgument);
  TensorView bad = b.args.w;
  bad.strides[1] = 2;
  EXPECT_EQ(Pack("onednn", bad, DType::kF32, DType::kF32, 1).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace fluvial::ops::gemm
