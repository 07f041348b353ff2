// SPDX-License-Identifier: Apache-2.0
// Linear: a remembered choice per problem.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "ops/gemm/gemm.h"

namespace fluvial::ops::gemm {

struct Linear::State {
  struct HashOf {
    size_t operator()(const Problem& p) const { return p.Hash(); }
  };
  struct Choice {
    const GemmBackend* backend = nullptr;
    size_t workspace = 0;
  };
  DeviceInfo device;
  std::string preference;
  std::unordered_map<Problem, Choice, HashOf> chosen;

  // Row counts vary without end in a server; a choice is cheap to make again.
  static constexpr size_t kMaxRemembered = 4096;

  Result<Choice> Find(const Problem& p) {
    if (const auto it = chosen.find(p); it != chosen.end()) return it->second;
    FLUVIAL_ASSIGN_OR_RETURN(auto selection, Choose(p, device, preference));
    Choice choice = {selection.backend, 0};
    // Smaller problems may choose another backend, so every one that could be chosen counts.
    const bool automatic = preference.empty() || preference == "auto";
    for (const GemmBackend& b : Backends()) {
      if ((automatic || b.name == preference) && b.check(p, device).ok()) {
        choice.workspace = std::max(choice.workspace, b.workspace_bytes(p, device));
      }
    }
    if (chosen.size() >= kMaxRemembered) chosen.clear();
    chosen.emplace(p, choice);
    return choice;
  }
};

Linear::Linear(const DeviceInfo& device, std::string_view preference)
    : state_(new State{device, std::string(preference), {}}) {}
Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

Status Linear::Run(Stream& stream, const Args& args, Workspace workspace) {
  const Problem p = ProblemOf(args);
  FLUVIAL_ASSIGN_OR_RETURN(const State::Choice choice, state_->Find(p));
  return choice.backend->run(stream, p, args, workspace);
}

Result<size_t> Linear::WorkspaceBytes(const Problem& problem) {
  FLUVIAL_ASSIGN_OR_RETURN(const State::Choice choice, state_->Find(problem));
  return choice.workspace;
}

Result<std::string_view> Linear::BackendName(const Problem& problem) {
  FLUVIAL_ASSIGN_OR_RETURN(const State::Choice choice, state_->Find(problem));
  return choice.backend->name;
}

}  // namespace fluvial::ops::gemm
