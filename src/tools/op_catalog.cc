// SPDX-License-Identifier: Apache-2.0
#include "tools/op_catalog.h"

#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/common/backend.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/gemm/gemm.h"
#include "ops/moe/moe.h"
#include "ops/paged_attention/mla_attention.h"
#include "ops/paged_attention/paged_attention.h"
#include "ops/pool_index/pool_index.h"
#include "ops/vision_attention/vision_attention.h"

namespace fluvial::tools {
namespace {

using Devices = std::span<const DeviceInfo>;

struct Known {
  const char* op;
  const char* option;
  const char* contract;
  const char* problem;  // typical of the models that use the operator
  Status (*fill)(OpEntry& entry, Devices devices);
};

template <class Problem, class Args>
void Ask(OpEntry& entry, std::span<const ops::Backend<Problem, Args>> list, const Problem& problem, Devices devices) {
  for (const auto& b : list) {
    BackendEntry e{std::string(b.name), std::string(b.description), {}, false, {}};
    for (const DeviceInfo& d : devices) {
      const ops::Check check = b.check(problem, d);
      e.devices.push_back({d.Arch(), check.ok(), check.reason()});
      e.usable = e.usable || check.ok();
      if (!check.ok() && e.reason.find(check.reason()) == std::string::npos) {
        e.reason += (e.reason.empty() ? "" : "; ") + check.reason();
      }
    }
    if (e.usable) e.reason.clear();
    entry.backends.push_back(std::move(e));
  }
}

Status FillDelta(OpEntry& entry, Devices devices) {
  namespace op = ops::delta_rule;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  if (op::Name(line.problem.op) != entry.op) {
    return Status::InvalidArgument("--problem is a " + std::string(op::Name(line.problem.op)) + ", not a " + entry.op);
  }
  Ask(entry, op::Backends(line.problem.op), line.problem, devices);
  return Status::Ok();
}

Status FillGemm(OpEntry& entry, Devices devices) {
  namespace op = ops::gemm;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  Ask(entry, op::Backends(), line.problem, devices);
  return Status::Ok();
}

Status FillMoe(OpEntry& entry, Devices devices) {
  namespace op = ops::moe;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  Ask(entry, op::Backends(), line.problem, devices);
  return Status::Ok();
}

Status FillConv(OpEntry& entry, Devices devices) {
  namespace op = ops::causal_conv1d;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  Ask(entry, op::Backends(), line.problem, devices);
  return Status::Ok();
}

Status FillAttention(OpEntry& entry, Devices devices) {
  namespace op = ops::paged_attention;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  Ask(entry, op::Backends(), line.problem, devices);
  return Status::Ok();
}

Status FillVision(OpEntry& entry, Devices devices) {
  namespace op = ops::vision_attention;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  Ask(entry, op::Backends(), line.problem, devices);
  return Status::Ok();
}

Status FillMla(OpEntry& entry, Devices devices) {
  namespace op = ops::mla_attention;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  Ask(entry, op::Backends(), line.problem, devices);
  return Status::Ok();
}

Status FillIndex(OpEntry& entry, Devices devices) {
  namespace op = ops::pool_index;
  FLUVIAL_ASSIGN_OR_RETURN(const op::ProblemLine line, op::ParseProblemLine(entry.problem));
  Ask(entry, op::Backends(), line.problem, devices);
  return Status::Ok();
}

constexpr const char* kDelta = "src/ops/delta_rule/delta_rule.h";

constexpr Known kOps[] = {
    {"gdn_prefill", "--gdn-prefill-backend", kDelta, "gdn_prefill hk=16 hv=32 lens=1024", FillDelta},
    {"gdn_decode", "--gdn-decode-backend", kDelta, "gdn_decode hk=16 hv=32 lens=1", FillDelta},
    {"kda_prefill", "--kda-prefill-backend", kDelta, "kda_prefill hk=32 hv=32 gate=bounded:-5 lens=1024", FillDelta},
    {"kda_decode", "--kda-decode-backend", kDelta, "kda_decode hk=32 hv=32 gate=bounded:-5 lens=1", FillDelta},
    {"paged_attention", "--paged-attention-backend", "src/ops/paged_attention/paged_attention.h",
     "paged_attention hq=16 hkv=2 dqk=256 lens=1024", FillAttention},
    {"vision_attention", "--mm-encoder-attn-backend", "src/ops/vision_attention/vision_attention.h",
     "vision_attention heads=16 d=80 lens=216x64", FillVision},
    {"mla_attention", "--mla-attention-backend", "src/ops/paged_attention/mla_attention.h",
     "mla_attention h=32 nope=128 rope=64 v=128 rank=512 lens=1024", FillMla},
    {"pool_index", "--pool-index-backend", "src/ops/pool_index/pool_index.h",
     "pool_index h=32 dim=128 pool=4 keep=512 lens=1 ctx=65535", FillIndex},
    {"causal_conv1d", "--causal-conv1d-backend", "src/ops/causal_conv1d/causal_conv1d.h",
     "causal_conv1d c=8192 w=4 lens=1024", FillConv},
    {"moe", "--moe-backend", "src/ops/moe/moe.h", "moe m=1 e=256 top=8 h=2048 i=512", FillMoe},
    {"gemm", "--gemm-backend", "src/ops/gemm/gemm.h", "gemm m=1 n=2048 k=2048 x=bf16 w=bf16 y=bf16", FillGemm},
};

}  // namespace

std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  for (const Known& k : kOps) names.emplace_back(k.op);
  return names;
}

Result<OpEntry> DescribeOp(std::string_view op, std::string_view problem_line, std::span<const DeviceInfo> devices) {
  std::string names;
  for (const Known& k : kOps) {
    names += (names.empty() ? "" : ", ") + std::string(k.op);
    if (op != k.op) continue;
    OpEntry entry{k.op, k.option, k.contract, problem_line.empty() ? k.problem : std::string(problem_line), {}};
    FLUVIAL_RETURN_IF_ERROR(k.fill(entry, devices));
    return entry;
  }
  return Status::InvalidArgument("there is no operator '" + std::string(op) + "'; operators: " + names);
}

}  // namespace fluvial::tools
