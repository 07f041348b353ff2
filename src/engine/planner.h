// SPDX-License-Identifier: Apache-2.0
// Planner: which requests run, what each step takes of them, and which pages and slots that needs. Numbers only: the
// planner never sees a model or memory, so that a test can drive it with a fake layer.
//
//     planner.Add(&task);
//     const Plan& plan = planner.Next();   // copies, then items
//     ... copy the pages, run the items ...
//     planner.Commit();                    // or Abandon() when the step failed
//     task.ids.push_back(drawn);           // for items that reached the end of their ids
//     planner.Remove(&task, ...);          // ended or cancelled: everything comes back at once
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_pool.h"
#include "engine/prefix_cache.h"

namespace fluvial::engine {

/// What the planner knows of a request. The owner fills the first part and appends to `ids`; the planner owns the rest.
struct Task {
  uint64_t order = 0;  ///< arrival; smaller goes first
  std::vector<int32_t> ids;
  std::shared_ptr<const Prefix> prompt;  ///< ids 0..prompt->size()-1
  bool all_rows = false;                 ///< logits of every prompt token are wanted: no cached token is taken

  int64_t done = 0;         ///< tokens that pages and state hold
  int32_t read_slot = -1;   ///< state after `done` tokens; -1: zeros
  int32_t write_slot = -1;  ///< where the next state goes; -1 while waiting
  std::vector<int32_t> pages;
  PrefixCache::Entry* source = nullptr;  ///< pinned: read_slot is this entry's
  std::map<int64_t, bool> points;        ///< where snapshots are to be taken; true: somebody is known to come there
  int64_t kept = 0;                      ///< multiple of the grid where the last one was taken or found
  int64_t cached = -1;                   ///< tokens taken from the cache at the first admission; -1 before
  int32_t preemptions = 0;

  int64_t size() const { return static_cast<int64_t>(ids.size()); }
  int64_t pending() const { return size() - done; }
  /// The prompt is through: one token a step. After a preemption drawn tokens are replayed so, too, because a step of
  /// one token computes what it computed then, bit for bit, which a chunk would not.
  bool decoding() const { return done >= prompt->size(); }
};

struct PlannerOptions {
  int32_t sequences = 1;     ///< at once
  int64_t step_tokens = 64;  ///< of one step
  int64_t chunk_tokens = 0;  ///< of one prompt in one step; 0: no limit
  int32_t page_size = 16;
  int32_t pages = 0;
  int64_t grid = 64;         ///< chunks end on multiples of it when they can: the chunk of the delta rule
  int64_t prompt_rows = 64;  ///< tokens of one step from tasks with all_rows
  bool cache = false;        ///< prefix caching
  int32_t snapshots = 0;     ///< entries of the cache at most; 0 switches it off
  int64_t interval = 0;      ///< most prompt tokens between two snapshots, a multiple of the grid; 0: no limit
  bool all_points = false;   ///< snapshots at the ends of prompts and answers, too
  std::function<void(int32_t)> on_page_free;
  std::function<void(int32_t)> on_slot_free;
};

/// One step.
struct Plan {
  struct Copy {
    int32_t from = 0;
    int32_t to = 0;
  };
  struct Item {
    Task* task = nullptr;
    int64_t tokens = 0;
    bool decode = false;
  };
  std::vector<Copy> copies;  ///< pages, in this order, before anything runs
  std::vector<Item> items;   ///< decode rows first
};

struct PlannerCounters {
  int64_t preemptions = 0;
  int64_t queries = 0;  ///< prompt tokens looked up in the cache
  int64_t hits = 0;     ///< of those, tokens found
  int64_t snapshots = 0;
};

class Planner {
 public:
  explicit Planner(PlannerOptions options);

  void Add(Task* task);

  /// Ends a task, waiting or running: its pages and slots are free when this returns. `keep` (only after an answer that
  /// is in order) lets the cache keep the state after the answer when all_points says so.
  void Remove(Task* task, bool keep);

  /// Plans one step. Empty when nothing can run.
  const Plan& Next();
  /// The step of Next() ran: tokens are done, snapshots are taken.
  void Commit();
  /// Takes a task out of the step of Next(), before it runs; the task must then be removed.
  void Withdraw(const Task& task);
  /// It failed: the caches of its items are undefined, and the tasks must be removed.
  void Abandon();

  /// Drops every cached state along the task's prompt: it led to numbers that are not finite.
  void Forget(const Task& task);

  std::span<Task* const> running() const { return running_; }
  const std::deque<Task*>& waiting() const { return waiting_; }
  const PlannerCounters& counters() const { return counters_; }
  const PagePool& pages() const { return pages_; }
  const PrefixCache& cache() const { return cache_; }
  PrefixCache& cache() { return cache_; }
  int32_t slots() const { return 1 + options_.sequences + options_.snapshots; }
  int32_t free_slots() const { return slots_.free(); }
  int64_t PagesFor(int64_t tokens) const { return (tokens + options_.page_size - 1) / options_.page_size; }

 private:
  enum class Entrance : uint8_t { kIn, kLater, kFull };

  void Admit();
  Entrance TryAdmit(Task& task);
  /// True when a running task is about to pass a place from which `task` could go on; it is asked for a snapshot there.
  bool WorthWaiting(const Task& task, int64_t cached);
  void ChoosePoints(Task& task);
  void AddPoint(Task& task, int64_t point, bool wanted);
  void ScheduleDecodes();
  void SchedulePrompts();
  int64_t ChunkOf(const Task& task, int64_t limit) const;
  /// Writable pages for tokens done..done+tokens-1. False when pages are short; what it got stays with the task.
  bool EnsurePages(Task& task, int64_t tokens);
  int32_t TakePage();
  void Preempt(Task& task);
  void Snapshot(Task& task, bool probation);
  void Release(Task& task);
  void DropCopies();

  PlannerOptions options_;
  PagePool pages_;
  FreeList slots_;  // slot 0 is reserved and never holds a sequence
  PrefixCache cache_;
  std::vector<Task*> running_;  // by arrival
  std::deque<Task*> waiting_;   // by arrival
  Plan plan_;
  int64_t budget_ = 0;
  PlannerCounters counters_;
};

}  // namespace fluvial::engine
