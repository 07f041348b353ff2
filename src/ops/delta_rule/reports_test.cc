// SPDX-License-Identifier: Apache-2.0
// Conditions under which published implementations went wrong, with the right values. Which report each test answers:
// docs/ops/delta_rule_reports.md.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/delta_rule/call_test.h"
#include "ops/delta_rule/test_kit.h"

namespace fluvial::ops::delta_rule {
namespace {

using test_kit::Random;

const std::string kPrefills[] = {"gdn_prefill ", "kda_prefill "};
const std::string kAll[] = {"gdn_prefill ", "kda_prefill ", "gdn_decode ", "kda_decode "};

// One sequence per length, each with its own slot.
void RunCall(const std::string& backend, Call& call, const std::vector<int64_t>& lengths) {
  const auto stream = MakeCpuStream(2);
  const SequencePlan plan = SequencePlan::Make(*stream, {lengths, {}, {}}).value();
  call.args.plan = &plan;
  const Problem& p = call.problem;
  if (!p.has_a_log) call.args.a_log = {};
  if (!p.has_dt_bias) call.args.dt_bias = {};
  const Status valid = Validate(p, call.args);
  ASSERT_TRUE(valid.ok()) << valid.message();
  const auto chosen = Choose(p, stream->device(), backend);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  call.workspace.resize(chosen->backend->workspace_bytes(p, stream->device()));
  const Status run = chosen->backend->run(*stream, p, call.args, {call.workspace.data(), call.workspace.size()});
  ASSERT_TRUE(run.ok()) << run.message();
}

void SetAll(const TensorView& t, const auto& value) {
  for (int64_t i = 0; i < t.elements(); ++i) StoreFromDouble(t.data, t.dtype, i, value(i));
}

double At(const TensorView& t, int64_t i) { return LoadAsDouble(t.data, t.dtype, i); }

void ExpectNear(const TensorView& got, const TensorView& want, double absolute, double relative,
                const std::string& what) {
  ASSERT_EQ(got.elements(), want.elements());
  for (int64_t i = 0; i < got.elements(); ++i) {
    const double a = At(got, i), b = At(want, i);
    ASSERT_TRUE(std::abs(a - b) <= absolute + relative * std::abs(b))
        << what << "[" << i << "]: " << a << ", not " << b;
  }
}

// Every backend that accepts the line, against the reference and its derived bound.
void ExpectBackendsAgree(const std::string& line, ThreadPool& pool, Stream& stream) {
  const auto spec = ParseCase(line);
  ASSERT_TRUE(spec.ok()) << line << ": " << spec.status().message();
  const auto prepared = PreparedCase::Make(*spec, pool);
  ASSERT_TRUE(prepared.ok()) << line << ": " << prepared.status().message();
  for (const DeltaBackend& backend : Backends(spec->line.problem.op)) {
    if (!backend.check(spec->line.problem, stream.device()).ok()) continue;
    const auto verdict = prepared->Check(stream, backend, PrecisionOf(backend));
    ASSERT_TRUE(verdict.ok()) << backend.name << ": " << line << ": " << verdict.status().message();
    EXPECT_TRUE(verdict->passed) << backend.name << ": " << line << "\n  " << verdict->why;
  }
}

void ExpectBackendsAgree(const std::string& line) {
  const auto stream = MakeCpuStream(2);
  ExpectBackendsAgree(line, stream->pool(), *stream);
}

// Decay and beta in [0.99, 1): a decay taken five tokens beside a block's end shows as 2 % of the state.
TEST(DeltaRuleReports, SlowDecayAtTheEndsOfBlocks) {
  for (const std::string& op : kPrefills) {
    for (const int64_t length : {64, 111, 192}) {
      const std::string line = op + "lens=" + std::to_string(length) +
                               " hk=1 k=128 v=128 io=fp16 gate=log gate_dtype=fp32 beta=probability beta_dtype=fp32";
      Call got(line, 1), want(line, 1);
      for (Call* call : {&got, &want}) {
        Random random(31);
        SetAll(call->args.gate, [&](int64_t) { return std::log(random.Uniform(0.99, 1)); });
        SetAll(call->args.beta, [&](int64_t) { return random.Uniform(0.99, 1); });
      }
      RunCall("cpu", got, {length});
      RunCall("reference", want, {length});
      ExpectNear(got.args.state, want.args.state, 2e-5, 1e-5, line + " state");
      ExpectNear(got.args.out, want.args.out, 2e-5, 0x1p-10, line + " out");
    }
  }
}

// One key for all tokens, beta 1, no decay: of all values only the newest is left. Every sum is exact.
TEST(DeltaRuleReports, OfEqualKeysTheNewestValueIsLeft) {
  const auto device = CpuDeviceInfo(1);
  for (const std::string& op : kPrefills) {
    for (const std::string backend : {"reference", "cpu", "cpu_bf16"}) {
      const std::string io = backend == "cpu_bf16" ? "bf16" : "fp32";
      const std::string line = op + "lens=64,65 hk=1 k=16 v=32 scale=1 norm=none gate=log beta=probability io=" + io;
      Call call(line, 2);
      if (!Choose(call.problem, device, backend).ok()) continue;  // no AVX-512 BF16 here
      Random random(78);
      SetAll(call.args.k, [](int64_t i) { return i % 16 % 3 == 0 ? -0.25 : 0.25; });
      SetAll(call.args.q, [&](int64_t) { return static_cast<double>(random.Int(-1, 1)); });
      SetAll(call.args.v, [&](int64_t) { return static_cast<double>(random.Int(-3, 3)); });
      SetAll(call.args.gate, [](int64_t) { return 0.0; });
      SetAll(call.args.beta, [](int64_t) { return 1.0; });
      SetAll(call.args.state, [](int64_t) { return 0.0; });
      RunCall(backend, call, {64, 65});
      for (int64_t t = 0; t < 129; ++t) {
        double qk = 0;
        for (int64_t c = 0; c < 16; ++c) qk += At(call.args.q, t * 16 + c) * At(call.args.k, c);
        for (int64_t v = 0; v < 32; ++v) {
          ASSERT_EQ(At(call.args.out, t * 32 + v), qk * At(call.args.v, t * 32 + v))
              << backend << " " << line << " " << t;
        }
      }
      for (int64_t i = 0; i < 2 * 32 * 16; ++i) {
        const int64_t last = i < 32 * 16 ? 63 : 128, v = i / 16 % 32;
        ASSERT_EQ(At(call.args.state, i), At(call.args.v, last * 32 + v) * At(call.args.k, i % 16)) << backend << i;
      }
    }
  }
}

// A gate of 0 is the delta rule without a gate, at any length; and 0 / -5 in turns. The loop here knows no gates
// beyond the factor e^g.
TEST(DeltaRuleReports, GatesOfZeroAreNoGates) {
  constexpr int64_t kK = 16, kV = 8;
  for (const std::string& op : kPrefills) {
    for (const int64_t length : {7, 64, 1000, 4096}) {
      for (const double other : {0.0, -5.0}) {
        const std::string line = op + "lens=" + std::to_string(length) +
                                 " hk=1 k=16 v=8 io=fp32 gate=log gate_dtype=fp32 beta_dtype=fp32 scale=1 norm=none "
                                 "beta=probability";
        Call call(line, 1);
        Random random(80);
        const int64_t width = call.problem.kda() ? kK : 1;
        SetAll(call.args.gate, [&](int64_t i) { return i / width % 2 == 0 ? 0 : other; });
        SetAll(call.args.beta, [&](int64_t) { return random.Uniform(); });
        SetAll(call.args.state, [](int64_t) { return 0.0; });
        for (int64_t t = 0; t < length; ++t) {
          double sum = 0;
          for (int64_t c = 0; c < kK; ++c) sum += At(call.args.k, t * kK + c) * At(call.args.k, t * kK + c);
          for (int64_t c = 0; c < kK; ++c) {
            StoreFromDouble(call.args.k.data, DType::kF32, t * kK + c, At(call.args.k, t * kK + c) / std::sqrt(sum));
          }
        }
        RunCall("cpu", call, {length});
        std::vector<double> s(kV * kK, 0.0);
        for (int64_t t = 0; t < length; ++t) {
          const double decay = t % 2 == 1 && other != 0 ? std::exp(other) : 1;
          for (int64_t v = 0; v < kV; ++v) {
            double predicted = 0, out = 0;
            for (int64_t c = 0; c < kK; ++c) predicted += (s[v * kK + c] *= decay) * At(call.args.k, t * kK + c);
            const double d = At(call.args.beta, t) * (At(call.args.v, t * kV + v) - predicted);
            for (int64_t c = 0; c < kK; ++c) {
              s[v * kK + c] += d * At(call.args.k, t * kK + c);
              out += s[v * kK + c] * At(call.args.q, t * kK + c);
            }
            // Sums of 16 and of chunk terms of size 1 to 4 in fp32.
            ASSERT_NEAR(At(call.args.out, t * kV + v), out, 1e-4) << line << " " << other << " token " << t;
          }
        }
        for (int64_t i = 0; i < kV * kK; ++i) ASSERT_NEAR(At(call.args.state, i), s[i], 2e-5) << line << " " << other;
      }
    }
  }
}

// A zero key leaves the decay alone in the state; a unit key and no state leave beta alone.
TEST(DeltaRuleReports, GateAndBetaOfAnyInput) {
  const double inputs[] = {-1e4, -1000, -104, -88, -20, -1, -1e-4, 0, 1e-4, 1, 10, 19.9, 20, 20.1, 25, 88, 104, 1e4};
  for (const std::string& op : kAll) {
    for (const double x : inputs) {
      const std::string line =
          op + "lens=1 hk=1 k=4 v=4 io=fp32 gate_dtype=fp32 beta_dtype=fp32 gate=softplus dt_bias=0 norm=none scale=1";
      Call call(line, 1);
      const double rate = 0.01;
      SetAll(call.args.a_log, [&](int64_t) { return std::log(rate); });
      SetAll(call.args.k, [](int64_t) { return 0.0; });
      SetAll(call.args.gate, [&](int64_t) { return x; });
      SetAll(call.args.beta, [&](int64_t) { return x; });
      SetAll(call.args.state, [](int64_t) { return 1.0; });
      RunCall("cpu", call, {1});
      const double g = -rate * (x > 20 ? x : std::log1p(std::exp(x)));
      // Relative: the argument's error, times the argument, and the exponential's own; below fp32's range, zero.
      for (int64_t i = 0; i < 16; ++i) {
        ASSERT_NEAR(At(call.args.state, i), std::exp(g), (std::abs(g) * 0x1p-20 + 0x1p-21) * std::exp(g) + 0x1p-126)
            << line << " x=" << x;
      }
      Call write(line, 1);
      SetAll(write.args.k, [](int64_t i) { return i == 0 ? 1.0 : 0.0; });
      SetAll(write.args.gate, [&](int64_t) { return x; });
      SetAll(write.args.beta, [&](int64_t) { return x; });
      SetAll(write.args.v, [](int64_t) { return 1.0; });
      SetAll(write.args.state, [](int64_t) { return 0.0; });
      RunCall("cpu", write, {1});
      const double beta = 1 / (1 + std::exp(-x));
      for (int64_t i = 0; i < 16; ++i) {
        ASSERT_NEAR(At(write.args.state, i), i % 4 == 0 ? beta : 0, 0x1p-20 * beta + 0x1p-126) << line << " x=" << x;
      }
    }
  }
}

// A factor of 2^n in q and k is gone after their norm, to the bit.
TEST(DeltaRuleReports, NormsForgetPowersOfTwo) {
  for (const std::string& op : kAll) {
    const int64_t length = op.find("decode") == std::string::npos ? 70 : 8;
    const std::string line =
        op + "lens=" + std::to_string(length) + " hk=1 hv=2 k=64 v=32 io=fp32 norm=l2_max:1e-12 gate=bounded:-5";
    Call plain(line, 1);
    RunCall("cpu", plain, {length});
    for (const int exponent : {-12, -3, 5, 20}) {
      Call scaled(line, 1);
      for (const TensorView* t : {&scaled.args.q, &scaled.args.k}) {
        SetAll(*t, [&](int64_t i) { return std::ldexp(At(*t, i), exponent); });
      }
      RunCall("cpu", scaled, {length});
      ExpectNear(scaled.args.out, plain.args.out, 0, 0, line + " out, 2^" + std::to_string(exponent));
      ExpectNear(scaled.args.state, plain.args.state, 0, 0, line + " state, 2^" + std::to_string(exponent));
    }
  }
}

// Keys of norm 8 in half precision: the norm inside makes them harmless.
TEST(DeltaRuleReports, LongKeysInHalfPrecision) {
  for (const std::string& op : kPrefills) {
    for (const std::string io : {"fp16", "bf16"}) {
      const std::string line = op + "lens=64 hk=1 k=64 v=64 gate=log gate_dtype=fp32 io=" + io;
      Call got(line, 1), want(line, 1);
      for (Call* call : {&got, &want}) SetAll(call->args.gate, [](int64_t) { return -1e-3; });
      RunCall("cpu", got, {64});
      RunCall("reference", want, {64});
      ExpectNear(got.args.state, want.args.state, 2e-5, 1e-5, line + " state");
      ExpectNear(got.args.out, want.args.out, 2e-5, io == "fp16" ? 0x1p-10 : 0x1p-7, line + " out");
    }
  }
}

// A pool of 8200 slots 540672 elements apart, and token rows more than 2^32 elements apart, in memory that is reserved
// but hardly touched.
TEST(DeltaRuleReports, AddressesAreSixtyFourBit) {
  const auto reserve = [](int64_t elements) {
    return mmap(nullptr, static_cast<size_t>(elements) * 4, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  constexpr int64_t kPitch = (int64_t{1} << 32) + 64, kSlotPitch = 540672, kSlots = 8200;
  for (const std::string& op : kAll) {
    const std::string line = op + "lens=2 hk=1 hv=2 k=8 v=16 io=fp32 gate_dtype=fp32 beta_dtype=fp32 alignment=4";
    Call want(line, kSlots), call(line, 1);
    std::vector<std::pair<void*, int64_t>> areas;
    for (TensorView* t : {&call.args.q, &call.args.k, &call.args.v, &call.args.gate, &call.args.beta, &call.args.out}) {
      const int64_t row = t->elements() / 2;
      areas.emplace_back(reserve(kPitch + row), kPitch + row);
      ASSERT_NE(areas.back().first, MAP_FAILED);
      auto* to = static_cast<float*>(areas.back().first);
      for (int64_t i = 0; i < 2; ++i) std::memcpy(to + i * kPitch, static_cast<float*>(t->data) + i * row, row * 4);
      t->data = to;
      t->strides[0] = kPitch;
    }
    constexpr int64_t kState = 2 * 16 * 8;
    areas.emplace_back(reserve(kSlotPitch * kSlots), kSlotPitch * kSlots);
    ASSERT_NE(areas.back().first, MAP_FAILED);
    auto* pool = static_cast<float*>(areas.back().first);
    const auto* last = static_cast<const float*>(want.args.state.data) + (kSlots - 1) * kState;
    std::memcpy(pool + (kSlots - 1) * kSlotPitch, last, kState * 4);
    call.args.state = TensorView(pool, DType::kF32, {kSlots, 2, 16, 8}, {kSlotPitch, 128, 8, 1});
    const auto stream = MakeCpuStream(1);
    const SequencePlan plan = SequencePlan::Make(*stream, {{2}, {kSlots - 1}, {kSlots - 1}}).value();
    for (const std::string backend : {"cpu", "reference"}) {
      Call fresh(line, kSlots);
      for (Call* c : {&fresh, &call}) {
        c->args.plan = &plan;
        const Status valid = Validate(c->problem, c->args);
        ASSERT_TRUE(valid.ok()) << valid.message();
        const auto chosen = Choose(c->problem, stream->device(), backend);
        ASSERT_TRUE(chosen.ok()) << chosen.status().message();
        c->workspace.resize(chosen->backend->workspace_bytes(c->problem, stream->device()));
        ASSERT_TRUE(
            chosen->backend->run(*stream, c->problem, c->args, {c->workspace.data(), c->workspace.size()}).ok());
      }
      for (int64_t i = 0; i < 2; ++i) {
        EXPECT_EQ(std::memcmp(static_cast<float*>(call.args.out.data) + i * kPitch,
                              static_cast<float*>(fresh.args.out.data) + i * 32, 32 * 4),
                  0)
            << backend << " " << line << " token " << i;
      }
      EXPECT_EQ(std::memcmp(pool + (kSlots - 1) * kSlotPitch,
                            static_cast<float*>(fresh.args.state.data) + (kSlots - 1) * kState, kState * 4),
                0)
          << backend << " " << line;
      std::memcpy(pool + (kSlots - 1) * kSlotPitch, last, kState * 4);
    }
    for (const auto& [memory, elements] : areas) munmap(memory, static_cast<size_t>(elements) * 4);
  }
}

// More (sequence, head) pairs than a 16-bit grid axis holds.
TEST(DeltaRuleReports, ThreeThousandSequencesOfOneToken) {
  for (const std::string& op : kAll) {
    ExpectBackendsAgree(op + "lens=3000x1 hk=4 hv=32 k=4 v=4 alignment=2 slots=shuffled fill=exact norm=none scale=1");
  }
}

TEST(DeltaRuleReports, EmptySequencesInEveryOrder) {
  const auto stream = MakeCpuStream(1);
  std::vector<int> lengths = {0, 0, 1, 63, 64, 65};
  int orders = 0;
  do {
    std::string list;
    for (const int length : lengths) list += (list.empty() ? "" : ",") + std::to_string(length);
    for (const std::string& op : kPrefills) {
      ExpectBackendsAgree(op + "hk=1 k=4 v=4 alignment=2 fill=exact norm=none scale=1 lens=" + list, stream->pool(),
                          *stream);
    }
    ++orders;
  } while (std::next_permutation(lengths.begin(), lengths.end()));
  EXPECT_EQ(orders, 360);
}

// Head dims that are no power of two and tails of every length, with NaN behind each row and behind the last token.
TEST(DeltaRuleReports, TailsAndOddHeadDimsReadNothingBehind) {
  std::string lengths;
  for (int i = 65; i <= 127; ++i) lengths += (i == 65 ? "" : ",") + std::to_string(i);
  for (const std::string& op : kPrefills) {
    for (const std::string fill : {"strong", "random"}) {
      ExpectBackendsAgree(op + "hk=1 k=96 v=20 alignment=8 pad=8 extra=2 gate=bounded:-5 fill=" + fill +
                          " lens=" + lengths);
    }
  }
}

// A state type is served with its own values or refused; every input type with every state type, one after another.
TEST(DeltaRuleReports, EveryInputTypeWithEveryStateType) {
  for (const std::string& op : kAll) {
    for (const std::string io : {"fp32", "fp16", "bf16"}) {
      for (const std::string state : {"fp32", "fp16", "bf16"}) {
        const std::string lengths = op.find("decode") == std::string::npos ? "70,3" : "3,1";
        ExpectBackendsAgree(op + "hk=1 hv=2 k=64 v=32 fill=random io=" + io + " state=" + state + " lens=" + lengths);
      }
    }
  }
}

// A million steps of nearly collinear keys and slow gates: the error does not grow beyond its bound.
TEST(DeltaRuleReports, MillionSteps) {
  const std::string tail = " hk=1 k=8 v=4 alignment=4 fill=collinear gate=log io=fp32 gate_dtype=fp32";
  ExpectBackendsAgree("kda_prefill lens=1000000" + tail);
  ExpectBackendsAgree("gdn_prefill lens=200000" + tail);
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
