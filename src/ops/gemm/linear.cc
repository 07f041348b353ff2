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
  DeviceInfo device;
  std::string preference;
  std::unordered_map<Problem, const GemmBackend*, HashOf> chosen;

  // Row counts vary without end in a server; the choice is cheap to make again.
  static constexpr size_t kMaxRemembered = 4096;

  Result<const GemmBackend*> Find(const Problem& p) {
    if (const auto it = chosen.find(p); it != chosen.end()) return it->second;
    FLUVIAL_ASSIGN_OR_RETURN(auto selection, Choose(p, device, preference));
    if (chosen.size() >= kMaxRemembered) chosen.clear();
    chosen.emplace(p, selection.backend);
    return selection.backend;
  }
};

Linear::Linear(const DeviceInfo& device, std::string_view preference)
    : state_(new State{device, std::string(preference), {}}) {}
Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

Status Linear::Run(Stream& stream, const Args& args, Workspace workspace) {
  const Problem p = ProblemOf(args);
  FLUVIAL_ASSIGN_OR_RETURN(const GemmBackend* backend, state_->Find(p));
  return backend->run(stream, p, args, workspace);
}

Result<size_t> Linear::WorkspaceBytes(const Problem& problem) {
  FLUVIAL_RETURN_IF_ERROR(state_->Find(problem).status());
  // Smaller problems may choose another backend, so every one that could be chosen counts.
  const bool automatic = state_->preference.empty() || state_->preference == "auto";
  size_t bytes = 0;
  for (const GemmBackend& b : Backends()) {
    if ((automatic || b.name == state_->preference) && b.check(problem, state_->device).ok()) {
      bytes = std::max(bytes, b.workspace_bytes(problem, state_->device));
    }
  }
  return bytes;
}

Result<std::string_view> Linear::BackendName(const Problem& problem) {
  FLUVIAL_ASSIGN_OR_RETURN(const GemmBackend* backend, state_->Find(problem));
  return backend->name;
}

}  // namespace fluvial::ops::gemm
