// SPDX-License-Identifier: Apache-2.0
#include "engine/planner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fluvial::engine {
namespace {

template <class List>
void InsertByOrder(List& list, Task* task) {
  list.insert(std::upper_bound(list.begin(), list.end(), task,
                               [](const Task* a, const Task* b) { return a->order < b->order; }),
              task);
}

template <class List>
bool Erase(List& list, Task* task) {
  const auto it = std::find(list.begin(), list.end(), task);
  if (it == list.end()) return false;
  list.erase(it);
  return true;
}

PlannerOptions WithoutCache(PlannerOptions options) {
  if (options.snapshots == 0) options.cache = false;
  if (!options.cache) options.snapshots = 0;
  return options;
}

}  // namespace

Planner::Planner(PlannerOptions options)
    : options_(WithoutCache(std::move(options))),
      pages_(options_.pages, options_.on_page_free),
      slots_(1, options_.sequences + options_.snapshots),
      cache_(options_.snapshots, pages_, slots_, options_.on_slot_free) {}

void Planner::Add(Task* task) { InsertByOrder(waiting_, task); }

void Planner::Remove(Task* task, bool keep) {
  if (Erase(running_, task)) {
    // The last drawn token was never run: the state is that after `done` tokens.
    if (keep && options_.cache && options_.all_points && task->decoding() && task->read_slot == task->write_slot) {
      const auto all = std::make_shared<const Prefix>(
          std::vector<int32_t>(task->ids.begin(), task->ids.begin() + task->done),
          std::vector<PromptKey>(task->prompt->keys().begin(), task->prompt->keys().end()));
      if (!cache_.Has(*all, task->done) && cache_.MakeRoom()) {
        const auto pages = static_cast<std::ptrdiff_t>(PagesFor(task->done));
        cache_.Insert(all, task->done, {task->pages.begin(), task->pages.begin() + pages}, task->write_slot,
                      /*probation=*/false);
        ++counters_.snapshots;
        task->write_slot = -1;
      }
    }
    Release(*task);
  } else {
    Erase(waiting_, task);
  }
  std::erase_if(plan_.items, [task](const Plan::Item& i) { return i.task == task; });
}

void Planner::Release(Task& task) {
  for (const int32_t page : task.pages) pages_.Unuse(page);
  task.pages.clear();
  if (task.source != nullptr) cache_.Unpin(*std::exchange(task.source, nullptr));
  if (task.write_slot >= 0) {
    slots_.Give(task.write_slot);
    if (options_.on_slot_free) options_.on_slot_free(task.write_slot);
  }
  task.read_slot = task.write_slot = -1;
  task.done = 0;
  task.points.clear();
}

void Planner::Preempt(Task& task) {
  Erase(running_, &task);
  Release(task);
  ++task.preemptions;
  ++counters_.preemptions;
  InsertByOrder(waiting_, &task);
}

const Plan& Planner::Next() {
  plan_.items.clear();
  FLUVIAL_CHECK(plan_.copies.empty());  // Commit or Abandon comes between two calls
  Admit();
  budget_ = options_.step_tokens;
  ScheduleDecodes();
  SchedulePrompts();
  return plan_;
}

void Planner::Admit() {
  // A request that waits for another one's snapshot lets later ones pass; one that waits for pages does not.
  int32_t looks = 2 * options_.sequences;
  for (size_t i = 0; i < waiting_.size() && static_cast<int32_t>(running_.size()) < options_.sequences;) {
    Task& task = *waiting_[i];
    if (--looks < 0) return;
    const Entrance entrance = TryAdmit(task);
    if (entrance == Entrance::kFull) return;
    if (entrance == Entrance::kLater) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    InsertByOrder(running_, &task);
  }
}

Planner::Entrance Planner::TryAdmit(Task& task) {
  const bool first = task.cached < 0;
  PrefixCache::Entry* entry = nullptr;
  if (options_.cache && !task.all_rows) {
    // One token is left to compute, for its logits. Drawn tokens are replayed, not taken from an entry of another
    // request, whose states went through prompt chunks.
    const bool drawn = task.size() > task.prompt->size();
    entry = cache_.Find(*task.prompt, drawn ? task.prompt->size() : task.prompt->size() - 1);
    if (WorthWaiting(task, entry == nullptr ? 0 : entry->length)) return Entrance::kLater;
  }
  const int64_t cached = entry == nullptr ? 0 : entry->length;
  if (!running_.empty()) {
    int64_t need = PagesFor(task.size()) + (cached % options_.page_size != 0 ? 1 : 0);
    if (entry != nullptr) {
      for (const int32_t page : entry->pages) need -= pages_.users(page) > 0 ? 1 : 0;
    }
    // One page for each running request to grow into, so that an admission is not undone at once.
    const int64_t room = int64_t{pages_.free()} + pages_.cached() - static_cast<int64_t>(running_.size());
    if (need > room) return Entrance::kFull;
  }
  task.write_slot = slots_.Take();
  FLUVIAL_CHECK(task.write_slot > 0);
  task.done = cached;
  task.kept = cached / options_.grid * options_.grid;
  task.read_slot = -1;
  if (entry != nullptr) {
    cache_.Pin(*entry);
    task.source = entry;
    task.read_slot = entry->slot;
    task.pages = entry->pages;
    for (const int32_t page : task.pages) pages_.Use(page);
  }
  if (options_.cache) ChoosePoints(task);
  if (first) {
    task.cached = cached;
    if (options_.cache && !task.all_rows) {
      counters_.queries += task.prompt->size();
      counters_.hits += cached;
    }
  }
  return Entrance::kIn;
}

bool Planner::WorthWaiting(const Task& task, int64_t cached) {
  for (Task* other : running_) {
    if (other->decoding()) continue;
    const int64_t common = std::min(Prefix::Common(*task.prompt, *other->prompt), task.prompt->size() - 1);
    const int64_t point = common / options_.grid * options_.grid;
    // Not for one that is behind what this task finds already: alone it is faster.
    if (point <= cached || point <= other->done || other->done < cached) continue;
    AddPoint(*other, point, true);
    return true;
  }
  return false;
}

void Planner::AddPoint(Task& task, int64_t point, bool wanted) {
  if (point <= task.done || point > task.prompt->size()) return;
  task.points[point] |= wanted;
}

void Planner::ChoosePoints(Task& task) {
  const int64_t size = task.prompt->size(), grid = options_.grid;
  // The last place from which this very prompt could go on, and the last of a longer one.
  const int64_t last = (size - 1) / grid * grid;
  AddPoint(task, last, true);
  AddPoint(task, size / grid * grid, true);
  if (options_.all_points) AddPoint(task, size, true);
  // What prompts do not share tends to be their ends: one place before it, where prompts are so long that a step more
  // does not matter.
  if (options_.interval > 0 && last >= 2 * options_.interval) {
    AddPoint(task, (last - options_.interval / 2) / grid * grid, false);
  }
  // Where another prompt went another way: more may come that share this much.
  AddPoint(task, cache_.Common(*task.prompt) / grid * grid, true);
}

int32_t Planner::TakePage() {
  do {
    const int32_t page = pages_.Take();
    if (page >= 0) return page;
  } while (cache_.EvictForPage());
  return -1;
}

bool Planner::EnsurePages(Task& task, int64_t tokens) {
  if (task.done % options_.page_size != 0) {
    int32_t& last = task.pages[static_cast<size_t>(task.done / options_.page_size)];
    if (pages_.refs(last) > 1) {
      const int32_t page = TakePage();
      if (page >= 0) {
        plan_.copies.push_back({last, page});
        pages_.Hold(last);  // until the copy has been made
        pages_.Unuse(last);
        last = page;
      } else {
        // Where only the cache shares it, the page may become the task's own.
        if (pages_.users(last) > 1) return false;
        cache_.EvictHolders(last);
        if (pages_.refs(last) > 1) return false;  // a copy under way reads it
      }
    }
  }
  const auto need = static_cast<size_t>(PagesFor(task.done + tokens));
  while (task.pages.size() < need) {
    const int32_t page = TakePage();
    if (page < 0) return false;
    task.pages.push_back(page);
  }
  return true;
}

void Planner::ScheduleDecodes() {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Task& task = *running_[i];
    if (!task.decoding()) continue;
    bool stopped = false;
    while (!stopped && !EnsurePages(task, 1)) {
      // The newest gives way; it comes later in this list, or is this one.
      Task& newest = *running_.back();
      stopped = &newest == &task;
      Preempt(newest);
    }
    if (stopped) return;
    plan_.items.push_back({&task, 1, true});
    --budget_;
  }
}

int64_t Planner::ChunkOf(const Task& task, int64_t limit) const {
  int64_t take = std::min(task.prompt->size() - task.done, limit);
  if (options_.chunk_tokens > 0) take = std::min(take, options_.chunk_tokens);
  const auto point = task.points.upper_bound(task.done);
  if (point != task.points.end()) take = std::min(take, point->first - task.done);
  if (options_.cache && options_.interval > 0) take = std::min(take, task.kept + options_.interval - task.done);
  if (take < task.prompt->size() - task.done) {
    const int64_t on_grid = (task.done + take) / options_.grid * options_.grid - task.done;
    // Off the grid only where steps are so small that the grid cannot be kept; elsewhere the task waits for a step with
    // more room, so that what it computes does not depend on its company.
    if (on_grid > 0) return on_grid;
    const bool keeps = options_.step_tokens >= options_.grid + options_.sequences &&
                       (options_.chunk_tokens == 0 || options_.chunk_tokens >= options_.grid);
    if (keeps) return 0;
  }
  return take;
}

void Planner::SchedulePrompts() {
  int64_t rows = options_.prompt_rows;
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Task& task = *running_[i];
    if (task.decoding()) continue;
    int64_t take = ChunkOf(task, task.all_rows ? std::min(budget_, rows) : budget_);
    while (take > 0 && !EnsurePages(task, take)) {
      if (plan_.items.empty() && running_.back() != &task) {
        Preempt(*running_.back());
        continue;
      }
      // What there are pages for; the rest when others have ended.
      const int64_t room = static_cast<int64_t>(task.pages.size()) * options_.page_size - task.done;
      const bool shared = task.done % options_.page_size != 0 &&
                          pages_.refs(task.pages[static_cast<size_t>(task.done / options_.page_size)]) > 1;
      take = shared ? 0 : ChunkOf(task, std::min(take - 1, room));
    }
    if (take <= 0) continue;
    plan_.items.push_back({&task, take, false});
    budget_ -= take;
    if (task.all_rows) rows -= take;
  }
}

void Planner::DropCopies() {
  for (const Plan::Copy& copy : plan_.copies) pages_.Unhold(copy.from);
  plan_.copies.clear();
}

void Planner::Commit() {
  DropCopies();
  for (const Plan::Item& item : plan_.items) {
    Task& task = *item.task;
    task.done += item.tokens;
    task.read_slot = task.write_slot;
    if (task.source != nullptr) cache_.Unpin(*std::exchange(task.source, nullptr));
  }
  for (const Plan::Item& item : plan_.items) {
    Task& task = *item.task;
    if (task.decoding() && task.points.empty()) continue;
    task.points.erase(task.points.begin(), task.points.lower_bound(task.done));
    const bool here = !task.points.empty() && task.points.begin()->first == task.done;
    const bool wanted = here && task.points.begin()->second;
    // By distance: where a chunk ends anyway, about an interval after the last place.
    const bool far = options_.cache && options_.interval > 0 && !task.decoding() && task.done % options_.grid == 0 &&
                     task.done - task.kept >= (options_.interval + 1) / 2;
    if (here || far) Snapshot(task, /*probation=*/!wanted);
  }
}

void Planner::Withdraw(const Task& task) {
  std::erase_if(plan_.items, [&](const Plan::Item& item) { return item.task == &task; });
}

void Planner::Abandon() { DropCopies(); }

void Planner::Snapshot(Task& task, bool probation) {
  task.kept = task.done / options_.grid * options_.grid;
  if (cache_.Has(*task.prompt, task.done) || !cache_.MakeRoom()) return;
  // The state stays where it is and becomes the entry's; the task goes on in another slot, so nothing is copied.
  const int32_t slot = task.write_slot;
  task.write_slot = slots_.Take();
  FLUVIAL_CHECK(task.write_slot > 0);
  const auto pages = static_cast<std::ptrdiff_t>(PagesFor(task.done));
  task.source =
      cache_.Insert(task.prompt, task.done, {task.pages.begin(), task.pages.begin() + pages}, slot, probation);
  cache_.Pin(*task.source);
  task.read_slot = slot;
  ++counters_.snapshots;
}

void Planner::Forget(const Task& task) { cache_.Forget(*task.prompt); }

}  // namespace fluvial::engine
