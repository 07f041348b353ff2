// SPDX-License-Identifier: Apache-2.0
// The CUDA backends - cudnn, and the kernels of this room - against the fp64 evaluation, and what only a GPU shows:
// stale plans, NaN next door, CUDA graphs with refilled lengths, memory beyond 2^31 elements. Every test runs every
// backend that takes the case and skips with the reason where none does.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/vision_attention/cudnn.h"
#include "ops/vision_attention/test_kit.h"

namespace fluvial::ops::vision_attention {
namespace {

void CheckCuda(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

/// Done when it returns: the streams of the tests do not wait for the default stream.
void Fill(void* data, int byte, size_t bytes) {
  CheckCuda(cudaMemset(data, byte, bytes));
  CheckCuda(cudaDeviceSynchronize());
}

class VisionAttentionCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = CudaUnavailableReason();
    if (!reason.empty()) GTEST_SKIP() << "needs an NVIDIA GPU: " << reason;
    auto stream = MakeCudaStream(0);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    stream_ = std::move(stream).value();
    Problem p;
    p.heads = 1;
    p.scale = 1;
    SetLengths(p, std::vector<int64_t>{1});
    std::string refusals;
    for (const VisionBackend& b : Backends()) {
      if (b.name != "cudnn" && !b.name.starts_with("cuda")) continue;
      const Check c = b.check(p, stream_->device());
      if (c.ok()) {
        backends_.push_back(&b);
      } else {
        refusals += " " + std::string(b.name) + ": " + c.reason() + ";";
      }
    }
    std::printf("backends:");
    for (const VisionBackend* b : backends_) std::printf(" %s", std::string(b->name).c_str());
    std::printf("; refused:%s\n", refusals.empty() ? " none" : refusals.c_str());
    if (backends_.empty()) GTEST_SKIP() << "no CUDA backend runs here:" << refusals;
  }

  /// At least one backend must take the line.
  void CheckLine(const std::string& line) {
    auto c = ParseCase(line);
    ASSERT_TRUE(c.ok()) << line << ": " << c.status().message();
    const PreparedCase prepared = PreparedCase::Make(*c, host_->pool());
    int ran = 0;
    for (const VisionBackend* b : backends_) {
      if (!b->check(prepared.problem(), stream_->device()).ok()) continue;
      ++ran;
      const auto verdict = prepared.Check(*stream_, *b, PrecisionOf(*b, prepared.problem().io));
      if (!verdict.ok()) {
        ADD_FAILURE() << b->name << ": " << line << ": " << verdict.status().message();
      } else if (!verdict->passed) {
        ADD_FAILURE() << b->name << ": " << FormatCase(*c) << ": " << verdict->why;
      }
    }
    EXPECT_GE(ran, 1) << "no backend takes " << line;
  }

  std::unique_ptr<Stream> stream_, host_ = MakeCpuStream();
  std::vector<const VisionBackend*> backends_;
};

TEST_F(VisionAttentionCuda, RaggedVersusReference) {
  for (const char* io : {"bf16", "fp16"}) {
    for (int d : {64, 72, 80, 128}) {
      CheckLine("vision_attention heads=3 d=" + std::to_string(d) + " lse=1 lens=65,1,130,3,300,64 io=" + io);
      CheckLine("vision_attention heads=2 d=" + std::to_string(d) + " lens=20,64,500,7 layout=qkv pad=8 io=" + io);
    }
  }
}

TEST_F(VisionAttentionCuda, DenseVersusReference) {
  for (int d : {64, 72, 80, 128}) {
    for (const char* more : {"lens=16x64", "lens=3x64 lse=1", "lens=300 lse=1", "lens=2x256 layout=qkv", "lens=1000",
                             "lens=3x90 padded=90 lse=1", "lens=32 batch=1"}) {
      CheckLine("vision_attention heads=2 d=" + std::to_string(d) + " " + more);
    }
  }
}

TEST_F(VisionAttentionCuda, LayoutsAndPaddedTensors) {
  for (const char* layout : {"separate", "qkv", "heads_first"}) {
    for (const char* more : {"lens=70,0,64,5", "lens=70,0,64,5 pad=24 extra=9", "lens=70,0,64 batch=1 pad=8",
                             "padded=90 lens=70,0,90,5 pad=16 lse=1"}) {
      CheckLine(std::string("vision_attention heads=2 d=80 layout=") + layout + " " + more);
    }
  }
}

TEST_F(VisionAttentionCuda, ZeroLengths) {
  for (const char* lens : {"0", "3x0", "0,64", "64,0", "0,0,5,0,64,0", "0,64,64,0,64"}) {
    CheckLine(std::string("vision_attention heads=2 d=80 lse=1 lens=") + lens);
  }
}

// NaN rows right behind a sequence, in the next sequence, and in all gaps: masked is not multiplied by zero.
TEST_F(VisionAttentionCuda, NanTail) {
  for (int d : {64, 80}) {
    const std::string head = "vision_attention heads=2 d=" + std::to_string(d);
    for (const char* lens : {"1", "17", "63", "65", "100", "127", "129", "200"}) {
      CheckLine(head + " extra=300 lens=" + lens);
      CheckLine(head + " extra=64 layout=qkv nan=1 lens=" + lens + ",50," + lens);
    }
    CheckLine(head + " nan=0 lens=64,64,64,64 lse=1");
    CheckLine(head + " padded=130 lens=64,1,130,100 nan=2 lse=1");
  }
}

// q = 0: the output is the mean of the values at every length, so a wrong mask boundary shows.
TEST_F(VisionAttentionCuda, MeansAtEveryLength) {
  std::string lens;
  for (int n = 0; n <= 140; ++n) lens += (n ? "," : "") + std::to_string(n);
  CheckLine("vision_attention heads=1 d=80 fill=mean lse=1 lens=" + lens);
  CheckLine("vision_attention heads=1 d=64 fill=mean lens=255,256,257,511,512,513");
}

TEST_F(VisionAttentionCuda, LargeScoresStayFinite) {
  CheckLine("vision_attention heads=2 d=80 fill=large lse=1 lens=200,64,300");
  CheckLine("vision_attention heads=2 d=80 fill=pick lse=1 lens=200,64,300");
}

TEST_F(VisionAttentionCuda, ThousandsOfWindows) {
  CheckLine("vision_attention heads=2 d=80 lens=1500x64,3x16,2x32,500x64");
}

// The same shapes with several scales in one process: no plan may remember the first.
TEST_F(VisionAttentionCuda, EveryScaleIsItsOwn) {
  for (const char* lens : {"100,64", "64,64"}) {
    for (float scale : {0.0883883f, 0.265165f, 0.03f, 0.0883883f}) {
      CheckLine("vision_attention heads=2 d=128 lens=" + std::string(lens) + " scale=" + std::to_string(scale));
    }
  }
}

/// Device tensors of [tokens, 3, heads, d] and their outputs, random but fixed.
struct DeviceCall {
  Problem problem;
  Args args;
  Buffer qkv, out, workspace;
  std::unique_ptr<SequencePlan> plan;
  std::unique_ptr<RaggedPlan> ragged;

  void Make(Stream& stream, const VisionBackend& b, const Problem& p, const std::vector<int64_t>& lengths) {
    problem = p;
    const int64_t row = int64_t{p.heads} * p.d, elements = p.tokens * 3 * row;
    std::vector<char> host(static_cast<size_t>(elements) * 2);
    test_kit::Random random(3);
    for (int64_t i = 0; i < elements; ++i) StoreFromDouble(host.data(), p.io, i, random.Uniform(-2, 2));
    auto allocate = [&](size_t bytes) {
      auto buffer = Buffer::Allocate(DeviceKind::kCuda, bytes);
      EXPECT_TRUE(buffer.ok());
      return std::move(buffer).value();
    };
    qkv = allocate(host.size());
    out = allocate(host.size() / 3);
    workspace = allocate(std::max<size_t>(b.workspace_bytes(p, stream.device()), 16));
    ASSERT_TRUE(Copy(stream, qkv.data(), DeviceKind::kCuda, host.data(), DeviceKind::kCpu, host.size()).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
    TensorView* views[] = {&args.q, &args.k, &args.v};
    for (int64_t i = 0; i < 3; ++i) {
      *views[i] =
          TensorView(static_cast<char*>(qkv.data()) + i * row * 2, p.io, {p.tokens, p.heads, p.d}, {3 * row, p.d, 1});
    }
    args.out = TensorView(out.data(), p.io, {p.tokens, p.heads, p.d});
    auto sequences = SequencePlan::Create(
        stream, {.max_tokens = p.tokens, .max_sequences = p.sequences, .max_length = p.max_length});
    ASSERT_TRUE(sequences.ok());
    plan = std::make_unique<SequencePlan>(std::move(sequences).value());
    args.plan = plan.get();
    auto layout =
        RaggedPlan::Create(stream, {.max_tokens = p.tokens, .max_sequences = p.sequences, .max_length = p.max_length},
                           TokenStridesOf(p, args), CudnnRules());
    ASSERT_TRUE(layout.ok()) << layout.status().message();
    ragged = std::make_unique<RaggedPlan>(std::move(layout).value());
    args.ragged = ragged.get();
    Refill(stream, lengths);
  }

  void Refill(Stream& stream, const std::vector<int64_t>& lengths) {
    ASSERT_TRUE(plan->Refill(stream, {lengths, {}, {}}).ok());
    ASSERT_TRUE(ragged->Refill(stream, lengths).ok());
  }

  Status Run(Stream& stream, const VisionBackend& b) {
    return b.run(stream, problem, args, {workspace.data(), workspace.bytes()});
  }

  std::vector<char> Fetch(Stream& stream) {
    std::vector<char> host(out.bytes());
    EXPECT_TRUE(Copy(stream, host.data(), DeviceKind::kCpu, out.data(), DeviceKind::kCuda, host.size()).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    return host;
  }
};

Problem Bounds(int64_t tokens, int32_t sequences, int64_t longest) {
  Problem p;
  p.heads = 4;
  p.scale = DefaultScale(p.d);
  p.tokens = tokens;
  p.sequences = sequences;
  p.max_length = longest;
  p.pairs = tokens * longest;
  return p;
}

TEST_F(VisionAttentionCuda, RepeatedRunsGiveTheSameBits) {
  for (const VisionBackend* b : backends_) {
    DeviceCall call;
    call.Make(*stream_, *b, Bounds(3000, 40, 1500), {1500, 64, 64, 700, 1, 33, 0, 600});
    Fill(call.out.data(), 0xff, call.out.bytes());
    ASSERT_TRUE(call.Run(*stream_, *b).ok()) << b->name;
    const std::vector<char> first = call.Fetch(*stream_);
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(call.Run(*stream_, *b).ok());
      ASSERT_TRUE(call.Fetch(*stream_) == first) << b->name << " run " << i;
    }
  }
}

// A graph recorded once serves every refill within the bounds, bit for bit as a plain run.
TEST_F(VisionAttentionCuda, CapturedGraphsFollowRefilledPlans) {
  const std::vector<std::vector<int64_t>> steps = {
      {500, 64, 64, 300}, {64, 64, 64, 64, 64, 64}, {900}, {0, 10, 0, 700, 1}};
  for (const VisionBackend* b : backends_) {
    DeviceCall call;
    call.Make(*stream_, *b, Bounds(1000, 6, 900), steps[0]);
    const auto stream = static_cast<cudaStream_t>(stream_->native());
    if (b->name == "cudnn") {
      // Cold: refused before anything is recorded, and the stream stays usable.
      DeviceCall cold;
      cold.Make(*stream_, *b, Bounds(1001, 6, 901), steps[0]);
      cold.problem.scale = 0.0123f;
      CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      const Status s = cold.Run(*stream_, *b);
      cudaGraph_t nothing = nullptr;
      CheckCuda(cudaStreamEndCapture(stream, &nothing));
      CheckCuda(cudaGraphDestroy(nothing));
      EXPECT_EQ(s.code(), Code::kInvalidArgument);
      EXPECT_NE(s.message().find("run it once before"), std::string::npos) << s.message();
    }
    std::vector<std::vector<char>> plain;
    for (const auto& lengths : steps) {
      call.Refill(*stream_, lengths);
      Fill(call.out.data(), 0xff, call.out.bytes());
      const Status s = call.Run(*stream_, *b);
      ASSERT_TRUE(s.ok()) << b->name << ": " << s.message();
      plain.push_back(call.Fetch(*stream_));
    }
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const Status recorded = call.Run(*stream_, *b);
    EXPECT_FALSE(call.ragged->Refill(*stream_, steps[0]).ok());
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamEndCapture(stream, &graph));
    ASSERT_TRUE(recorded.ok()) << b->name << ": " << recorded.message();
    cudaGraphExec_t exec = nullptr;
    CheckCuda(cudaGraphInstantiate(&exec, graph, 0));
    for (size_t i = 0; i < steps.size(); ++i) {
      call.Refill(*stream_, steps[i]);
      Fill(call.out.data(), 0xff, call.out.bytes());
      CheckCuda(cudaGraphLaunch(exec, stream));
      ASSERT_TRUE(call.Fetch(*stream_) == plain[i]) << b->name << " step " << i;
    }
    CheckCuda(cudaGraphExecDestroy(exec));
    CheckCuda(cudaGraphDestroy(graph));
  }
}

// The last window of a batch lies beyond 2^31 elements; its result is that of the window alone.
TEST_F(VisionAttentionCuda, AddressesAreSixtyFourBit) {
  constexpr int32_t kWindows = 9000;
  constexpr int64_t kTokens = int64_t{kWindows} * 64, kRow = 16 * 80;
  static_assert(kTokens * 3 * kRow > INT32_MAX);
  for (const VisionBackend* b : backends_) {
    Problem p;
    p.heads = 16;
    p.scale = DefaultScale(p.d);
    std::vector<int64_t> lengths(kWindows, 64);
    lengths[0] = 63;  // not equal: ragged
    SetLengths(p, lengths);
    auto qkv = Buffer::Allocate(DeviceKind::kCuda, static_cast<size_t>(kTokens) * 3 * kRow * 2);
    auto out = Buffer::Allocate(DeviceKind::kCuda, static_cast<size_t>(kTokens) * kRow * 2);
    auto workspace =
        Buffer::Allocate(DeviceKind::kCuda, std::max<size_t>(b->workspace_bytes(p, stream_->device()), 16));
    ASSERT_TRUE(qkv.ok() && out.ok() && workspace.ok());
    Fill(qkv->data(), 0, qkv->bytes());
    std::vector<char> rows(64 * 3 * kRow * 2);
    test_kit::Random random(5);
    for (int64_t i = 0; i < 64 * 3 * kRow; ++i) StoreFromDouble(rows.data(), p.io, i, random.Normal());
    const int64_t first = p.tokens - 64;
    CheckCuda(cudaMemcpy(static_cast<char*>(qkv->data()) + first * 3 * kRow * 2, rows.data(), rows.size(),
                         cudaMemcpyHostToDevice));
    CheckCuda(cudaDeviceSynchronize());
    auto run = [&](const Problem& problem, const std::vector<int64_t>& ls, int64_t from) {
      Args a;
      TensorView* views[] = {&a.q, &a.k, &a.v};
      for (int64_t i = 0; i < 3; ++i) {
        *views[i] = TensorView(static_cast<char*>(qkv->data()) + (from * 3 + i) * kRow * 2, p.io,
                               {problem.tokens, 16, 80}, {3 * kRow, 80, 1});
      }
      a.out = TensorView(static_cast<char*>(out->data()) + from * kRow * 2, p.io, {problem.tokens, 16, 80});
      auto plan = SequencePlan::Make(*stream_, {ls, {}, {}});
      auto ragged = RaggedPlan::Make(*stream_, ls, 0, TokenStridesOf(problem, a), CudnnRules());
      EXPECT_TRUE(plan.ok() && ragged.ok());
      a.plan = &*plan;
      a.ragged = &*ragged;
      const Status s = b->run(*stream_, problem, a, {workspace->data(), workspace->bytes()});
      EXPECT_TRUE(s.ok()) << b->name << ": " << s.message();
      std::vector<char> host(64 * kRow * 2);
      EXPECT_TRUE(stream_->Synchronize().ok());
      CheckCuda(cudaMemcpy(host.data(), static_cast<char*>(out->data()) + first * kRow * 2, host.size(),
                           cudaMemcpyDeviceToHost));
      return host;
    };
    const std::vector<char> in_batch = run(p, lengths, 0);
    Problem one = p;
    SetLengths(one, std::vector<int64_t>{64});
    const std::vector<char> alone = run(one, {64}, first);
    for (int64_t i = 0; i < 64 * kRow; ++i) {
      const double x = LoadAsDouble(in_batch.data(), p.io, i), y = LoadAsDouble(alone.data(), p.io, i);
      ASSERT_NEAR(x, y, 0x1p-6 * std::max(1.0, std::abs(y))) << b->name << " element " << i;
    }
  }
}

}  // namespace
}  // namespace fluvial::ops::vision_attention
