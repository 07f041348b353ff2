// SPDX-License-Identifier: Apache-2.0
// Selection over made-up backends: a pure function, so no device is needed.
#include "ops/common/backend.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fluvial::ops {
namespace {

struct Problem {
  int n = 0;
};
struct Args {};
using TestBackend = Backend<Problem, Args>;

Check Accept(const Problem&, const DeviceInfo&) { return Check::Accept(); }
Check UpToTen(const Problem& p, const DeviceInfo&) {
  if (p.n > 10) return Check::Refuse("n is " + std::to_string(p.n) + ", at most 10");
  return Check::Accept();
}
Check NeedsSm90(const Problem&, const DeviceInfo& d) {
  if (d.Arch() != "sm_90") return Check::Refuse("device is " + d.Arch() + ", needs sm_90");
  return Check::Accept();
}
size_t NoWorkspace(const Problem&, const DeviceInfo&) { return 0; }
template <int kMicroseconds>
double Cost(const Problem&, const DeviceInfo&) {
  return kMicroseconds;
}
Status Run(Stream&, const Problem&, const Args&, Workspace) { return Status::Ok(); }

const std::vector<TestBackend>& List() {
  static const std::vector<TestBackend> list = {
      {"cuda", "d", NeedsSm90, NoWorkspace, Cost<1>, Run},   {"small", "d", UpToTen, NoWorkspace, Cost<10>, Run},
      {"cpu", "d", Accept, NoWorkspace, Cost<20>, Run},      {"twin", "d", Accept, NoWorkspace, Cost<20>, Run},
      {"reference", "d", Accept, NoWorkspace, Cost<5>, Run},
  };
  return list;
}
Result<Selection<Problem, Args>> Choose(int n, std::string_view preference, const DeviceInfo& device = {}) {
  return Select<Problem, Args>(List(), "op", Problem{n}, device, preference);
}

TEST(Select, AutoTakesTheCheapestThatAccepts) {
  EXPECT_EQ(Choose(5, "auto")->backend->name, "small");
  EXPECT_EQ(Choose(5, "")->backend->name, "small");
  EXPECT_EQ(Choose(5, "auto", *AssumedDevice("sm_90"))->backend->name, "cuda");
}

TEST(Select, ATieGoesToTheEarlierOneAndNeverToTheReference) {
  // The reference's cost of 5 is the lowest, and still auto leaves it alone.
  EXPECT_EQ(Choose(11, "auto")->backend->name, "cpu");
}

TEST(Select, ReferenceIsTheLastResort) {
  const std::vector<TestBackend> list = {List()[0], List()[4]};
  const auto s = Select<Problem, Args>(list, "op", Problem{1}, DeviceInfo{}, "auto");
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->backend->name, "reference");
  EXPECT_TRUE(s->candidates[1].chosen);
}

TEST(Select, CandidatesExplainEveryBackendInListOrder) {
  const auto s = Choose(11, "auto");
  ASSERT_TRUE(s.ok());
  ASSERT_EQ(s->candidates.size(), 5u);
  EXPECT_EQ(s->candidates[0].check.reason(), "device is cpu, needs sm_90");
  EXPECT_EQ(s->candidates[1].check.reason(), "n is 11, at most 10");
  EXPECT_EQ(s->candidates[2].cost_us, 20);
  int chosen = 0;
  for (const Candidate& c : s->candidates) chosen += c.chosen;
  EXPECT_EQ(chosen, 1);
  EXPECT_TRUE(s->candidates[2].chosen);
  EXPECT_EQ(Describe("op", "auto", s->candidates),
            "op: cpu (auto, 20.0 us); cuda refused: device is cpu, needs sm_90; small refused: n is 11, at most 10; "
            "twin: 20.0 us; reference: 5.0 us");
}

TEST(Select, ExplicitTakesThatOneWhateverItCosts) {
  for (const char* name : {"cpu", "twin", "reference", "small"}) {
    const auto s = Choose(5, name);
    ASSERT_TRUE(s.ok()) << name;
    EXPECT_EQ(s->backend->name, name);
  }
  EXPECT_EQ(Describe("op", "twin", Choose(5, "twin")->candidates).substr(0, 25), "op: twin (asked for, 20.0");
}

TEST(Select, ExplicitNeverFallsBack) {
  const auto s = Choose(11, "small");
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().code(), Code::kRefused);
  EXPECT_EQ(s.status().message(),
            "op: backend 'small' cannot run this: n is 11, at most 10; backends that can: cpu, twin, reference");
  // Those that can are listed wherever they stand: before the refused one, too.
  const std::vector<TestBackend> list = {List()[2], List()[0], List()[4]};
  const auto t = Select<Problem, Args>(list, "op", Problem{1}, DeviceInfo{}, "cuda");
  ASSERT_FALSE(t.ok());
  EXPECT_EQ(t.status().message(),
            "op: backend 'cuda' cannot run this: device is cpu, needs sm_90; backends that can: cpu, reference");
}

TEST(Select, ExplicitRefusedWithNobodyElse) {
  const std::vector<TestBackend> list = {List()[0]};
  const auto s = Select<Problem, Args>(list, "op", Problem{1}, DeviceInfo{}, "cuda");
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().code(), Code::kRefused);
  EXPECT_NE(s.status().message().find("backends that can: none"), std::string::npos);
}

TEST(Select, UnknownNamesAreABadRequestWithTheList) {
  for (const char* name : {"cudnn", "CPU", "auto ", "cpu,twin"}) {
    const auto s = Choose(5, name);
    ASSERT_FALSE(s.ok()) << name;
    EXPECT_EQ(s.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(s.status().message(),
              "op: there is no backend '" + std::string(name) + "'; backends: auto, cuda, small, cpu, twin, reference");
  }
}

TEST(Select, AutoWithNobodyListsEveryReason) {
  const std::vector<TestBackend> list = {List()[0], List()[1]};
  const auto s = Select<Problem, Args>(list, "op", Problem{12}, DeviceInfo{}, "auto");
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.status().code(), Code::kRefused);
  EXPECT_EQ(s.status().message(),
            "op: no backend can run this on cpu\n  cuda: device is cpu, needs sm_90\n  small: n is 12, at most 10");
}

}  // namespace
}  // namespace fluvial::ops
