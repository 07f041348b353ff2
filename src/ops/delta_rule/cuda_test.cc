// SPDX-License-Identifier: Apache-2.0
// What only a GPU shows: bitwise repeatability, CUDA graphs with refilled plans, two graphs at once, memory beyond
// 2^31 elements. Skipped with the reason where there is no GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {
namespace {

#define SKIP_WITHOUT_GPU()                                                  \
  do {                                                                      \
    const std::string reason = CudaUnavailableReason();                     \
    if (!reason.empty()) GTEST_SKIP() << "needs an NVIDIA GPU: " << reason; \
  } while (0)

void CheckCuda(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

/// Tensors of one problem on the GPU, random but fixed by `seed`.
struct Call {
  Problem problem;
  Args args;
  std::vector<Buffer> buffers;
  std::unique_ptr<SequencePlan> plan;

  void* Random(Stream& stream, size_t elements, DType dtype, float spread, uint32_t seed) {
    std::vector<char> host(elements * SizeOf(dtype));
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal(0, spread);
    for (size_t i = 0; i < elements; ++i) StoreFromDouble(host.data(), dtype, static_cast<int64_t>(i), normal(bits));
    auto buffer = Buffer::Allocate(DeviceKind::kCuda, std::max<size_t>(host.size(), 16));
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_TRUE(Copy(stream, buffer->data(), DeviceKind::kCuda, host.data(), DeviceKind::kCpu, host.size()).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    buffers.push_back(std::move(buffer).value());
    return buffers.back().data();
  }

  /// `line` gives the problem; its lengths the first contents of a plan with room for `bounds`.
  void Make(Stream& stream, const std::string& line, PlanBounds bounds, int32_t slots) {
    const auto parsed = ParseProblemLine(line);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    problem = parsed->problem;
    auto made = SequencePlan::Create(stream, bounds);
    ASSERT_TRUE(made.ok()) << made.status().message();
    plan = std::make_unique<SequencePlan>(std::move(made).value());
    ASSERT_TRUE(plan->Refill(stream, {parsed->lengths, {}, {}}).ok());
    const Problem& p = problem;
    const int64_t t = bounds.max_tokens;
    const auto rows = [&](int64_t heads, int64_t dim, DType dtype, uint32_t seed) {
      return TensorView(Random(stream, static_cast<size_t>(t * heads * dim), dtype, 1, seed), dtype, {t, heads, dim});
    };
    args.q = rows(p.hk, p.k, p.io, 1);
    args.k = rows(p.hk, p.k, p.io, 2);
    args.v = rows(p.hv, p.v, p.io, 3);
    args.out = rows(p.hv, p.v, p.io, 4);
    if (p.kda()) {
      args.gate = rows(p.hv, p.k, p.gate_dtype, 5);
    } else {
      args.gate =
          TensorView(Random(stream, static_cast<size_t>(t * p.hv), p.gate_dtype, 1, 5), p.gate_dtype, {t, p.hv});
    }
    args.beta = TensorView(Random(stream, static_cast<size_t>(t * p.hv), p.beta_dtype, 1, 6), p.beta_dtype, {t, p.hv});
    args.a_log = TensorView(Random(stream, static_cast<size_t>(p.hv), DType::kF32, 0.3f, 7), DType::kF32, {p.hv});
    const int64_t biases = p.kda() ? int64_t{p.hv} * p.k : p.hv;
    void* bias = Random(stream, static_cast<size_t>(biases), DType::kF32, 0.3f, 8);
    args.dt_bias = p.kda() ? TensorView(bias, DType::kF32, {p.hv, p.k}) : TensorView(bias, DType::kF32, {p.hv});
    args.state = TensorView(Random(stream, static_cast<size_t>(int64_t{slots} * p.hv * p.v * p.k), p.state, 0.25f, 9),
                            p.state, {slots, p.hv, p.v, p.k});
    args.plan = plan.get();
  }

  std::vector<char> Bytes(Stream& stream, const TensorView& t) {
    std::vector<char> host(static_cast<size_t>(t.elements()) * SizeOf(t.dtype));
    EXPECT_TRUE(Copy(stream, host.data(), DeviceKind::kCpu, t.data, DeviceKind::kCuda, host.size()).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    return host;
  }
  void Put(Stream& stream, const TensorView& t, const std::vector<char>& host) {
    EXPECT_TRUE(Copy(stream, t.data, DeviceKind::kCuda, host.data(), DeviceKind::kCpu, host.size()).ok());
    EXPECT_TRUE(stream.Synchronize().ok());
  }
};

struct Setting {
  std::string line;
  std::string_view backend;
};

const std::vector<Setting>& Settings() {
  static const std::vector<Setting> runs = {
      {"kda_prefill lens=300,17,1,0,513 hk=4 gate=bounded:-5", "cuda_chunk16"},
      {"kda_prefill lens=1700,0,40 hk=3 gate=bounded:-5 state=bf16", "cuda_chunk16_balanced"},
      {"kda_prefill lens=70,3 hk=2 gate=softplus", "cuda_tokens"},
      {"gdn_prefill lens=300,17,1,0,513 hk=2 hv=4", "cuda_chunk16"},
      {"gdn_prefill lens=1700,0,40 hk=1 hv=3 state=bf16", "cuda_chunk16_balanced"},
      {"kda_decode lens=33x1,0,5x1 hk=4 gate=bounded:-5", "cuda_decode"},
      {"gdn_decode lens=33x1,0,5x1 hk=2 hv=8 state=bf16", "cuda_decode"},
      {"gdn_decode lens=3,1,0,4 hk=2 hv=4", "cuda_tokens"},
  };
  return runs;
}

const DeltaBackend* Find(Op op, std::string_view name) {
  for (const DeltaBackend& b : Backends(op)) {
    if (b.name == name) return &b;
  }
  return nullptr;
}

PlanBounds BoundsOf(const Problem& p) { return {p.tokens + 200, p.sequences + 4, 0}; }

/// Backend of a run and its workspace for the plan's capacity.
struct Prepared {
  Call call;
  const DeltaBackend* backend = nullptr;
  Buffer workspace;

  void Make(Stream& stream, const Setting& run) {
    const auto parsed = ParseProblemLine(run.line);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const PlanBounds bounds = BoundsOf(parsed->problem);
    call.Make(stream, run.line, bounds, bounds.max_sequences + 1);
    backend = Find(call.problem.op, run.backend);
    ASSERT_NE(backend, nullptr) << run.backend;
    ASSERT_TRUE(backend->check(call.problem, stream.device()).ok()) << run.line;
    // The workspace is for the capacity: a captured launch covers it.
    Problem largest = call.problem;
    largest.tokens = bounds.max_tokens;
    largest.sequences = bounds.max_sequences;
    auto w = Buffer::Allocate(DeviceKind::kCuda, 2 * backend->workspace_bytes(largest, stream.device()) + 16);
    ASSERT_TRUE(w.ok()) << w.status().message();
    workspace = std::move(w).value();
  }
  Status Go(Stream& stream) {
    return backend->run(stream, call.problem, call.args, {workspace.data(), workspace.bytes()});
  }
};

TEST(DeltaRuleCuda, HundredRunsGiveTheSameBits) {
  SKIP_WITHOUT_GPU();
  auto stream = std::move(MakeCudaStream(0)).value();
  for (const Setting& run : Settings()) {
    Prepared p;
    ASSERT_NO_FATAL_FAILURE(p.Make(*stream, run));
    const std::vector<char> state = p.call.Bytes(*stream, p.call.args.state);
    std::vector<char> out, after;
    for (int i = 0; i < 100; ++i) {
      p.call.Put(*stream, p.call.args.state, state);
      ASSERT_TRUE(p.Go(*stream).ok());
      const auto o = p.call.Bytes(*stream, p.call.args.out), s = p.call.Bytes(*stream, p.call.args.state);
      if (i == 0) out = o, after = s;
      ASSERT_EQ(o, out) << run.line << " run " << i;
      ASSERT_EQ(s, after) << run.line << " run " << i;
    }
  }
}

TEST(DeltaRuleCuda, ReplaysFollowTheRefilledPlan) {
  SKIP_WITHOUT_GPU();
  auto stream = std::move(MakeCudaStream(0)).value();
  auto* native = static_cast<cudaStream_t>(stream->native());
  for (const Setting& run : Settings()) {
    Prepared p;
    ASSERT_NO_FATAL_FAILURE(p.Make(*stream, run));
    ASSERT_TRUE(p.Go(*stream).ok()) << run.line;  // warm
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CheckCuda(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
    // A plan cannot change under capture.
    EXPECT_FALSE(p.call.plan->Refill(*stream, {{1}, {}, {}}).ok());
    ASSERT_TRUE(p.Go(*stream).ok()) << run.line;
    CheckCuda(cudaStreamEndCapture(native, &graph));
    CheckCuda(cudaGraphInstantiate(&exec, graph, 0));

    const std::vector<char> state = p.call.Bytes(*stream, p.call.args.state);
    const std::vector<char> out = p.call.Bytes(*stream, p.call.args.out);
    // New lengths, fewer and more sequences, other slots: within the bounds, unlike what was captured.
    const bool decode = !p.call.problem.prefill();
    const std::vector<SequenceSpec> specs = {
        {decode ? std::vector<int64_t>{1, 0, 1} : std::vector<int64_t>{33, 0, 130}, {3, 1, -1}, {0, 2, 4}},
        {std::vector<int64_t>(4, 1), {0, 1, 2, 3}, {-1, 1, -1, 3}},
        {{}, {}, {}},
    };
    for (const SequenceSpec& spec : specs) {
      ASSERT_TRUE(p.call.plan->Refill(*stream, spec).ok());
      p.call.Put(*stream, p.call.args.state, state);
      p.call.Put(*stream, p.call.args.out, out);
      CheckCuda(cudaGraphLaunch(exec, native));
      const auto replayed_out = p.call.Bytes(*stream, p.call.args.out);
      const auto replayed_state = p.call.Bytes(*stream, p.call.args.state);
      p.call.Put(*stream, p.call.args.state, state);
      p.call.Put(*stream, p.call.args.out, out);
      ASSERT_TRUE(p.Go(*stream).ok());
      EXPECT_EQ(p.call.Bytes(*stream, p.call.args.out), replayed_out) << run.line;
      EXPECT_EQ(p.call.Bytes(*stream, p.call.args.state), replayed_state) << run.line;
    }
    CheckCuda(cudaGraphExecDestroy(exec));
    CheckCuda(cudaGraphDestroy(graph));
  }
}

TEST(DeltaRuleCuda, TwoStreamsDoNotDisturbEachOther) {
  SKIP_WITHOUT_GPU();
  auto a = std::move(MakeCudaStream(0)).value(), b = std::move(MakeCudaStream(0)).value();
  for (const Setting& run : Settings()) {
    Prepared p, q;
    ASSERT_NO_FATAL_FAILURE(p.Make(*a, run));
    ASSERT_NO_FATAL_FAILURE(q.Make(*b, run));
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(p.Go(*a).ok());
      ASSERT_TRUE(q.Go(*b).ok());
    }
    EXPECT_EQ(p.call.Bytes(*a, p.call.args.out), q.call.Bytes(*b, q.call.args.out)) << run.line;
    EXPECT_EQ(p.call.Bytes(*a, p.call.args.state), q.call.Bytes(*b, q.call.args.state)) << run.line;
  }
}

TEST(DeltaRuleCuda, SlotsBeyondTwoToTheThirtyOne) {
  SKIP_WITHOUT_GPU();
  // 4,200 slots of 32 heads x 128 x 128 bf16: the last slot starts at element 2.2e9 (4.4 GB).
  auto stream = std::move(MakeCudaStream(0)).value();
  constexpr int32_t kSlots = 4200;
  for (const char* line :
       {"kda_decode lens=1 hk=32 gate=bounded:-5 state=bf16", "gdn_prefill lens=70 hk=32 state=bf16"}) {
    Call small, large;
    small.Make(*stream, line, {70, 1, 0}, 1);
    large.Make(*stream, line, {70, 1, 0}, 1);
    const int64_t slot = int64_t{32} * 128 * 128;
    auto pool = Buffer::Allocate(DeviceKind::kCuda, static_cast<size_t>(kSlots) * slot * 2);
    if (!pool.ok()) GTEST_SKIP() << "needs 4.5 GB of GPU memory: " << pool.status().message();
    char* last = static_cast<char*>(pool->data()) + static_cast<size_t>(kSlots - 1) * slot * 2;
    large.Put(*stream, TensorView(last, DType::kBF16, {slot}), small.Bytes(*stream, small.args.state));
    large.args.state = TensorView(pool->data(), DType::kBF16, {kSlots, 32, 128, 128});
    const std::vector<int64_t> lengths(1, small.problem.tokens);
    ASSERT_TRUE(large.plan->Refill(*stream, {lengths, {kSlots - 1}, {kSlots - 1}}).ok());
    for (Call* call : {&small, &large}) {
      const auto chosen = Choose(call->problem, stream->device(), "auto");
      ASSERT_TRUE(chosen.ok()) << chosen.status().message();
      auto w = Buffer::Allocate(DeviceKind::kCuda, chosen->backend->workspace_bytes(call->problem, stream->device()));
      ASSERT_TRUE(chosen->backend->run(*stream, call->problem, call->args, {w->data(), w->bytes()}).ok());
      ASSERT_TRUE(stream->Synchronize().ok());
    }
    EXPECT_EQ(small.Bytes(*stream, small.args.out), large.Bytes(*stream, large.args.out)) << line;
    EXPECT_EQ(small.Bytes(*stream, small.args.state), large.Bytes(*stream, TensorView(last, DType::kBF16, {slot})))
        << line;
  }
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
