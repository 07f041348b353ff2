// SPDX-License-Identifier: Apache-2.0
// The planner's rules one by one: order, chunks, pages, copies, snapshots, retention.
#include "engine/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

namespace fluvial::engine {
namespace {

PlannerOptions Options() {
  PlannerOptions o;
  o.sequences = 4;
  o.step_tokens = 256;
  o.page_size = 16;
  o.pages = 100;
  o.cache = true;
  o.snapshots = 8;
  return o;
}

std::vector<int32_t> Count(int32_t n, int32_t from = 0) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), from);
  return out;
}

/// Steps a planner; every item's draw is token 1000 + its length.
class Driver {
 public:
  explicit Driver(const PlannerOptions& o) : planner(o) {}

  Task* Add(const std::vector<int32_t>& ids, std::vector<PromptKey> keys = {}) {
    tasks_.push_back(std::make_unique<Task>());
    Task* t = tasks_.back().get();
    t->order = tasks_.size();
    t->ids = ids;
    t->prompt = std::make_shared<const Prefix>(ids, std::move(keys));
    planner.Add(t);
    return t;
  }

  /// The plan, run: what it took of each task.
  std::vector<std::pair<Task*, int64_t>> Step() {
    std::vector<std::pair<Task*, int64_t>> out;
    const Plan& plan = planner.Next();
    copies = plan.copies;
    std::vector<Plan::Item> items = plan.items;
    for (const Plan::Item& i : items) out.emplace_back(i.task, i.tokens);
    planner.Commit();
    for (const Plan::Item& i : items) {
      if (i.task->pending() == 0) i.task->ids.push_back(1000 + static_cast<int32_t>(i.task->size()));
    }
    return out;
  }

  Planner planner;
  std::vector<Plan::Copy> copies;

 private:
  std::vector<std::unique_ptr<Task>> tasks_;
};

using Items = std::vector<std::pair<Task*, int64_t>>;

TEST(Planner, DecodesFirstThenPromptsOnTheGrid) {
  PlannerOptions o = Options();
  o.cache = false;
  Driver d(o);
  Task* a = d.Add(Count(100));
  EXPECT_EQ(d.Step(), (Items{{a, 100}}));
  Task* b = d.Add(Count(300));
  Task* c = d.Add(Count(300, 1));
  // 255 are left: 192 of b end on the grid; 63 are less than a chunk of c, which waits.
  EXPECT_EQ(d.Step(), (Items{{a, 1}, {b, 192}}));
  EXPECT_EQ(d.Step(), (Items{{a, 1}, {b, 108}, {c, 128}}));
  EXPECT_EQ(d.Step(), (Items{{a, 1}, {b, 1}, {c, 172}}));
  EXPECT_EQ(d.Step(), (Items{{a, 1}, {b, 1}, {c, 1}}));
  d.planner.Remove(b, true);
  EXPECT_EQ(d.Step(), (Items{{a, 1}, {c, 1}}));
  d.planner.Remove(a, true);
  d.planner.Remove(c, true);
  EXPECT_TRUE(d.Step().empty());
  EXPECT_EQ(d.planner.pages().free(), 100);
  EXPECT_EQ(d.planner.free_slots(), 4);
}

TEST(Planner, StepsSmallerThanTheGridStillGetOn) {
  PlannerOptions o = Options();
  o.cache = false;
  o.step_tokens = 7;
  Driver d(o);
  Task* a = d.Add(Count(16));
  EXPECT_EQ(d.Step(), (Items{{a, 7}}));
  EXPECT_EQ(d.Step(), (Items{{a, 7}}));
  EXPECT_EQ(d.Step(), (Items{{a, 2}}));
}

TEST(Planner, SnapshotsMoveSlotsAndCopyNothing) {
  Driver d(Options());
  Task* a = d.Add(Count(100));
  EXPECT_EQ(d.Step(), (Items{{a, 64}}));
  EXPECT_EQ(d.planner.cache().entries(), 1);
  const int32_t kept = a->read_slot;
  EXPECT_NE(a->write_slot, kept);
  EXPECT_EQ(a->source->slot, kept);
  EXPECT_EQ(a->source->length, 64);
  EXPECT_EQ(d.Step(), (Items{{a, 36}}));
  EXPECT_EQ(a->read_slot, a->write_slot);
  EXPECT_EQ(a->source, nullptr);

  Task* b = d.Add(Count(100));
  EXPECT_EQ(d.Step(), (Items{{a, 1}, {b, 36}}));
  EXPECT_EQ(b->cached, 64);
  EXPECT_TRUE(d.copies.empty());  // 64 tokens end with a page
  EXPECT_EQ(std::vector<int32_t>(b->pages.begin(), b->pages.begin() + 4),
            std::vector<int32_t>(a->pages.begin(), a->pages.begin() + 4));
  EXPECT_NE(b->pages[4], a->pages[4]);
  EXPECT_EQ(d.planner.pages().refs(a->pages[0]), 3);
  EXPECT_EQ(d.planner.pages().users(a->pages[0]), 2);
}

TEST(Planner, PartlyFilledPagesAreCopiedBeforeTheyAreWritten) {
  PlannerOptions o = Options();
  o.all_points = true;
  Driver d(o);
  Task* a = d.Add(Count(70));
  d.Step();
  EXPECT_EQ(d.Step(), (Items{{a, 6}}));  // to the end of the prompt: kept with 6 of 16 rows of the last page
  const int32_t last = a->pages[4];
  EXPECT_EQ(d.Step(), (Items{{a, 1}}));
  ASSERT_EQ(d.copies.size(), 1u);
  EXPECT_EQ(d.copies[0].from, last);
  EXPECT_EQ(d.copies[0].to, a->pages[4]);
  EXPECT_TRUE(d.Step() == (Items{{a, 1}}) && d.copies.empty());  // once

  Task* b = d.Add(Count(90));
  EXPECT_EQ(d.Step(), (Items{{a, 1}, {b, 20}}));
  EXPECT_EQ(b->cached, 70);
  ASSERT_EQ(d.copies.size(), 1u);
  EXPECT_EQ(d.copies[0].from, last);
  EXPECT_EQ(d.copies[0].to, b->pages[4]);
}

TEST(Planner, SharedPromptsWaitForTheFirstSnapshot) {
  Driver d(Options());
  Task* a = d.Add(Count(500));
  Task* b = d.Add(Count(500));
  Task* other = d.Add(Count(50, 7));
  // b would compute what a is about to: others pass it.
  EXPECT_EQ(d.Step(), (Items{{a, 256}}));
  EXPECT_EQ(d.Step(), (Items{{a, 192}, {other, 50}}));
  EXPECT_EQ(b->cached, -1);
  EXPECT_EQ(d.Step(), (Items{{other, 1}, {a, 52}, {b, 52}}));
  EXPECT_EQ(b->cached, 448);
}

TEST(Planner, TheWaitEndsWithTheOneThatIsWaitedFor) {
  Driver d(Options());
  Task* a = d.Add(Count(500));
  Task* b = d.Add(Count(500));
  d.Step();
  d.planner.Remove(a, false);
  EXPECT_EQ(d.Step(), (Items{{b, 256}}));
}

TEST(Planner, KeysSeparateEqualTokens) {
  Driver d(Options());
  const std::vector<PromptKey> cat = {{80, 90, "cat"}}, dog = {{80, 90, "dog"}};
  Task* a = d.Add(Count(200), cat);
  while (a->pending() > 0 && a->size() == 200) d.Step();
  Task* b = d.Add(Count(200), dog);
  d.Step();
  EXPECT_EQ(b->cached, 0);  // a has a snapshot at 192 only
  while (b->size() == 200) d.Step();
  Task* c = d.Add(Count(200), cat);
  d.Step();
  EXPECT_EQ(c->cached, 192);
  // b parted from a at the image and left a snapshot at 64.
  Task* e = d.Add(Count(200), {{80, 90, "cow"}});
  d.Step();
  EXPECT_EQ(e->cached, 64);
}

TEST(Planner, TheCacheGivesPagesUpBeforeAnybodyIsPreempted) {
  PlannerOptions o = Options();
  o.pages = 20;
  Driver d(o);
  for (int32_t i = 0; i < 4; ++i) {
    Task* t = d.Add(Count(65, 100 * i));
    while (t->size() == 65) d.Step();
    d.planner.Remove(t, true);
  }
  EXPECT_EQ(d.planner.cache().entries(), 4);
  EXPECT_EQ(d.planner.pages().cached(), 16);
  Task* t = d.Add(Count(256, 1000));
  EXPECT_EQ(d.Step(), (Items{{t, 192}}));  // 12 pages: 4 were free
  EXPECT_EQ(d.planner.counters().preemptions, 0);
  EXPECT_EQ(d.planner.cache().entries(), 3);  // two of four went, the new prompt's place came
  // The youngest stayed.
  EXPECT_TRUE(d.planner.cache().Has(Prefix(Count(65, 300), {}), 64));
  EXPECT_FALSE(d.planner.cache().Has(Prefix(Count(65, 0), {}), 64));
}

TEST(Planner, EvictionTakesPlacesNobodyAskedForFirst) {
  PlannerOptions o = Options();
  o.interval = 64;
  o.snapshots = 4;
  Driver d(o);
  Task* a = d.Add(Count(65));
  while (a->size() == 65) d.Step();
  d.planner.Remove(a, true);  // 64 of a
  Task* b = d.Add(Count(450, 500));
  while (b->size() == 450) d.Step();  // 64, 128, .., 384 of b by distance, 448 as its end
  const PrefixCache& cache = d.planner.cache();
  EXPECT_EQ(cache.entries(), 4);
  EXPECT_TRUE(cache.Has(*a->prompt, 64));
  EXPECT_TRUE(cache.Has(*b->prompt, 448));
  EXPECT_TRUE(cache.Has(*b->prompt, 384));
  EXPECT_FALSE(cache.Has(*b->prompt, 64));
}

TEST(Planner, PlacesOfALongPrompt) {
  PlannerOptions o = Options();
  o.interval = 256;
  o.pages = 200;
  o.snapshots = 16;
  Driver d(o);
  Task* a = d.Add(Count(1000));
  while (a->size() == 1000) d.Step();
  std::vector<int64_t> places;
  for (int64_t p = 1; p <= 1000; ++p) {
    if (d.planner.cache().Has(*a->prompt, p)) places.push_back(p);
  }
  // Every 256, half of that before the last multiple of 64, and that.
  EXPECT_EQ(places, (std::vector<int64_t>{256, 512, 768, 832, 960}));
}

TEST(Planner, DistancesAreKeptWhereChunksAreCutByCompany) {
  PlannerOptions o = Options();
  o.interval = 256;
  o.step_tokens = 200;  // 196 and fewer are left to prompts: chunks of 192 and 128
  o.pages = 300;
  o.snapshots = 16;
  Driver d(o);
  for (int32_t i = 0; i < 3; ++i) d.Add(Count(10, 5000 + i));
  d.Step();
  Task* a = d.Add(Count(1200));
  int steps = 0;
  while (a->size() == 1200) {
    d.Step();
    ++steps;
  }
  int64_t last = 0, most = 0;
  for (int64_t p = 1; p <= 1200; ++p) {
    if (!d.planner.cache().Has(*a->prompt, p)) continue;
    most = std::max(most, p - last);
    last = p;
  }
  EXPECT_EQ(last, 1152);
  EXPECT_LE(most, 256);
  EXPECT_LE(steps, 9);  // 1200 / 192 rounded up, one for each of the two places before the end
}

TEST(Planner, TheNewestIsPreemptedAndReplaysWhatItDrew) {
  PlannerOptions o = Options();
  o.cache = false;
  o.pages = 8;
  o.step_tokens = 200;
  Driver d(o);
  Task* a = d.Add(Count(46));
  d.Step();
  Task* b = d.Add(Count(46, 1));
  d.Step();
  for (int i = 0; i < 15; ++i) d.Step();
  EXPECT_EQ(a->done, 62);
  EXPECT_EQ(b->done, 61);
  EXPECT_EQ(d.planner.pages().free(), 0);
  for (int i = 0; i < 2; ++i) d.Step();
  EXPECT_EQ(d.Step(), (Items{{a, 1}}));  // token 65 needs a fifth page
  EXPECT_EQ(b->preemptions, 1);
  EXPECT_EQ(b->write_slot, -1);
  EXPECT_TRUE(b->pages.empty());
  const int64_t drawn = b->size();
  d.planner.Remove(a, true);
  EXPECT_EQ(d.Step(), (Items{{b, 46}}));
  EXPECT_EQ(b->size(), drawn);  // no new draw before it is where it was
  for (int64_t i = 46; i < drawn; ++i) EXPECT_EQ(d.Step(), (Items{{b, 1}}));
  EXPECT_EQ(b->size(), drawn + 1);
}

TEST(Planner, AFailedStepLeavesNothingBehind) {
  PlannerOptions o = Options();
  o.all_points = true;
  Driver d(o);
  Task* a = d.Add(Count(70));
  d.Step();
  d.Step();
  const Plan& plan = d.planner.Next();
  EXPECT_EQ(plan.copies.size(), 1u);
  d.planner.Abandon();
  d.planner.Remove(a, false);
  EXPECT_EQ(d.planner.pages().used(), 0);
  d.planner.cache().Clear();
  EXPECT_EQ(d.planner.pages().free(), 100);
  EXPECT_EQ(d.planner.free_slots(), d.planner.slots() - 1);
}

TEST(Prefix, AgreesByTokensAndKeys) {
  const Prefix a(Count(10), {{3, 5, "x"}}), b(Count(10), {{3, 5, "y"}}), c(Count(10), {}), e(Count(12), {{3, 5, "x"}});
  EXPECT_EQ(Prefix::Common(a, b), 3);
  EXPECT_EQ(Prefix::Common(a, c), 3);
  EXPECT_EQ(Prefix::Common(a, e), 10);
  EXPECT_TRUE(Prefix::Agree(a, b, 3));
  EXPECT_FALSE(Prefix::Agree(a, b, 4));  // one token of another image
  EXPECT_TRUE(Prefix::Agree(a, e, 10));
  EXPECT_FALSE(Prefix::Agree(a, e, 11));
  EXPECT_TRUE(Prefix::Agree(a, b, 0));
  EXPECT_NE(a.Hash(4), b.Hash(4));
  EXPECT_EQ(a.Hash(3), b.Hash(3));
}

}  // namespace
}  // namespace fluvial::engine
