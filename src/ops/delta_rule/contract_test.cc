// SPDX-License-Identifier: Apache-2.0
// The contract without any backend's arithmetic: validation, text form, hash, selection.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {
namespace {

ProblemLine Parse(const std::string& line) {
  auto r = ParseProblemLine(line);
  EXPECT_TRUE(r.ok()) << line << ": " << r.status().message();
  return r.ok() ? *r : ProblemLine{};
}

TEST(DeltaRuleText, RoundTrip) {
  for (
      const char* line : {
          "kda_prefill lens=8192 hk=96",
          "gdn_prefill lens=1300,547,8x1024 hk=16 hv=32 io=fp16 state=bf16 gate=log beta=probability norm=none scale=1",
          "kda_prefill lens=0,3 hk=2 k=64 v=96 gate=bounded:-5 a_log=0 norm=l2_max:1e-12 checkpoint_every=128 seed=9",
          "gdn_decode lens=128x4 hk=4 hv=8 token_states=1 beta=two_sigmoid gate_dtype=fp32 beta_dtype=fp32 alignment=8",
          "kda_decode lens= hk=1",
      }) {
    const ProblemLine a = Parse(line);
    const std::string text = FormatProblemLine(a);
    const ProblemLine b = Parse(text);
    EXPECT_EQ(a.problem, b.problem) << text;
    EXPECT_EQ(a.lengths, b.lengths);
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(a.problem.Hash(), b.problem.Hash());
    EXPECT_EQ(FormatProblemLine(b), text);
  }
}

TEST(DeltaRuleText, HashCoversEveryField) {
  const Problem base = Parse("kda_prefill lens=8,8 hk=4 hv=8 gate=bounded:-5").problem;
  std::vector<Problem> variants(1, base);
  const auto add = [&](auto&& change) {
    variants.push_back(base);
    change(variants.back());
  };
  add([](Problem& p) { p.op = Op::kGdnPrefill; });
  add([](Problem& p) { p.hk = 2; });
  add([](Problem& p) { p.hv = 16; });
  add([](Problem& p) { p.k = 64; });
  add([](Problem& p) { p.v = 64; });
  add([](Problem& p) { p.io = DType::kF16; });
  add([](Problem& p) { p.gate_dtype = DType::kF32; });
  add([](Problem& p) { p.beta_dtype = DType::kF32; });
  add([](Problem& p) { p.state = DType::kBF16; });
  add([](Problem& p) { p.gate = GateForm::kSoftplus; });
  add([](Problem& p) { p.has_a_log = false; });
  add([](Problem& p) { p.has_dt_bias = false; });
  add([](Problem& p) { p.lower_bound = -4; });
  add([](Problem& p) { p.beta = BetaForm::kTwoSigmoid; });
  add([](Problem& p) { p.norm = NormForm::kL2Max; });
  add([](Problem& p) { p.norm_eps = 1e-5f; });
  add([](Problem& p) { p.scale = 1; });
  add([](Problem& p) { p.tokens = 15; });
  add([](Problem& p) { p.sequences = 3; });
  add([](Problem& p) { p.max_length = 9; });
  add([](Problem& p) { p.checkpoint_every = 64; });
  add([](Problem& p) { p.token_states = true; });
  add([](Problem& p) { p.alignment = 8; });
  for (size_t i = 0; i < variants.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(variants[i].Hash(), variants[j].Hash()) << i << " " << j;
      EXPECT_FALSE(variants[i] == variants[j]) << i << " " << j;
    }
  }
}

TEST(DeltaRuleText, BadLinesNameFieldAndRule) {
  const std::pair<const char*, const char*> cases[] = {
      {"kda lens=1 hk=1", "use one of gdn_prefill"},
      {"kda_prefill hk=1", "no lens="},
      {"kda_prefill lens=1", "hk=0"},
      {"kda_prefill lens=1 hk=3 hv=4", "multiple of hk=3"},
      {"kda_prefill lens=1 hk=1 heads=3", "no field 'heads'"},
      {"kda_prefill lens=1 hk=1 gate=bounded", "gate=bounded:-5"},
      {"kda_prefill lens=1 hk=1 gate=bounded:-6", "lower_bound=-6: must be in [-5, 0)"},
      {"kda_prefill lens=1 hk=1 gate=bounded:0", "must be in [-5, 0)"},
      {"kda_prefill lens=1 hk=1 gate=softplus a_log=0", "needs A_log"},
      {"kda_prefill lens=1 hk=1 gate=log a_log=1", "must be absent"},
      {"kda_prefill lens=1 hk=1 norm=l2_add:0", "norm_eps=0"},
      {"kda_prefill lens=1 hk=1 norm=l2_add:1e-40", "normal fp32"},
      {"kda_prefill lens=1 hk=1 scale=inf", "scale=inf"},
      {"kda_prefill lens=1 hk=1 k=1024", "k=1024: must be in [1, 512]"},
      {"kda_prefill lens=1 hk=1 state=i8", "state=i8"},
      {"kda_prefill lens=1 hk=1 checkpoint_every=32", "multiple of 64"},
      {"kda_prefill lens=1 hk=1 token_states=1", "only decode"},
      {"kda_decode lens=1 hk=1 checkpoint_every=64", "use token_states"},
      {"gdn_decode lens=9 hk=1", "at most 8 tokens"},
      {"kda_prefill lens=1 hk=1 alignment=3", "alignment=3"},
      {"kda_prefill lens=1 hk=1 alignment=2 io=fp32", "smaller than one element"},
      {"kda_prefill lens=1 hk=1 hk=2", "given twice"},
      {"kda_prefill lens=-1 hk=1", "not a length"},
      {"kda_prefill lens=1 hk=99999999999", "too large"},
      {"", "empty"},
  };
  for (const auto& [line, want] : cases) {
    const auto r = ParseProblemLine(line);
    ASSERT_FALSE(r.ok()) << line;
    EXPECT_EQ(r.status().code(), Code::kInvalidArgument) << line;
    EXPECT_NE(r.status().message().find(want), std::string::npos) << line << " -> " << r.status().message();
  }
}

// A one-sequence call in host memory whose tensors fit, to be broken in one place at a time.
struct Call {
  explicit Call(const std::string& line)
      : stream(MakeCpuStream(1)), parsed(Parse(line)), memory(1 << 20), slots(64, -1) {
    const Problem& p = parsed.problem;
    const int64_t t = p.tokens;
    auto at = [&](int i) { return memory.data() + i * (1 << 16); };
    args.q = {at(0), p.io, {t, p.hk, p.k}};
    args.k = {at(1), p.io, {t, p.hk, p.k}};
    args.v = {at(2), p.io, {t, p.hv, p.v}};
    args.gate = p.kda() ? TensorView(at(3), p.gate_dtype, {t, p.hv, p.k}) : TensorView(at(3), p.gate_dtype, {t, p.hv});
    args.beta = {at(4), p.beta_dtype, {t, p.hv}};
    args.a_log = {at(5), DType::kF32, {p.hv}};
    args.dt_bias = p.kda() ? TensorView(at(6), DType::kF32, {p.hv, p.k}) : TensorView(at(6), DType::kF32, {p.hv});
    args.out = {at(7), p.io, {t, p.hv, p.v}};
    args.state = {at(8), p.state, {2, p.hv, p.v, p.k}};
    args.checkpoints = {at(10), p.state, {2, p.hv, p.v, p.k}};
    args.token_slots = {slots.data(), DType::kI32, {p.sequences, p.max_length}};
    plan.emplace(SequencePlan::Make(*stream, {parsed.lengths, {}, {}}).value());
    args.plan = &*plan;
  }
  std::string Error() const {
    const Status s = Validate(parsed.problem, args);
    EXPECT_TRUE(s.ok() || s.code() == Code::kInvalidArgument);
    return s.message();
  }

  std::unique_ptr<Stream> stream;
  ProblemLine parsed;
  std::vector<char> memory;
  std::vector<int32_t> slots;
  std::optional<SequencePlan> plan;
  Args args;
};

TEST(DeltaRuleArgs, EveryTensorIsChecked) {
  const std::string line = "kda_prefill lens=65 hk=1 hv=2 k=16 v=8 gate=bounded:-5 checkpoint_every=64 alignment=8";
  EXPECT_EQ(Call(line).Error(), "");
  const auto broken = [&](auto&& change, const char* want) {
    Call c(line);
    change(c);
    EXPECT_NE(c.Error().find(want), std::string::npos) << "want: " << want << "\ngot:  " << c.Error();
  };
  broken([](Call& c) { c.args.plan = nullptr; }, "no plan");
  broken([](Call& c) { c.args.q.dtype = DType::kF16; }, "q is fp16[65,1,16]: must be bf16[65,1,16]");
  // Sequences come packed: a batch dim beside lengths is an error.
  broken([](Call& c) { c.args.q = TensorView(c.args.q.data, DType::kBF16, {1, 65, 1, 16}); }, "q is bf16[1,65,1,16]");
  broken([](Call& c) { c.args.k.dims[0] = 64; }, "k is bf16[64,1,16]");
  broken([](Call& c) { c.args.v.data = nullptr; }, "v has no memory");
  broken([](Call& c) { c.args.v.strides[1] = 16; }, "only the outermost stride");
  broken([](Call& c) { c.args.out.strides[0] = 4; }, "its rows overlap");
  broken([](Call& c) { c.args.gate.strides[0] = 33; }, "gate row pitch of 66 bytes is not a multiple of alignment=8");
  broken([](Call& c) { c.args.q.data = c.memory.data() + 2; }, "q address is not a multiple of alignment=8");
  broken([](Call& c) { c.args.beta.rank = 1; }, "beta is");
  broken([](Call& c) { c.args.a_log.dims[0] = 1; }, "a_log is");
  broken([](Call& c) { c.args.dt_bias.rank = 1; }, "dt_bias is");
  broken([](Call& c) { c.args.state.dims[0] = 0; }, "slot 0 is beyond the state pool of 0 slots");
  broken([](Call& c) { c.args.state.dims[3] = 8; }, "state is");
  broken([](Call& c) { c.args.checkpoints.dims[0] = 0; }, "checkpoints has 0 rows: these lengths write 1");
  broken([](Call& c) { c.args.checkpoints.data = c.args.state.data; }, "checkpoints overlaps state");
  broken([](Call& c) { c.args.out.data = c.args.v.data; }, "out overlaps v");
  broken([](Call& c) { c.parsed.problem.tokens = c.parsed.problem.max_length = 64; }, "more than the problem's");
}

TEST(DeltaRuleArgs, SlicesOfOneFusedBufferAreFine) {
  Call c("gdn_decode lens=3x1 hk=1 hv=1 k=16 v=16 alignment=16");
  const int64_t pitch = 64;
  TensorView* slices[] = {&c.args.q, &c.args.k, &c.args.v, &c.args.out};
  for (int i = 0; i < 4; ++i) {
    *slices[i] = TensorView(c.memory.data() + i * 32, DType::kBF16, {3, 1, 16}, {pitch, 16, 1});
  }
  c.args.state.dims[0] = 3;
  EXPECT_EQ(c.Error(), "");
  c.args.out.data = c.memory.data() + 2 * 32 + 16;
  EXPECT_NE(c.Error().find("out overlaps v"), std::string::npos);
}

TEST(DeltaRuleArgs, TokenSlots) {
  Call c("kda_decode lens=2x4 hk=1 k=16 v=16 token_states=1");
  EXPECT_EQ(c.Error(), "");
  c.args.token_slots.dims[1] = 3;
  EXPECT_NE(c.Error().find("token_slots is i32[2,3]"), std::string::npos);
}

TEST(DeltaRuleSelect, ListEndsWithReferenceAndNamesAreUnique) {
  for (const Op op : {Op::kGdnPrefill, Op::kGdnDecode, Op::kKdaPrefill, Op::kKdaDecode}) {
    const auto list = Backends(op);
    ASSERT_FALSE(list.empty());
    EXPECT_EQ(list.back().name, "reference");
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_NE(list[i].name, list[j].name);
    }
  }
}

TEST(DeltaRuleSelect, ExplicitNeverFallsBack) {
  const Problem p = Parse("kda_prefill lens=64 hk=2 gate=bounded:-5").problem;
  const DeviceInfo cpu = CpuDeviceInfo(2);
  const auto cuda = Choose(p, cpu, "cuda_tokens");
  ASSERT_FALSE(cuda.ok());
  EXPECT_EQ(cuda.status().code(), Code::kRefused);
  EXPECT_NE(cuda.status().message().find("reference"), std::string::npos) << cuda.status().message();
  const auto unknown = Choose(p, cpu, "triton");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(Choose(p, cpu, "reference").ok());
  EXPECT_EQ(Choose(p, cpu, "reference")->backend->name, "reference");
  Problem bad = p;
  bad.hv = 3;
  EXPECT_EQ(Choose(bad, cpu, "auto").status().code(), Code::kInvalidArgument);
}

TEST(DeltaRuleSelect, AutoOnHopperFollowsTheMeasurements) {
  const DeviceInfo hopper = *AssumedDevice("sm_90");
  // Which was faster on an H200 (docs/kernels/delta_rule_chunk16.md); a build without CUDA explains the same.
  const std::pair<const char*, const char*> expected[] = {
      {"kda_prefill lens=8192 hk=96 gate=bounded:-5", "cuda_chunk16_balanced"},
      {"kda_prefill lens=8192 hk=64 gate=bounded:-5", "cuda_chunk16_balanced"},
      {"kda_prefill lens=8x1024 hk=64 gate=bounded:-5", "cuda_chunk16"},
      {"kda_prefill lens=512 hk=12 gate=bounded:-5", "cuda_chunk16"},
      {"kda_prefill lens=8192 hk=32 gate=bounded:-5", "cuda_chunk16_balanced"},
      {"kda_prefill lens=8192 hk=12 gate=bounded:-5", "cuda_chunk16_balanced"},
      {"kda_prefill lens=65536 hk=8 gate=bounded:-5", "cuda_chunk16_balanced"},
      {"kda_prefill lens=8x1024 hk=32 gate=bounded:-5", "cuda_chunk16"},
      {"kda_prefill lens=8192 hk=32 gate=softplus", "cuda_tokens"},
      {"gdn_prefill lens=8192 hk=16 hv=32", "cuda_chunk16_balanced"},
      {"gdn_prefill lens=8192 hk=2 hv=8", "cuda_chunk16_balanced"},
      {"gdn_prefill lens=65536 hk=2 hv=8", "cuda_chunk16_balanced"},
      {"gdn_prefill lens=8x1024 hk=16 hv=32", "cuda_chunk16"},
      {"gdn_prefill lens=8x1024 hk=2 hv=8", "cuda_chunk16"},
      {"kda_prefill lens=8x2048 hk=16 gate=bounded:-5", "cuda_chunk16"},
      {"kda_decode lens=128x1 hk=32 gate=bounded:-5", "cuda_decode"},
      {"gdn_decode lens=4x3 hk=16 hv=32", "cuda_tokens"},
  };
  for (const auto& [line, name] : expected) {
    const auto chosen = Choose(Parse(line).problem, hopper, "auto");
    ASSERT_TRUE(chosen.ok()) << line << ": " << chosen.status().message();
    EXPECT_EQ(chosen->backend->name, name) << line;
  }
  const auto refused = Choose(Parse("kda_prefill lens=64 hk=2 gate=softplus").problem, hopper, "cuda_chunk16");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("bounded gate"), std::string::npos) << refused.status().message();
  EXPECT_FALSE(Choose(Parse("kda_prefill lens=64 hk=2").problem, *AssumedDevice("sm_100"), "cuda_tokens").ok());
}

TEST(DeltaRuleSelect, AutoTakesChunksInBf16OnlyWhereTheyRun) {
  const DeviceInfo cpu = CpuDeviceInfo(2);
  const auto name = [&](const std::string& line) {
    const auto chosen = Choose(Parse(line).problem, cpu, "auto");
    return chosen.ok() ? std::string(chosen->backend->name) : chosen.status().message();
  };
  EXPECT_EQ(name("gdn_prefill lens=2048 hk=2 io=fp32"), "cpu");
  EXPECT_EQ(name("kda_decode lens=64x1 hk=2"), "cpu");
  const bool bf16 = Choose(Parse("kda_prefill lens=64 hk=2").problem, cpu, "cpu_bf16").ok();
  EXPECT_EQ(name("gdn_prefill lens=2048 hk=2"), bf16 ? "cpu_bf16" : "cpu");
  EXPECT_EQ(name("gdn_prefill lens=7,3 hk=2"), bf16 ? "cpu_bf16" : "cpu");
  EXPECT_EQ(name("kda_prefill lens=2048 hk=2"), bf16 ? "cpu_bf16" : "cpu");
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
