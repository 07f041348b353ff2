// SPDX-License-Identifier: Apache-2.0
// A layer without a model: a state is a hash of all tokens so far and their count, a row of a page is the hash at its
// position. Whatever the planner mixes up - a stale slot, a page written by two, a snapshot of another length - changes
// a hash, and every hash is compared at every step.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/planner.h"

namespace fluvial::engine::testing {

/// Hashes after every number of tokens, computed alone: the truth.
inline std::vector<uint64_t> Truth(const std::vector<int32_t>& ids, std::span<const PromptKey> keys) {
  std::vector<uint64_t> out = {Mix64(7)};
  for (size_t i = 0; i < ids.size(); ++i) {
    uint64_t h = Mix64(out.back() ^ static_cast<uint64_t>(ids[i] + 1));
    for (const PromptKey& k : keys) {
      // An image enters at its tokens.
      if (k.begin <= static_cast<int64_t>(i) && static_cast<int64_t>(i) < k.end) {
        for (const char c : k.key) h = Mix64(h ^ static_cast<unsigned char>(c));
      }
    }
    out.push_back(h);
  }
  return out;
}

class FakeLayer {
 public:
  struct State {
    uint64_t hash = 0xdead;
    int64_t count = -1;
  };
  /// Ways to run a plan wrongly, to show that the comparison notices.
  enum class Fault : uint8_t { kNone, kSkipsCopies, kWritesInPlace, kReadsWriteSlot, kCopiesBackwards };

  FakeLayer(int32_t slots, int32_t pages, int32_t page_size)
      : page_size_(page_size),
        slots_(static_cast<size_t>(slots)),
        pages_(static_cast<size_t>(pages), std::vector<uint64_t>(static_cast<size_t>(page_size), 0xdead)) {}

  void FreeSlot(int32_t slot) { slots_[static_cast<size_t>(slot)] = State(); }
  void FreePage(int32_t page) { pages_[static_cast<size_t>(page)].assign(static_cast<size_t>(page_size_), 0xdead); }

  void set_fault(Fault fault) { fault_ = fault; }
  int64_t stale() const { return stale_; }
  const std::string& first_stale() const { return first_stale_; }

  /// Runs the plan. `scramble` ends it as a failed step may: everything it may write is garbage.
  void Run(const Plan& plan, bool scramble) {
    for (const Plan::Copy& c : plan.copies) {
      if (fault_ == Fault::kSkipsCopies) continue;
      auto& from = pages_[static_cast<size_t>(c.from)];
      auto& to = pages_[static_cast<size_t>(c.to)];
      if (fault_ == Fault::kCopiesBackwards) {
        from = to;
      } else {
        to = from;
      }
    }
    CheckSlots(plan);
    std::vector<std::vector<uint64_t>> truths;
    for (const Plan::Item& i : plan.items) truths.push_back(Truth(i.task->ids, i.task->prompt->keys()));
    // As a real layer does: new rows of all sequences first, then what reads them.
    for (size_t n = 0; n < plan.items.size(); ++n) {
      const Task& t = *plan.items[n].task;
      for (int64_t p = t.done; p < t.done + plan.items[n].tokens; ++p) {
        Row(t, p) = scramble ? 0xbad : truths[n][static_cast<size_t>(p) + 1];
      }
    }
    std::vector<State> before;
    for (const Plan::Item& i : plan.items) {
      const int32_t slot =
          fault_ == Fault::kReadsWriteSlot && i.task->read_slot >= 0 ? i.task->write_slot : i.task->read_slot;
      before.push_back(slot < 0 ? State{Mix64(7), 0} : slots_[static_cast<size_t>(slot)]);
    }
    for (size_t n = 0; n < plan.items.size(); ++n) {
      const Plan::Item& i = plan.items[n];
      const Task& t = *i.task;
      const size_t done = static_cast<size_t>(t.done);
      if (before[n].count != t.done) Stale(t, "state of " + std::to_string(before[n].count) + " tokens");
      if (before[n].hash != truths[n][done]) Stale(t, "state of other tokens");
      if (!scramble) {
        for (int64_t p = 0; p < t.done; ++p) {
          if (Row(t, p) != truths[n][static_cast<size_t>(p) + 1]) {
            Stale(t, "row " + std::to_string(p));
            break;
          }
        }
      }
      State after{truths[n][done + static_cast<size_t>(i.tokens)], t.done + i.tokens};
      if (scramble) after = State();
      const int32_t slot = fault_ == Fault::kWritesInPlace && t.read_slot > 0 ? t.read_slot : t.write_slot;
      slots_[static_cast<size_t>(slot)] = after;
      if (slot != t.write_slot) slots_[static_cast<size_t>(t.write_slot)] = after;
    }
  }

  const State& slot(int32_t s) const { return slots_[static_cast<size_t>(s)]; }

 private:
  uint64_t& Row(const Task& t, int64_t position) {
    const auto page = static_cast<size_t>(t.pages[static_cast<size_t>(position / page_size_)]);
    return pages_[page][static_cast<size_t>(position % page_size_)];
  }
  void Stale(const Task& t, const std::string& what) {
    if (stale_++ == 0) {
      first_stale_ = "task " + std::to_string(t.order) + " after " + std::to_string(t.done) + " tokens reads " + what;
    }
  }
  /// The contract of SequencePlan: write slots are distinct, nobody reads what another writes, slot 0 is nobody's.
  void CheckSlots(const Plan& plan) {
    for (const Plan::Item& a : plan.items) {
      EXPECT_GT(a.task->write_slot, 0);
      EXPECT_NE(a.task->read_slot, 0);
      for (const Plan::Item& b : plan.items) {
        if (a.task == b.task) continue;
        EXPECT_NE(a.task->write_slot, b.task->write_slot);
        EXPECT_NE(a.task->write_slot, b.task->read_slot);
      }
    }
  }

  int32_t page_size_;
  std::vector<State> slots_;
  std::vector<std::vector<uint64_t>> pages_;
  Fault fault_ = Fault::kNone;
  int64_t stale_ = 0;
  std::string first_stale_;
};

}  // namespace fluvial::engine::testing
