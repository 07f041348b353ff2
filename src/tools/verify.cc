// SPDX-License-Identifier: Apache-2.0
// fluvial verify: backends against the fp64 reference, on the machine at hand.
#include "ops/delta_rule/verify.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/command.h"
#include "tools/provider_flags.h"

namespace fluvial::tools {
namespace {

namespace delta = ops::delta_rule;

struct Options {
  std::string op;
  std::string backend;
  std::string cases = "quick";
  std::string problem;
  std::string device = "auto";
  uint64_t seed = 1;
  ProviderFlags providers;
  bool json = false;
};

volatile std::sig_atomic_t interrupted = 0;

std::string Table(const delta::VerifyReport& r) {
  size_t name = 7;
  for (const auto& t : r.tallies) name = std::max(name, t.backend.size());
  char line[256];
  std::snprintf(line, sizeof(line), "%-*s %-7s %8s %8s %8s  %s\n", static_cast<int>(name), "backend", "device",
                "passed", "failed", "refused", "worst error / bound");
  std::string out = line;
  for (const auto& t : r.tallies) {
    std::snprintf(line, sizeof(line), "%-*s %-7s %8lld %8lld %8lld  %.3f\n", static_cast<int>(name), t.backend.c_str(),
                  t.device.c_str(), static_cast<long long>(t.passed), static_cast<long long>(t.failed),
                  static_cast<long long>(t.refused), t.worst_ratio);
    out += line;
  }
  for (const std::string& f : r.failures) out += "FAILED " + f + "\n";
  out += std::to_string(r.cases) + " cases, " + std::to_string(r.runs) + " runs, " + std::to_string(r.failed) +
         " failed" + (r.stopped ? " (stopped early)" : "") + "\n";
  return out;
}

std::string Json(const delta::VerifyReport& r, uint64_t seed) {
  nlohmann::ordered_json root;
  root["cases"] = r.cases;
  root["runs"] = r.runs;
  root["failed"] = r.failed;
  root["seed"] = seed;
  root["stopped"] = r.stopped;
  root["backends"] = nlohmann::ordered_json::array();
  for (const auto& t : r.tallies) {
    root["backends"].push_back({{"backend", t.backend},
                                {"device", t.device},
                                {"passed", t.passed},
                                {"failed", t.failed},
                                {"refused", t.refused},
                                {"mirrored", t.mirrored},
                                {"worst_ratio", t.worst_ratio},
                                {"worst_problem", t.worst_line}});
  }
  root["failures"] = r.failures;
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<delta::VerifyReport> RunVerify(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(LoadProviders(o.providers, {}));
  delta::VerifyOptions v;
  if (!o.op.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(const delta::Op op, delta::ParseOp(o.op));
    v.ops = {op};
  }
  v.backend = o.backend;
  v.line = o.problem;
  v.seed = o.seed;
  if (o.cases != "quick" && o.cases != "full") {
    return Status::InvalidArgument("--cases is " + o.cases + ": use quick or full");
  }
  v.cases = o.cases == "full" ? delta::kFullCases : delta::kQuickCases;
  std::vector<std::unique_ptr<Stream>> streams;
  streams.push_back(MakeCpuStream());
  if (o.device != "auto" && o.device != "cpu" && o.device != "cuda") {
    return Status::InvalidArgument("--device is " + o.device + ": use auto, cpu or cuda");
  }
  if (o.device == "cuda" && CudaDeviceCount() == 0) {
    return Status::InvalidArgument("--device is cuda, but " + CudaUnavailableReason());
  }
  if (o.device != "cpu" && CudaDeviceCount() > 0) {
    FLUVIAL_ASSIGN_OR_RETURN(auto cuda, MakeCudaStream(0));
    streams.push_back(std::move(cuda));
  }
  const auto before = std::signal(SIGINT, [](int) { interrupted = 1; });
  v.progress = [](int64_t, int64_t) { return interrupted == 0; };
  Result<delta::VerifyReport> report = delta::Verify(streams, v);
  std::signal(SIGINT, before);
  return report;
}

}  // namespace

Command AddVerify(CLI::App& root) {
  CLI::App* app = root.add_subcommand("verify", "Check backends against the fp64 reference on this machine");
  auto o = std::make_shared<Options>();
  app->add_option("--op", o->op, "Only this operator: gdn_prefill, gdn_decode, kda_prefill or kda_decode")
      ->type_name("NAME");
  app->add_option("--backend", o->backend, "Only this backend")->type_name("NAME");
  app->add_option("--cases", o->cases, "quick (240 cases) or full (5000)")->capture_default_str();
  app->add_option("--problem", o->problem, "This case only: a line as failures print it")->type_name("LINE");
  app->add_option("--device", o->device, "auto, cpu or cuda")->capture_default_str();
  app->add_option("--seed", o->seed, "Other cases of the same kind")->capture_default_str();
  AddProviderFlag(*app, o->providers);
  app->add_flag("--json", o->json, "One JSON object (docs/cli.md)");
  app->footer(
      "A case that fails is printed as one line; give that line to --problem to see it again.\n"
      "Exit status: 0 all passed, 1 something failed, 4 the named backend refused every case.\n"
      "Examples:\n"
      "  fluvial verify\n"
      "  fluvial verify --op kda_prefill --backend cpu --cases full\n"
      "  fluvial verify --problem \"kda_prefill hk=2 hv=4 lens=65,0,17 gate=bounded:-5 fill=strong slots=mixed\"");
  return {app, [o] {
            const auto report = RunVerify(*o);
            if (!report.ok()) return Fail(report.status());
            Print(o->json ? Json(*report, o->seed) : Table(*report));
            if (interrupted != 0) return static_cast<int>(kInterrupted);
            if (report->failed > 0) return static_cast<int>(kFailed);
            return Finish();
          }};
}

}  // namespace fluvial::tools
