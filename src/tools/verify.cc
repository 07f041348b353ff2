// SPDX-License-Identifier: Apache-2.0
// fluvial verify: backends against the fp64 reference, on the machine at hand.
#include "ops/delta_rule/verify.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "ops/vision_attention/verify.h"
#include "tools/command.h"
#include "tools/provider_flags.h"

namespace fluvial::tools {
namespace {

namespace delta = ops::delta_rule;
namespace vision = ops::vision_attention;

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

std::string Table(const ops::VerifyReport& r) {
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

std::string Json(const ops::VerifyReport& r, uint64_t seed) {
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

Result<ops::VerifyReport> RunVerify(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(LoadProviders(o.providers, {}));
  const std::string op = !o.op.empty() ? o.op : o.problem.substr(0, o.problem.find(' '));
  const bool with_vision = op.empty() || op == vision::kOpName, with_delta = op != vision::kOpName;
  delta::VerifyOptions v;
  vision::VerifyOptions w;
  if (!op.empty() && with_delta) {
    const auto parsed = delta::ParseOp(op);
    if (!parsed.ok()) return Status::InvalidArgument(parsed.status().message() + ", " + std::string(vision::kOpName));
    if (!o.op.empty()) v.ops = {*parsed};
  }
  v.backend = w.backend = o.backend;
  v.line = w.line = o.problem;
  v.seed = w.seed = o.seed;
  if (o.cases != "quick" && o.cases != "full") {
    return Status::InvalidArgument("--cases is " + o.cases + ": use quick or full");
  }
  v.cases = o.cases == "full" ? delta::kFullCases : delta::kQuickCases;
  w.cases = o.cases == "full" ? vision::kFullCases : vision::kQuickCases;
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
  v.progress = w.progress = [](int64_t, int64_t) { return interrupted == 0; };
  const auto run = [&]() -> Result<ops::VerifyReport> {
    ops::VerifyReport report;
    if (with_delta) {
      FLUVIAL_ASSIGN_OR_RETURN(report, delta::Verify(streams, v));
    }
    if (with_vision && !report.stopped) {
      FLUVIAL_ASSIGN_OR_RETURN(const ops::VerifyReport more, vision::Verify(streams, w));
      report.Append(more);
    }
    return report;
  };
  Result<ops::VerifyReport> report = run();
  std::signal(SIGINT, before);
  return report;
}

}  // namespace

Command AddVerify(CLI::App& root) {
  CLI::App* app = root.add_subcommand("verify", "Check backends against the fp64 reference on this machine");
  auto o = std::make_shared<Options>();
  app->add_option("--op", o->op,
                  "Only this operator: gdn_prefill, gdn_decode, kda_prefill, kda_decode or vision_attention")
      ->type_name("NAME");
  app->add_option("--backend", o->backend, "Only this backend")->type_name("NAME");
  app->add_option("--cases", o->cases, "quick (60 cases per operator) or full (1250)")->capture_default_str();
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
