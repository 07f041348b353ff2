// SPDX-License-Identifier: Apache-2.0
// What a backend of an operator is, and how one is chosen.
//
// An operator family defines a Problem (a small value type: dims, dtypes, forms; equality, hash, text form)
// and Args (tensor views), and a visible ordered list of Backend<Problem, Args> values, reference last.
// Selection is pure: (problem, device, preference) -> backend, or every backend's refusal. See docs/selection.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "device/device.h"
#include "fluvial/status.h"

namespace fluvial::ops {

/// Answer of a backend's contract check: accepted, or a refusal whose reason contains the actual value.
/// A refusal is an ordinary value, not an error.
class Check {
 public:
  static Check Accept() { return {}; }
  static Check Refuse(std::string reason) {
    Check c;
    c.reason_ = std::move(reason);
    c.ok_ = false;
    return c;
  }
  bool ok() const { return ok_; }
  const std::string& reason() const { return reason_; }

 private:
  bool ok_ = true;
  std::string reason_;
};

/// One body of an operator.
template <class Problem, class Args>
struct Backend {
  /// Unique within its list; what --<operator>-backend takes.
  std::string_view name;
  /// One sentence for `fluvial backends`.
  std::string_view description;
  /// Pure; must not touch the device beyond `device`.
  Check (*check)(const Problem& problem, const DeviceInfo& device);
  /// Bytes that run() needs for any problem that check() accepts.
  size_t (*workspace_bytes)(const Problem& problem, const DeviceInfo& device);
  /// Expected time in microseconds, from a measured table; what `auto` compares.
  double (*cost_us)(const Problem& problem, const DeviceInfo& device);
  /// Enqueues the work on `stream`. Never allocates device memory, synchronises or falls back; tensors must
  /// fit the problem (the family's Validate). An error here is never retried: the state may have moved.
  Status (*run)(Stream& stream, const Problem& problem, const Args& args, Workspace workspace);
};

/// One line of an explanation.
struct Candidate {
  std::string_view name;
  Check check;
  double cost_us = 0;  ///< only when accepted
  bool chosen = false;
};

template <class Problem, class Args>
struct Selection {
  const Backend<Problem, Args>* backend = nullptr;
  std::vector<Candidate> candidates;  ///< in list order, for explain and the log line
};

/// "auto" (or "") takes the lowest cost among the accepting backends, the earlier one on a tie; `reference` is
/// taken by auto only when nothing else accepts. Any other name takes that backend or fails with kRefused,
/// giving its reason and the names that could run; an unknown name is kInvalidArgument with the list.
template <class Problem, class Args>
Result<Selection<Problem, Args>> Select(std::span<const Backend<Problem, Args>> list, std::string_view op,
                                        const Problem& problem, const DeviceInfo& device, std::string_view preference) {
  Selection<Problem, Args> out;
  const bool automatic = preference.empty() || preference == "auto";
  std::string able, names;
  const Backend<Problem, Args>* reference = nullptr;
  size_t best = list.size();
  for (size_t i = 0; i < list.size(); ++i) {
    const auto& b = list[i];
    Candidate c{b.name, b.check(problem, device), 0, false};
    names += (names.empty() ? "" : ", ") + std::string(b.name);
    if (c.check.ok()) {
      c.cost_us = b.cost_us(problem, device);
      able += (able.empty() ? "" : ", ") + std::string(b.name);
      const bool is_reference = b.name == "reference";
      if (is_reference) reference = &b;
      if (automatic && !is_reference && (best == list.size() || c.cost_us < out.candidates[best].cost_us)) best = i;
    }
    if (!automatic && b.name == preference) {
      if (!c.check.ok()) {
        // The list of those that can must be complete, also those after this one.
        for (size_t j = i + 1; j < list.size(); ++j) {
          if (list[j].check(problem, device).ok()) able += (able.empty() ? "" : ", ") + std::string(list[j].name);
        }
        return Status::Refused(std::string(op) + ": backend '" + std::string(preference) + "' cannot run this: " +
                               c.check.reason() + "; backends that can: " + (able.empty() ? "none" : able));
      }
      best = i;
    }
    out.candidates.push_back(std::move(c));
  }
  if (best == list.size() && automatic && reference != nullptr) {
    best = static_cast<size_t>(reference - list.data());
  }
  if (best == list.size()) {
    if (!automatic) {
      return Status::InvalidArgument(std::string(op) + ": there is no backend '" + std::string(preference) +
                                     "'; backends: auto, " + names);
    }
    std::string why;
    for (const Candidate& c : out.candidates) why += "\n  " + std::string(c.name) + ": " + c.check.reason();
    return Status::Refused(std::string(op) + ": no backend can run this on " + device.Arch() + why);
  }
  out.candidates[best].chosen = true;
  out.backend = &list[best];
  return out;
}

/// "gdn_prefill: cpu (auto, 412.0 us); reference: 90000.0 us; cuda refused: no CUDA device" - the log line.
std::string Describe(std::string_view op, std::string_view preference, const std::vector<Candidate>& candidates);

}  // namespace fluvial::ops
