// SPDX-License-Identifier: Apache-2.0
// PlanCache: tables that follow from a plan's contents, built once per contents and shared by all layers of a step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/common/sequence_plan.h"

namespace fluvial::ops {

/// Values of T by (plan id, generation, key). The address of a plan or of its offsets says nothing: a plan that was
/// refilled in place, or a new one at the address of an old one, is another key. Keeps the last few, for steps that
/// alternate between plans (prefill and decode). Not thread-safe.
template <class T, class Key = int64_t>
class PlanCache {
 public:
  /// The table of `plan` and `key`; `build(T&)` fills a default-constructed one when it is not there. The reference is
  /// valid until the next call.
  template <class Build>
  const T& Get(const SequencePlan& plan, const Key& key, Build&& build) {
    for (const Entry& e : entries_) {
      if (e.id == plan.id() && e.generation == plan.generation() && e.key == key) return e.value;
    }
    Entry& e = entries_[next_];
    next_ = (next_ + 1) % entries_.size();
    e = {};  // also when build throws: no entry is better than half of one
    T value{};
    build(value);
    e = {plan.id(), plan.generation(), key, std::move(value)};
    return e.value;
  }

 private:
  struct Entry {
    uint64_t id = 0;  // plans count from 1
    uint64_t generation = 0;
    Key key{};
    T value{};
  };
  std::array<Entry, 4> entries_;
  size_t next_ = 0;
};

}  // namespace fluvial::ops
