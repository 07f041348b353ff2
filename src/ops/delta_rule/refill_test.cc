// SPDX-License-Identifier: Apache-2.0
// Plans refilled in place: tables derived from a plan - offsets, slots, checkpoint rows - must follow its contents,
// never its address. Each case runs a plan, refills it with as many tokens and sequences, runs again, and compares with
// a plan made afresh. Without the comparison of generations in ops/common/plan_cache.h these tests fail.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/common/plan_cache.h"
#include "ops/delta_rule/call_test.h"

namespace fluvial::ops::delta_rule {
namespace {

constexpr int64_t kSlots = 6;

/// Results of one run over fresh copies of states and outputs.
std::vector<char> RunBytes(Call& call, Stream& stream, const std::string& backend, const SequencePlan& plan) {
  const std::vector<std::vector<char>> before = call.memory;
  call.args.plan = &plan;
  const Status valid = Validate(call.problem, call.args);
  EXPECT_TRUE(valid.ok()) << valid.message();
  const auto chosen = Choose(call.problem, stream.device(), backend);
  EXPECT_TRUE(chosen.ok()) << chosen.status().message();
  if (!valid.ok() || !chosen.ok()) return {};
  call.workspace.assign(chosen->backend->workspace_bytes(call.problem, stream.device()), static_cast<char>(0xff));
  const Status s =
      chosen->backend->run(stream, call.problem, call.args, {call.workspace.data(), call.workspace.size()});
  EXPECT_TRUE(s.ok()) << s.message();
  std::vector<char> results;
  for (const TensorView* t : {&call.args.out, &call.args.state, &call.args.checkpoints}) {
    if (!t->defined()) continue;
    const auto* at = static_cast<const char*>(t->data);
    results.insert(results.end(), at, at + static_cast<size_t>(t->elements()) * SizeOf(t->dtype));
  }
  for (size_t i = 0; i < call.memory.size(); ++i)
    std::memcpy(call.memory[i].data(), before[i].data(), before[i].size());
  return results;
}

std::vector<std::string> CpuBackends(Op op) {
  std::vector<std::string> names = {"cpu", "reference"};
  const DeviceInfo cpu = CpuDeviceInfo(2);
  Problem p = ParseProblemLine(std::string(Name(op)) + " hk=1 lens=1")->problem;
  for (const DeltaBackend& b : Backends(op)) {
    if (b.name == "cpu_bf16" && b.check(p, cpu).ok()) names.emplace_back(b.name);
  }
  return names;
}

/// `first`, then `second` in the same plan, against `second` in a plan of its own.
void ExpectRefillIsFresh(const std::string& line, const SequenceSpec& first, const SequenceSpec& second) {
  const auto stream = MakeCpuStream(2);
  Call call(line, kSlots);
  for (const std::string& backend : CpuBackends(call.problem.op)) {
    auto plan = SequencePlan::Create(*stream, {call.problem.tokens, 8, 0});
    ASSERT_TRUE(plan.ok());
    ASSERT_TRUE(plan->Refill(*stream, first).ok());
    const auto* address = plan->device_offsets();
    const auto warm = RunBytes(call, *stream, backend, *plan);
    ASSERT_TRUE(plan->Refill(*stream, second).ok());
    ASSERT_EQ(plan->device_offsets(), address) << "refilled in place";
    const auto refilled = RunBytes(call, *stream, backend, *plan);
    const auto own = SequencePlan::Make(*stream, second);
    ASSERT_TRUE(own.ok());
    EXPECT_TRUE(refilled == RunBytes(call, *stream, backend, *own))
        << backend << ": " << line << " saw the plan of before";
    EXPECT_FALSE(refilled == warm) << backend << ": the two plans must differ for this to be a test";
  }
}

const std::string kGdn = "gdn_prefill hk=1 hv=2 k=32 v=64 lens=";
const std::string kKda = "kda_prefill hk=2 hv=2 k=32 v=64 gate=bounded:-5 lens=";

TEST(DeltaRuleRefill, Lengths) {
  for (const std::string& op : {kGdn, kKda}) {
    ExpectRefillIsFresh(op + "70,3,40", {{70, 3, 40}, {}, {}}, {{3, 70, 40}, {}, {}});
    ExpectRefillIsFresh(op + "64,0,1", {{64, 0, 1}, {}, {}}, {{1, 64, 0}, {}, {}});
  }
  ExpectRefillIsFresh("gdn_decode hk=1 hv=2 k=32 v=64 lens=1,0,3", {{1, 0, 3}, {}, {}}, {{3, 1, 0}, {}, {}});
}

TEST(DeltaRuleRefill, CheckpointRows) {
  for (const std::string& op : {kGdn, kKda}) {
    // The longest sequence stays the longest, and the first: only the rows of the others move.
    ExpectRefillIsFresh(op + "200,64,70 checkpoint_every=64", {{200, 64, 70}, {}, {}}, {{200, 1, 133}, {}, {}});
  }
}

// The same lengths at the same addresses with other slots: a stale table would write the slots of another sequence.
TEST(DeltaRuleRefill, SlotAliasing) {
  for (const std::string& op : {kGdn, kKda}) {
    ExpectRefillIsFresh(op + "9,20", {{9, 20}, {0, 1}, {0, 1}}, {{9, 20}, {1, 0}, {1, 0}});
    ExpectRefillIsFresh(op + "9,20", {{9, 20}, {0, 1}, {2, 3}}, {{9, 20}, {4, -1}, {-1, 5}});
  }
  for (const std::string op : {"gdn_decode hk=1 hv=2", "kda_decode hk=2 gate=bounded:-5"}) {
    ExpectRefillIsFresh(op + " k=32 v=64 lens=2x1", {{1, 1}, {0, 1}, {0, 1}}, {{1, 1}, {5, 1}, {5, 3}});
  }
}

// A new plan where an old one was: the same address and the same generation, another plan.
TEST(DeltaRuleRefill, APlanAtTheAddressOfAnother) {
  const auto stream = MakeCpuStream(2);
  Call call(kGdn + "70,3", kSlots);
  for (const std::string& backend : CpuBackends(call.problem.op)) {
    std::optional<SequencePlan> plan(std::move(SequencePlan::Make(*stream, {{70, 3}, {0, 1}, {0, 1}})).value());
    const uint64_t generation = plan->generation();
    RunBytes(call, *stream, backend, *plan);
    plan.reset();
    plan.emplace(std::move(SequencePlan::Make(*stream, {{3, 70}, {2, 3}, {2, 3}})).value());
    ASSERT_EQ(plan->generation(), generation);
    const auto got = RunBytes(call, *stream, backend, *plan);
    const auto own = SequencePlan::Make(*stream, {{3, 70}, {2, 3}, {2, 3}});
    EXPECT_TRUE(got == RunBytes(call, *stream, backend, *own)) << backend;
  }
}

TEST(PlanCache, BuildsOncePerContentsAndKeepsTheLastFew) {
  const auto stream = MakeCpuStream(1);
  auto a = std::move(SequencePlan::Make(*stream, {{1, 2}, {}, {}})).value();
  auto b = std::move(SequencePlan::Make(*stream, {{2, 1}, {}, {}})).value();
  PlanCache<int64_t> cache;
  int built = 0;
  const auto get = [&](const SequencePlan& plan, int64_t key) {
    return cache.Get(plan, key, [&](int64_t& value) {
      ++built;
      value = plan.offsets()[1] * 100 + key;
    });
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(get(a, 0), 100);
    EXPECT_EQ(get(b, 0), 200);
    EXPECT_EQ(get(a, 7), 107) << "another key";
  }
  EXPECT_EQ(built, 3);
  ASSERT_TRUE(a.Refill(*stream, {{0, 3}, {}, {}}).ok());
  EXPECT_EQ(get(a, 0), 0) << "refilled";
  EXPECT_EQ(get(b, 0), 200);
  EXPECT_EQ(built, 4);
}

}  // namespace
}  // namespace fluvial::ops::delta_rule
