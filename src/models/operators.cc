// SPDX-License-Identifier: Apache-2.0
#include "models/operators.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace fluvial::models {
namespace {

constexpr std::string_view kNames[] = {"gemm",
                                       "gdn_prefill",
                                       "gdn_decode",
                                       "kda_prefill",
                                       "kda_decode",
                                       ops::causal_conv1d::kOpName,
                                       ops::paged_attention::kOpName,
                                       ops::mla_attention::kOpName,
                                       ops::pool_index::kOpName,
                                       ops::moe::kOpName,
                                       ops::vision_attention::kOpName};

/// Is `name` among the comma-separated `names`?
bool Listed(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t comma = names.find(',');
    if (names.substr(0, comma) == name) return true;
    names = comma == std::string_view::npos ? std::string_view{} : names.substr(comma + 1);
  }
  return false;
}

}  // namespace

Operators::Operators(const DeviceInfo& device, std::map<std::string, std::string> preferences)
    : device_(device), preferences_(std::move(preferences)), linear_(device, Preference("gemm")) {}

Result<Operators> Operators::Create(const DeviceInfo& device, const std::map<std::string, std::string>& preferences) {
  for (const auto& [op, backend] : preferences) {
    if (std::find(std::begin(kNames), std::end(kNames), op) != std::end(kNames)) continue;
    std::string names;
    for (const std::string_view n : kNames) names += (names.empty() ? "" : ", ") + std::string(n);
    return Status::InvalidArgument("there is no operator '" + op + "' to choose a backend for; operators: " + names);
  }
  return Operators(device, preferences);
}

std::string_view Operators::Preference(std::string_view op) const {
  const auto it = preferences_.find(std::string(op));
  return it == preferences_.end() ? std::string_view("auto") : std::string_view(it->second);
}

template <class Problem, class Args>
const ops::Backend<Problem, Args>* Operators::Note(std::string_view op,
                                                   const ops::Selection<Problem, Args>& selection) {
  const std::string_view name = selection.backend->name;
  auto use = std::find_if(uses_.begin(), uses_.end(), [&](const OperatorUse& u) { return u.op == op; });
  if (use == uses_.end()) {
    uses_.push_back({std::string(op), "", ""});
    use = uses_.end() - 1;
  }
  if (!Listed(use->name, name)) {
    use->name += (use->name.empty() ? "" : ",") + std::string(name);
    use->explanation = ops::Describe(op, Preference(op), selection.candidates);
    LogInfo(use->explanation);
  }
  return selection.backend;
}

template <class Problem, class Args, class ChooseFn>
Result<const ops::Backend<Problem, Args>*> Operators::Remember(Last<Problem, Args>& last, std::string_view op,
                                                               const Problem& problem, ChooseFn choose) {
  if (last.backend != nullptr && last.problem == problem) return last.backend;
  FLUVIAL_ASSIGN_OR_RETURN(const auto selection, choose(problem, device_, Preference(op)));
  last = {problem, Note(op, selection)};
  return last.backend;
}

Result<const ops::delta_rule::DeltaBackend*> Operators::Choose(const ops::delta_rule::Problem& problem) {
  return Remember(problem.prefill() ? last_prefill_ : last_decode_, ops::delta_rule::Name(problem.op), problem,
                  ops::delta_rule::Choose);
}

Result<const ops::causal_conv1d::ConvBackend*> Operators::Choose(const ops::causal_conv1d::Problem& problem) {
  return Remember(last_conv_, ops::causal_conv1d::kOpName, problem, ops::causal_conv1d::Choose);
}

Result<const ops::paged_attention::AttentionBackend*> Operators::Choose(const ops::paged_attention::Problem& problem) {
  return Remember(last_attention_, ops::paged_attention::kOpName, problem, ops::paged_attention::Choose);
}

Result<const ops::mla_attention::MlaBackend*> Operators::Choose(const ops::mla_attention::Problem& problem) {
  return Remember(last_mla_, ops::mla_attention::kOpName, problem, ops::mla_attention::Choose);
}

Result<const ops::pool_index::IndexBackend*> Operators::Choose(const ops::pool_index::Problem& problem) {
  return Remember(last_index_, ops::pool_index::kOpName, problem, ops::pool_index::Choose);
}

Result<const ops::moe::MoeBackend*> Operators::Choose(const ops::moe::Problem& problem) {
  return Remember(last_moe_, ops::moe::kOpName, problem, ops::moe::Choose);
}

Result<const ops::vision_attention::VisionBackend*> Operators::Choose(const ops::vision_attention::Problem& problem) {
  return Remember(last_vision_, ops::vision_attention::kOpName, problem, ops::vision_attention::Choose);
}

Result<size_t> Operators::LinearBytes(const ops::gemm::Problem& problem) {
  // Linear remembers its choices; this one is made for the explanation.
  FLUVIAL_ASSIGN_OR_RETURN(const std::string_view name, linear_.BackendName(problem));
  const auto use = std::find_if(uses_.begin(), uses_.end(), [](const OperatorUse& u) { return u.op == "gemm"; });
  if (use == uses_.end() || !Listed(use->name, name)) {
    FLUVIAL_ASSIGN_OR_RETURN(const auto selection, ops::gemm::Choose(problem, device_, Preference("gemm")));
    Note("gemm", selection);
  }
  return linear_.WorkspaceBytes(problem);
}

Status Operators::Linear(Stream& stream, const TensorView& x, const TensorView& w, const TensorView& bias,
                         const TensorView& y, Arena& arena) {
  ops::gemm::Args args;
  args.x = x;
  args.w = w;
  args.bias = bias;
  args.y = y;
  FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, linear_.WorkspaceBytes(ops::gemm::ProblemOf(args)));
  const size_t mark = arena.used();
  FLUVIAL_ASSIGN_OR_RETURN(void* scratch, arena.Take(bytes));
  const Status status = linear_.Run(stream, args, {scratch, bytes});
  arena.Rewind(mark);
  return status;
}

}  // namespace fluvial::models
