// SPDX-License-Identifier: Apache-2.0
#include "ops/causal_conv1d/causal_conv1d.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hwy/targets.h"
#include "ops/causal_conv1d/test_kit.h"

namespace fluvial::ops::causal_conv1d {
namespace {

using test::Call;
using test::CallSetup;

constexpr DType kIoTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
const std::vector<int64_t> kRagged = {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 0, 300, 1, 0};

double Epsilon(DType t) { return t == DType::kF32 ? 0x1p-24 : t == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

const ConvBackend& Find(std::string_view name) {
  for (const ConvBackend& b : Backends()) {
    if (b.name == name) return b;
  }
  ADD_FAILURE() << "no backend " << name;
  return Backends().back();
}

Status RunOn(Stream& stream, std::string_view backend, Call& call) {
  FLUVIAL_RETURN_IF_ERROR(Validate(call.problem, call.args));
  return Find(backend).run(stream, call.problem, call.args, {});
}

/// Runs `setup` on a fresh plan and call.
Call RunFresh(Stream& stream, std::string_view backend, const CallSetup& setup) {
  auto plan = test::MakePlan(stream, setup);
  FLUVIAL_CHECK_MSG(plan.ok(), plan.status().message().c_str());
  Call call(setup, *plan);
  const Status s = RunOn(stream, backend, call);
  EXPECT_TRUE(s.ok()) << s.message();
  call.args.plan = nullptr;
  return call;
}

void ExpectSameBits(const Call& a, const Call& b, const std::string& what) {
  EXPECT_EQ(a.out, b.out) << what << ": out";
  EXPECT_EQ(a.state, b.state) << what << ": state";
  EXPECT_EQ(a.checkpoints, b.checkpoints) << what << ": checkpoints";
}

CallSetup Base(DType io, int32_t channels, int32_t width, std::vector<int64_t> lengths) {
  CallSetup s;
  s.problem.io = s.problem.weight = s.problem.state = io;
  s.problem.channels = channels;
  s.problem.width = width;
  s.lengths = std::move(lengths);
  return s;
}

class CausalConv1d : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  std::unique_ptr<Stream> stream_ = MakeCpuStream(3);
};

// Indexing, ragged lengths, slots, strides: whole numbers make every result exact, so cpu == reference to the bit, in
// the outputs, in the states and in all the memory that nobody may touch.
TEST_P(CausalConv1d, ExactIntegersMatchTheReference) {
  uint64_t seed = 1;
  for (DType io : kIoTypes) {
    for (int32_t width = kMinWidth; width <= kMaxWidth; ++width) {
      for (int32_t channels : {1, 7, 33, 515}) {
        CallSetup s = Base(io, channels, width, kRagged);
        s.problem.activation = Activation::kNone;
        s.problem.has_bias = width % 2 == 0;
        if (width % 3 == 0) s.problem.weight = DType::kF32;
        if (channels == 33) s.problem.state = DType::kF32;
        s.problem.checkpoint_every = channels == 7 ? 16 : channels == 33 ? 1 : 0;
        s.problem.rounding = width % 2 == 0 ? Rounding::kOnce : Rounding::kEager;
        const int32_t n = static_cast<int32_t>(s.lengths.size());
        s.slots = 2 * n + 1;
        for (int32_t i = 0; i < n; ++i) {
          s.read_slots.push_back(i % 4 == 3 ? -1 : 2 * (n - i));
          // In place, elsewhere, or nowhere; slots in between stay unused.
          s.write_slots.push_back(i % 5 == 4 ? -1 : i % 2 == 0 ? 2 * (n - i) : 2 * i + 1);
        }
        s.x_pad = 5;
        s.out_pad = 3;
        s.slot_pad = 11;
        s.integers = true;
        s.seed = seed++;
        const std::string what = s.problem.ToString() + " seed=" + std::to_string(s.seed);
        ExpectSameBits(RunFresh(*stream_, "cpu", s), RunFresh(*stream_, "reference", s), what);
        if (HasFailure()) return;
      }
    }
  }
}

// Against fp64: W+1 roundings of the sum, 4 ulp of SiLU (whose slope is at most 1.1), one or two roundings to io.
TEST_P(CausalConv1d, ErrorWithinTheDerivedBound) {
  for (DType io : kIoTypes) {
    for (Rounding rounding : {Rounding::kOnce, Rounding::kEager}) {
      CallSetup s = Base(io, 100, 4, {1, 70, 0, 200});
      s.problem.rounding = rounding;
      s.problem.has_bias = true;
      s.read_slots = {0, -1, 2, 3};
      s.seed = 77;
      const Call got = RunFresh(*stream_, "cpu", s);
      const Call want = RunFresh(*stream_, "reference", s);
      EXPECT_EQ(got.state, want.state);
      // |x| <= 2, |w| <= 0.7, |bias| <= 0.5.
      const double sum = 4 * 2 * 0.7 + 0.5, e32 = 0x1p-24, e = Epsilon(io);
      const int roundings = rounding == Rounding::kEager && io != DType::kF32 ? 2 : 1;
      for (int64_t i = 0; i < got.problem.tokens * 100; ++i) {
        const double a = LoadAsDouble(got.out.data(), io, i), b = LoadAsDouble(want.out.data(), io, i);
        // Where both round the same exact value differently they differ by one unit (2 e) per rounding.
        const double bound = 1.1 * 5 * e32 * sum + 8 * e32 * std::abs(b) +
                             roundings * 2 * e * (roundings == 2 ? 1.1 * sum : std::abs(b)) + 0x1p-24;
        ASSERT_LE(std::abs(a - b), bound) << s.problem.ToString() << " element " << i;
        ASSERT_FALSE(std::isnan(a));
      }
    }
  }
}

TEST_P(CausalConv1d, SplitAnywhereGivesTheSameBits) {
  for (DType io : {DType::kBF16, DType::kF32}) {
    for (int64_t total : {5, 70, 300}) {
      CallSetup whole = Base(io, 19, 4, {total});
      whole.problem.rounding = Rounding::kEager;
      whole.read_slots = {-1};
      whole.write_slots = {0};
      const Call want = RunFresh(*stream_, "cpu", whole);
      for (int64_t cut = 0; cut <= total; cut += total > 100 ? 7 : 1) {
        CallSetup first = whole, second = whole;
        first.lengths = {cut};
        second.lengths = {total - cut};
        second.read_slots = {0};
        Call a = RunFresh(*stream_, "cpu", first);
        auto plan = test::MakePlan(*stream_, second);
        ASSERT_TRUE(plan.ok());
        Call b(second, *plan);
        // The second call's inputs are the rest of the whole, its state the first call's; weights come from the whole.
        const size_t row = 19 * SizeOf(io);
        b.x.assign(want.x.begin() + cut * row, want.x.end());
        b.args.x.data = b.x.data();
        b.weight = want.weight;
        b.args.weight.data = b.weight.data();
        // The first call was made of other random weights: run it again on the whole's data.
        a.x.assign(want.x.begin(), want.x.begin() + cut * row + SizeOf(io));
        a.args.x.data = a.x.data();
        a.weight = want.weight;
        a.args.weight.data = a.weight.data();
        auto first_plan = test::MakePlan(*stream_, first);
        ASSERT_TRUE(first_plan.ok());
        a.args.plan = &*first_plan;
        ASSERT_TRUE(RunOn(*stream_, "cpu", a).ok());
        b.state = a.state;
        b.args.state.data = b.state.data();
        ASSERT_TRUE(RunOn(*stream_, "cpu", b).ok());
        std::vector<char> joined(a.out.begin(), a.out.begin() + cut * row);
        joined.insert(joined.end(), b.out.begin(), b.out.end());
        ASSERT_EQ(joined, want.out) << "cut " << cut << " of " << total;
        ASSERT_EQ(b.state, want.state) << "cut " << cut << " of " << total;
      }
    }
  }
}

// Batch = alone, permuted = permuted, one thread = three.
TEST_P(CausalConv1d, ResultsDoNotDependOnCompanyOrThreads) {
  CallSetup s = Base(DType::kBF16, 40, 4, kRagged);
  const Call batch = RunFresh(*stream_, "cpu", s);
  ExpectSameBits(RunFresh(*MakeCpuStream(1), "cpu", s), batch, "one thread");
  const size_t row = 40 * 2, slot = 3 * row;
  int64_t first = 0;
  for (size_t n = 0; n < kRagged.size(); ++n) {
    CallSetup alone = s;
    alone.lengths = {kRagged[n]};
    auto plan = test::MakePlan(*stream_, alone);
    ASSERT_TRUE(plan.ok());
    Call call(alone, *plan);
    call.weight = batch.weight;
    call.args.weight.data = call.weight.data();
    call.x.assign(batch.x.begin() + first * row, batch.x.begin() + (first + kRagged[n]) * row + 1);
    call.args.x.data = call.x.data();
    // Before the batch ran, slot n held values that depend on n and the seed alone.
    CallSetup numbers = s;
    auto batch_plan = test::MakePlan(*stream_, numbers);
    ASSERT_TRUE(batch_plan.ok());
    const Call before(numbers, *batch_plan);
    std::copy_n(before.state.begin() + n * slot, slot, call.state.begin());
    ASSERT_TRUE(RunOn(*stream_, "cpu", call).ok());
    ASSERT_TRUE(std::equal(call.out.begin(), call.out.begin() + kRagged[n] * row, batch.out.begin() + first * row));
    ASSERT_TRUE(std::equal(call.state.begin(), call.state.begin() + slot, batch.state.begin() + n * slot));
    first += kRagged[n];
  }
}

TEST_P(CausalConv1d, TokenStatesAreTheStatesAfterEachPrefix) {
  CallSetup s = Base(DType::kF16, 21, 4, {1, 5, 0, 3});
  s.problem.token_states = true;
  s.read_slots = {0, 1, 2, -1};
  s.slots = 20;
  // The read slot itself may be among a sequence's own token slots (1); unwanted tokens are negative.
  s.token_slots = {10, -1, -1, -1, -1, /**/ 11, 1, -1, 12, 13, /**/ -1, -1, -1, -1, -1, /**/ 14, 15, 16, -1, -1};
  const Call got = RunFresh(*stream_, "cpu", s);
  ExpectSameBits(got, RunFresh(*stream_, "reference", s), "token states");

  const size_t row = 21 * 2, slot = 3 * row;
  int64_t first = 0;
  for (size_t n = 0; n < s.lengths.size(); ++n) {
    for (int64_t t = 0; t < s.lengths[n]; ++t) {
      const int32_t at = s.token_slots[n * 5 + t];
      if (at < 0) continue;
      for (int64_t r = 0; r < 3; ++r) {
        const int64_t i = t + 1 - 3 + r;
        if (i < 0) continue;  // rows from the initial state: covered by the comparison with the reference
        EXPECT_TRUE(std::equal(got.x.begin() + (first + i) * row, got.x.begin() + (first + i + 1) * row,
                               got.state.begin() + at * slot + r * row));
      }
    }
    first += s.lengths[n];
  }

  s.token_slots[5] = 12;  // twice
  auto plan = test::MakePlan(*stream_, s);
  Call bad(s, *plan);
  EXPECT_NE(RunOn(*stream_, "cpu", bad).message().find("token slot 12 is given twice"), std::string::npos);
  s.token_slots[5] = 20;  // outside
  Call outside(s, *plan);
  EXPECT_NE(RunOn(*stream_, "cpu", outside).message().find("outside the state of 20 slots"), std::string::npos);
  s.token_slots[5] = 0;  // read by sequence 0
  Call foreign(s, *plan);
  EXPECT_NE(RunOn(*stream_, "cpu", foreign).message().find("is read by sequence 0"), std::string::npos);
}

// NaN in one sequence, in unused slots and in padding reaches nobody else.
TEST_P(CausalConv1d, NanStaysInItsSequence) {
  CallSetup s = Base(DType::kF32, 24, 4, {3, 200, 3});
  s.read_slots = {-1, 5, 6};
  s.write_slots = {-1, 5, 6};
  s.slots = 8;
  auto plan = test::MakePlan(*stream_, s);
  ASSERT_TRUE(plan.ok());
  Call call(s, *plan);
  const float nan = std::nanf("");
  auto* x = reinterpret_cast<float*>(call.x.data());
  for (int64_t t = 3; t < 203; ++t) std::fill_n(x + t * 24, 24, nan);
  ASSERT_TRUE(RunOn(*stream_, "cpu", call).ok());
  const auto* out = reinterpret_cast<const float*>(call.out.data());
  for (int64_t i = 0; i < 206 * 24; ++i) {
    const bool poisoned = i >= 3 * 24 && i < 203 * 24;
    ASSERT_EQ(std::isnan(out[i]), poisoned) << i;
  }
}

// Offsets beyond 2^31 elements, in memory that is reserved but hardly touched.
TEST_P(CausalConv1d, AddressesAreSixtyFourBit) {
  constexpr int64_t kPitch = (int64_t{1} << 31) + 64;
  const size_t bytes = static_cast<size_t>(2 * kPitch + 4096) * 2;
  auto reserve = [&] {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* areas[3] = {reserve(), reserve(), reserve()};
  for (void* p : areas) ASSERT_NE(p, MAP_FAILED);
  CallSetup s = Base(DType::kBF16, 48, 4, {2, 0, 1});
  s.read_slots = s.write_slots = {2, 1, 0};
  s.slots = 3;
  s.integers = true;
  s.problem.activation = Activation::kNone;
  const Call want = RunFresh(*stream_, "reference", s);
  auto plan = test::MakePlan(*stream_, s);
  ASSERT_TRUE(plan.ok());
  Call call(s, *plan);
  auto move = [](TensorView& view, void* to, int64_t pitch, int64_t row) {
    const auto* from = static_cast<const BFloat16*>(view.data);
    for (int64_t i = 0; i < view.dims[0]; ++i) {
      std::copy_n(from + i * view.strides[0], row, static_cast<BFloat16*>(to) + i * pitch);
    }
    view.data = to;
    view.strides[0] = pitch;
  };
  move(call.args.x, areas[0], kPitch, 48);
  move(call.args.out, areas[1], kPitch, 48);
  move(call.args.state, areas[2], kPitch, 3 * 48);
  ASSERT_TRUE(RunOn(*stream_, "cpu", call).ok());
  for (int64_t i = 0; i < 3; ++i) {
    const auto* out = static_cast<const BFloat16*>(areas[1]) + i * kPitch;
    const auto* state = static_cast<const BFloat16*>(areas[2]) + i * kPitch;
    EXPECT_EQ(std::memcmp(out, want.out.data() + i * 96, 96), 0) << i;
    EXPECT_EQ(std::memcmp(state, want.state.data() + i * 3 * 96, 3 * 96), 0) << i;
  }
  for (void* p : areas) munmap(p, bytes);
}

INSTANTIATE_TEST_SUITE_P(Targets, CausalConv1d, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

// The formula itself, by hand: W = 3, two tokens after a state.
TEST(CausalConv1dReference, HandComputed) {
  auto stream = MakeCpuStream(1);
  float x[] = {3, 4}, weight[] = {10, 100, 1000}, bias[] = {0.5f}, out[2], state[] = {1, 2};
  auto plan = SequencePlan::Make(*stream, {{2}, {}, {}});
  Problem p;
  p.io = p.weight = p.state = DType::kF32;
  p.channels = 1;
  p.width = 3;
  p.has_bias = true;
  p.activation = Activation::kNone;
  SetLengths(p, std::vector<int64_t>{2});
  Args a;
  a.x = TensorView(x, DType::kF32, {2, 1});
  a.out = TensorView(out, DType::kF32, {2, 1});
  a.weight = TensorView(weight, DType::kF32, {1, 3});
  a.bias = TensorView(bias, DType::kF32, {1});
  a.state = TensorView(state, DType::kF32, {1, 2, 1});
  a.plan = &*plan;
  for (const ConvBackend& b : Backends()) {
    state[0] = 1, state[1] = 2;
    ASSERT_TRUE(Validate(p, a).ok());
    ASSERT_TRUE(b.run(*stream, p, a, {}).ok());
    EXPECT_EQ(out[0], 3210.5f) << b.name;
    EXPECT_EQ(out[1], 4320.5f) << b.name;
    EXPECT_EQ(state[0], 3.0f) << b.name;
    EXPECT_EQ(state[1], 4.0f) << b.name;
  }
}

// A first call that is a decode step, without any state tensor.
TEST(CausalConv1dContract, NoStateIsNeededWithoutSlots) {
  auto stream = MakeCpuStream(1);
  CallSetup s = Base(DType::kF32, 8, 4, {1});
  s.read_slots = s.write_slots = {-1};
  auto plan = test::MakePlan(*stream, s);
  Call call(s, *plan);
  call.args.state = {};
  EXPECT_TRUE(RunOn(*stream, "cpu", call).ok());
  EXPECT_FALSE(std::isnan(reinterpret_cast<const float*>(call.out.data())[0]));
}

TEST(CausalConv1dContract, BadProblemsNameTheField) {
  Problem good;
  good.channels = 8;
  ASSERT_TRUE(Validate(good).ok());
  auto expect = [&](auto change, std::string_view text) {
    Problem p = good;
    change(p);
    const Status s = Validate(p);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Problem& p) { p.channels = 0; }, "channels is 0");
  expect([](Problem& p) { p.width = 1; }, "width is 1, it must be 2..8");
  expect([](Problem& p) { p.width = 9; }, "width is 9");
  expect([](Problem& p) { p.io = DType::kF64; }, "io is fp64");
  expect([](Problem& p) { p.weight = DType::kF16; }, "weight is fp16");
  expect([](Problem& p) { p.state = DType::kF16; }, "state is fp16");
  expect([](Problem& p) { p.tokens = -1; }, "negative");
  expect([](Problem& p) { p.checkpoint_every = -1; }, "checkpoint_every is -1");
  expect([](Problem& p) { p.token_states = true, p.max_length = 17; }, "at most 16 tokens, got 17");
}

TEST(CausalConv1dContract, BadArgsNameTheTensor) {
  auto stream = MakeCpuStream(1);
  CallSetup s = Base(DType::kF32, 8, 4, {3, 2});
  s.problem.has_bias = true;
  s.problem.checkpoint_every = 2;
  auto plan = test::MakePlan(*stream, s);
  Call good(s, *plan);
  ASSERT_TRUE(Validate(good.problem, good.args).ok());
  auto expect = [&](auto change, std::string_view text) {
    Args a = good.args;
    change(a);
    const Status status = Validate(good.problem, a);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  expect([](Args& a) { a.plan = nullptr; }, "no plan");
  expect([](Args& a) { a.x.dims[0] = 4; }, "x must be fp32[5,8], got fp32[4,8]");
  expect([](Args& a) { a.x.data = nullptr; }, "x has no data");
  expect([](Args& a) { a.x.strides[1] = 2; }, "x must have unit inner stride");
  expect([](Args& a) { a.out.dtype = DType::kBF16; }, "out must be fp32[5,8]");
  expect([](Args& a) { a.out = a.x; }, "out overlaps x");
  expect([](Args& a) { a.weight.dims[1] = 3; }, "weight must be");
  expect([](Args& a) { a.bias = {}; }, "bias must be");
  expect([](Args& a) { a.state.dims[0] = 1; }, "uses slot 1, but the state has 1 slots");
  expect([](Args& a) { a.state.strides[0] = 8; }, "slots of state overlap");
  expect([](Args& a) { a.state.strides[1] = 9; }, "state rows must be packed");
  expect([](Args& a) { a.checkpoints.dims[0] = 1; }, "checkpoints has 1 rows, 2 are needed");
  // x and out as column slices of one buffer do not overlap.
  std::vector<float> fused(5 * 16);
  Args a = good.args;
  a.x = TensorView(fused.data(), DType::kF32, {5, 8}, {16, 1});
  a.out = TensorView(fused.data() + 8, DType::kF32, {5, 8}, {16, 1});
  EXPECT_TRUE(Validate(good.problem, a).ok());
  a.out.data = fused.data() + 7;
  EXPECT_FALSE(Validate(good.problem, a).ok());
}

TEST(CausalConv1dSelection, AutoTakesCpuAndNamesAreObeyed) {
  Problem p;
  p.channels = 64;
  const DeviceInfo cpu = CpuDeviceInfo(2);
  EXPECT_EQ(Choose(p, cpu, "auto")->backend->name, "cpu");
  EXPECT_EQ(Choose(p, cpu, "reference")->backend->name, "reference");
  EXPECT_EQ(Choose(p, cpu, "nonsense").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Choose(p, *AssumedDevice("sm_90"), "cpu").status().code(), Code::kRefused);
  EXPECT_EQ(Backends().back().name, "reference");
}

TEST(CausalConv1dText, LinesRoundTrip) {
  const std::string text =
      "causal_conv1d c=8192 w=4 io=bf16 weight=fp32 state=fp32 bias=1 act=none rounding=eager every=64 lens=3x5,17 "
      "seed=9";
  auto line = ParseProblemLine(text);
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(FormatProblemLine(*line), text);
  EXPECT_EQ(line->problem.tokens, 32);
  EXPECT_EQ(ParseProblemLine(FormatProblemLine(*line))->problem, line->problem);
  EXPECT_NE(line->problem.Hash(), Problem{}.Hash());
  for (const char* bad : {"", "conv", "causal_conv1d c=8 x=1", "causal_conv1d c=0", "causal_conv1d c=8 act=relu",
                          "causal_conv1d c=99999999999", "causal_conv1d c=8 io=int9", "causal_conv1d c=8 lens=-1"}) {
    EXPECT_EQ(ParseProblemLine(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace fluvial::ops::causal_conv1d
