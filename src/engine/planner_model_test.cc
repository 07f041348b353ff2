// SPDX-License-Identifier: Apache-2.0
// The planner against a fake layer whose states are hashes: random requests, cancellations, failures, evictions and
// preemptions over 100,000 steps, every hash compared with the one computed alone.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <random>

#include "engine/planner.h"
#include "engine/planner_fake.h"

namespace fluvial::engine {
namespace {

using testing::FakeLayer;
using testing::Truth;

struct Totals {
  int64_t steps = 0, items = 0, copies = 0, finished = 0, cancelled = 0, failures = 0;
  int64_t preemptions = 0, hits = 0, snapshots = 0, stale = 0;
};

/// One random set-up and a stream of random requests.
class Episode {
 public:
  Episode(uint64_t seed, FakeLayer::Fault fault) : random_(seed) {
    o_.sequences = Pick(1, 6);
    o_.grid = Pick(0, 1) == 0 ? 4 : 6;
    o_.page_size = Pick(1, 7);
    o_.pages = static_cast<int32_t>((kLongest + o_.page_size - 1) / o_.page_size) * Pick(1, 4) + Pick(0, 3);
    o_.step_tokens = o_.sequences + Pick(1, 3) * Pick(0, 12);
    o_.chunk_tokens = Pick(0, 2) == 0 ? Pick(1, 10) : 0;
    o_.prompt_rows = o_.grid + Pick(0, 3);
    o_.cache = Pick(0, 7) > 0;
    o_.snapshots = Pick(1, 12);
    o_.interval = o_.grid * Pick(0, 3);
    o_.all_points = Pick(0, 1) == 1;
    o_.on_page_free = [this](int32_t page) { layer_->FreePage(page); };
    o_.on_slot_free = [this](int32_t slot) { layer_->FreeSlot(slot); };
    planner_ = std::make_unique<Planner>(o_);
    layer_ = std::make_unique<FakeLayer>(planner_->slots(), o_.pages, o_.page_size);
    layer_->set_fault(fault);
    for (int i = 0; i < 3; ++i) roots_.push_back(Random(Pick(10, 40)));
  }

  void Run(int64_t steps, Totals& totals) {
    for (int64_t i = 0; i < steps; ++i) Step(/*more=*/true);
    // Everything that was asked for ends, and nothing is left over.
    int64_t drain = 0;
    while (!live_.empty()) {
      Step(/*more=*/false);
      ASSERT_LT(++drain, 20000) << "requests never end";
    }
    planner_->cache().Clear();
    EXPECT_EQ(planner_->pages().free(), o_.pages);
    EXPECT_EQ(planner_->free_slots(), planner_->slots() - 1);
    totals_.stale = layer_->stale();
    totals_.preemptions = planner_->counters().preemptions;
    totals_.hits = planner_->counters().hits;
    totals_.snapshots = planner_->counters().snapshots;
    if (totals_.stale > 0 && totals.stale == 0) first_stale_ = layer_->first_stale();
    totals.steps += totals_.steps;
    totals.items += totals_.items;
    totals.copies += totals_.copies;
    totals.finished += totals_.finished;
    totals.cancelled += totals_.cancelled;
    totals.failures += totals_.failures;
    totals.preemptions += totals_.preemptions;
    totals.hits += totals_.hits;
    totals.snapshots += totals_.snapshots;
    totals.stale += totals_.stale;
  }

  const std::string& first_stale() const { return first_stale_; }

 private:
  static constexpr int64_t kLongest = 60;
  static constexpr int32_t kAlphabet = 2;

  struct Live {
    Task task;
    int64_t answer = 0;
  };

  int32_t Pick(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(random_); }
  std::vector<int32_t> Random(int32_t n) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < n; ++i) out.push_back(Pick(0, kAlphabet - 1));
    return out;
  }

  void Submit() {
    // A part of something seen before and a few tokens of its own, so that prefixes meet at every length.
    auto live = std::make_unique<Live>();
    std::vector<int32_t> ids = roots_[static_cast<size_t>(Pick(0, static_cast<int32_t>(roots_.size()) - 1))];
    ids.resize(static_cast<size_t>(Pick(0, static_cast<int32_t>(ids.size()))));
    const std::vector<int32_t> tail = Random(Pick(ids.empty() ? 1 : 0, 6));
    ids.insert(ids.end(), tail.begin(), tail.end());
    if (ids.size() > 50) ids.resize(50);
    const auto size = static_cast<int32_t>(ids.size());
    std::vector<PromptKey> keys;
    if (Pick(0, 3) == 0) {
      const int32_t begin = Pick(0, size - 1);
      keys.push_back({begin, std::min<int64_t>(begin + 3, size), Pick(0, 1) == 0 ? "cat" : "dog"});
    }
    Task& t = live->task;
    t.order = ++order_;
    t.ids = ids;
    t.prompt = std::make_shared<const Prefix>(ids, keys);
    t.all_rows = Pick(0, 19) == 0;
    live->answer = Pick(1, static_cast<int32_t>(kLongest - size));
    planner_->Add(&t);
    live_.push_back(std::move(live));
  }

  void End(size_t index, bool keep) {
    const std::unique_ptr<Live> live = std::move(live_[index]);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    Task& t = live->task;
    if (keep && Pick(0, 9) == 0) {
      roots_[static_cast<size_t>(Pick(0, 2))] = t.ids;  // a later turn of this conversation
    }
    planner_->Remove(&t, keep);
    EXPECT_TRUE(t.pages.empty());
    EXPECT_EQ(t.write_slot, -1);
    EXPECT_EQ(t.source, nullptr);
  }

  void Step(bool more) {
    ++totals_.steps;
    while (more && live_.size() < 10 && Pick(0, 2) == 0) Submit();
    if (!live_.empty() && Pick(0, 29) == 0) {
      End(static_cast<size_t>(Pick(0, static_cast<int32_t>(live_.size()) - 1)), false);
      ++totals_.cancelled;
    }
    const Plan& plan = planner_->Next();
    totals_.copies += static_cast<int64_t>(plan.copies.size());
    int64_t tokens = 0;
    for (const Plan::Item& i : plan.items) tokens += i.tokens;
    EXPECT_LE(tokens, o_.step_tokens);
    CheckOwners(plan);
    const bool fails = Pick(0, 199) == 0;
    layer_->Run(plan, fails);
    totals_.items += static_cast<int64_t>(plan.items.size());
    if (fails) {
      ++totals_.failures;
      std::vector<Task*> lost;
      for (const Plan::Item& i : plan.items) lost.push_back(i.task);
      planner_->Abandon();
      for (Task* t : lost) End(IndexOf(t), false);
      return;
    }
    planner_->Commit();
    std::vector<Task*> ended;
    const std::vector<Plan::Item> items = plan.items;
    for (const Plan::Item& i : items) {
      Task& t = *i.task;
      if (t.pending() > 0) continue;
      // The draw comes from the state that the step left, wherever that is now.
      const FakeLayer::State& state = layer_->slot(t.read_slot);
      EXPECT_EQ(state.count, t.done);
      t.ids.push_back(static_cast<int32_t>(state.hash % kAlphabet));
      if (t.size() - t.prompt->size() >= live_[IndexOf(&t)]->answer) ended.push_back(&t);
    }
    for (Task* t : ended) {
      CheckAnswer(*t);
      if (Pick(0, 49) == 0) planner_->Forget(*t);  // as if its numbers were not finite
      End(IndexOf(t), true);
      ++totals_.finished;
    }
  }

  size_t IndexOf(const Task* t) const {
    for (size_t i = 0; i < live_.size(); ++i) {
      if (&live_[i]->task == t) return i;
    }
    ADD_FAILURE() << "an unknown task";
    return 0;
  }

  void CheckAnswer(const Task& t) {
    std::vector<int32_t> alone(t.prompt->ids().begin(), t.prompt->ids().end());
    while (static_cast<int64_t>(alone.size()) < t.size()) {
      alone.push_back(static_cast<int32_t>(Truth(alone, t.prompt->keys()).back() % kAlphabet));
    }
    if (alone != t.ids) ++wrong_answers_;
    EXPECT_TRUE(wrong_answers_ == 0 || layer_->stale() > 0) << "task " << t.order;
  }

  /// Counts every owner again and compares with the pool's books.
  void CheckOwners(const Plan& plan) {
    std::map<int32_t, int32_t> users, refs;
    std::map<int32_t, int32_t> slots;
    for (const Task* t : planner_->running()) {
      for (const int32_t p : t->pages) {
        ++users[p];
        ++refs[p];
      }
      ++slots[t->write_slot];
    }
    planner_->cache().ForEach([&](const PrefixCache::Entry& e) {
      for (const int32_t p : e.pages) ++refs[p];
      ++slots[e.slot];
      if (!e.indexed) return;
      EXPECT_EQ(static_cast<int64_t>(e.pages.size()), planner_->PagesFor(e.length));
      // The snapshot is of exactly these tokens.
      const FakeLayer::State& state = layer_->slot(e.slot);
      EXPECT_EQ(state.count, e.length);
    });
    for (const Plan::Copy& c : plan.copies) ++refs[c.from];
    int32_t used = 0;
    for (int32_t p = 0; p < o_.pages; ++p) {
      ASSERT_EQ(planner_->pages().refs(p), refs[p]) << "page " << p;
      ASSERT_EQ(planner_->pages().users(p), users[p]) << "page " << p;
      used += users[p] > 0 ? 1 : 0;
    }
    EXPECT_EQ(planner_->pages().used(), used);
    for (const auto& [slot, owners] : slots) {
      EXPECT_GT(slot, 0);
      EXPECT_EQ(owners, 1) << "slot " << slot;
    }
    EXPECT_EQ(planner_->free_slots() + static_cast<int32_t>(slots.size()), planner_->slots() - 1);
    EXPECT_LE(static_cast<int32_t>(planner_->running().size()), o_.sequences);
    // What a step writes belongs to one sequence alone.
    for (const Plan::Item& i : plan.items) {
      for (int64_t page = i.task->done / o_.page_size; page < planner_->PagesFor(i.task->done + i.tokens); ++page) {
        EXPECT_EQ(refs[i.task->pages[static_cast<size_t>(page)]], 1);
      }
    }
  }

  std::mt19937_64 random_;
  PlannerOptions o_;
  std::unique_ptr<FakeLayer> layer_;
  std::unique_ptr<Planner> planner_;
  std::vector<std::vector<int32_t>> roots_;
  std::vector<std::unique_ptr<Live>> live_;
  uint64_t order_ = 0;
  int64_t wrong_answers_ = 0;
  Totals totals_;
  std::string first_stale_;
};

TEST(PlannerModel, HundredThousandStepsWithoutOneStaleHash) {
  Totals totals;
  for (uint64_t seed = 1; totals.steps < 100000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Episode episode(seed, FakeLayer::Fault::kNone);
    episode.Run(500, totals);
    ASSERT_EQ(totals.stale, 0) << episode.first_stale();
    if (HasFailure()) return;
  }
  // The run must have been through what it is about.
  EXPECT_GT(totals.finished, 5000);
  EXPECT_GT(totals.cancelled, 1000);
  EXPECT_GT(totals.failures, 100);
  EXPECT_GT(totals.preemptions, 1000);
  EXPECT_GT(totals.copies, 1000);
  EXPECT_GT(totals.hits, 10000);
  EXPECT_GT(totals.snapshots, 10000);
  std::cout << totals.steps << " steps, " << totals.items << " items, " << totals.finished << " finished, "
            << totals.cancelled << " cancelled, " << totals.failures << " failed steps, " << totals.preemptions
            << " preemptions, " << totals.copies << " page copies, " << totals.hits << " tokens hit, "
            << totals.snapshots << " snapshots\n";
}

TEST(PlannerModel, TheFakeLayerNoticesEveryWayOfRunningAPlanWrongly) {
  for (const auto fault : {FakeLayer::Fault::kSkipsCopies, FakeLayer::Fault::kWritesInPlace,
                           FakeLayer::Fault::kReadsWriteSlot, FakeLayer::Fault::kCopiesBackwards}) {
    Totals totals;
    for (uint64_t seed = 1; seed <= 20 && totals.stale == 0; ++seed) {
      // Wrong hashes fail other expectations of the run as well: only whether anything was noticed counts here.
      ::testing::TestPartResultArray ignored;
      const ::testing::ScopedFakeTestPartResultReporter guard(
          ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &ignored);
      Episode episode(seed, fault);
      episode.Run(200, totals);
    }
    EXPECT_GT(totals.stale, 0) << "fault " << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace fluvial::engine
