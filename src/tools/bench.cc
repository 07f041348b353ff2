// SPDX-License-Identifier: Apache-2.0
// fluvial bench op: kernels against the floor of this machine. Each figure is the median over fresh processes of the
// best repeat inside a process, so that neither warm caches nor one unlucky start decide.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "ops/common/suites.h"
#include "ops/delta_rule/bench.h"
#include "ops/delta_rule/roofline.h"
#include "ops/delta_rule/suites.h"
#include "ops/vision_attention/bench.h"
#include "ops/vision_attention/cudnn.h"
#include "ops/vision_attention/suites.h"
#include "tools/bench_compare.h"
#include "tools/command.h"
#include "tools/provider_flags.h"

namespace fluvial::tools {
namespace {

namespace delta = ops::delta_rule;
namespace vision = ops::vision_attention;
using Json = nlohmann::ordered_json;

struct Options {
  std::string op;
  std::string backends;
  std::string suite;
  std::string problem;
  std::string device = "auto";
  std::string json;
  int threads = 0;
  int processes = 3;
  double seconds = 0.3;
  std::vector<std::string> compare;
  ProviderFlags providers;
  bool child = false;
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

Result<std::unique_ptr<Stream>> OpenStream(const Options& o) {
  if (o.device != "auto" && o.device != "cpu" && o.device != "cuda") {
    return Status::InvalidArgument("--device is " + o.device + ": use auto, cpu or cuda");
  }
  if (o.device == "cuda" || (o.device == "auto" && CudaDeviceCount() > 0)) return MakeCudaStream(0);
  return MakeCpuStream(o.threads);
}

bool IsVision(std::string_view line) { return line.substr(0, line.find(' ')) == vision::kOpName; }

template <class Backend>
Result<const Backend*> Named(const std::vector<Backend>& all, const std::string& name) {
  std::string names;
  for (const Backend& b : all) {
    if (b.name == name) return &b;
    names += (names.empty() ? "" : ", ") + std::string(b.name);
  }
  return Status::InvalidArgument("there is no backend '" + name + "'; backends: " + names);
}

Result<ops::Measurement> Measure(Stream& stream, const Options& o, const std::string& line, const std::string& name) {
  if (IsVision(line)) {
    FLUVIAL_ASSIGN_OR_RETURN(const vision::ProblemLine problem, vision::ParseProblemLine(line));
    const auto list = vision::Backends();
    const std::vector<vision::VisionBackend> all(list.begin(), list.end());
    FLUVIAL_ASSIGN_OR_RETURN(const vision::VisionBackend* const backend, Named(all, name));
    return vision::Measure(stream, *backend, problem, 3, o.seconds);
  }
  FLUVIAL_ASSIGN_OR_RETURN(const delta::ProblemLine problem, delta::ParseProblemLine(line));
  const auto list = delta::Backends(problem.problem.op);
  std::vector<delta::DeltaBackend> all(list.begin(), list.end());
  all.push_back(delta::kTokenLoopPeer);
  FLUVIAL_ASSIGN_OR_RETURN(const delta::DeltaBackend* const backend, Named(all, name));
  return delta::Measure(stream, *backend, problem, 3, o.seconds);
}

// One (problem, backend) in this process.
Result<Json> MeasureHere(const Options& o, const std::string& line, const std::string& backend) {
  FLUVIAL_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, OpenStream(o));
  FLUVIAL_ASSIGN_OR_RETURN(const ops::Measurement m, Measure(*stream, o, line, backend));
  delta::Roofline roof = delta::RooflineOf(*stream);
  if (IsVision(line) && backend == "cpu_bf16") {
    roof.multiply_adds_per_us *= 2;
    roof.source = "measured here, two bf16 products per fp32 lane";
  }
  Json j;
  j["problem"] = line;
  j["backend"] = backend;
  j["device"] = stream->device().Arch();
  j["us"] = m.best_us;
  j["median_us"] = m.median_us;
  if (stream->device().kind == DeviceKind::kCpu) j["active_us"] = m.best_active_us;
  j["floor_us"] = delta::FloorUs(roof, m.bytes, m.multiply_adds);
  j["floor_source"] = roof.source;
  j["bytes"] = m.bytes;
  j["multiply_adds"] = m.multiply_adds;
  if (backend == "cudnn") {
    const vision::CudnnPlanStats plans = vision::GetCudnnPlanStats();
    j["graphs_built"] = plans.built;
    j["graph_build_ms"] = plans.build_seconds * 1e3;
    j["graph_hits"] = plans.hits;
  }
  return j;
}

// The same in a process of its own: this program again, with --child.
Result<Json> MeasureThere(const Options& o, const std::string& line, const std::string& backend) {
  const auto safe = [](const std::string& s) {
    return s.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_=.,:- +") ==
           std::string::npos;
  };
  if (!safe(line) || !safe(backend))
    return Status::InvalidArgument("bench op: '" + line + "' has letters no problem has");
  std::string providers;
  for (const std::string& p : o.providers.paths) {
    if (p.find('\'') != std::string::npos) return Status::InvalidArgument("--provider: '" + p + "' has a quote");
    providers += " --provider '" + p + "'";
  }
  const std::string command = "/proc/self/exe bench op --child --problem '" + line + "' --backend '" + backend +
                              "' --device " + o.device + " --threads " + std::to_string(o.threads) + " --seconds " +
                              std::to_string(o.seconds) + providers + " 2>&1";
  // The shell resolves /proc/self to itself: name the program instead.
  std::array<char, 4096> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n <= 0) return Status::Failed("bench op: cannot find the program's own path; use --processes 1");
  const std::string self(path.data(), static_cast<size_t>(n));
  if (self.find('\'') != std::string::npos) return Status::Failed("bench op: the program's path has a quote");
  FILE* pipe = popen(("'" + self + "'" + command.substr(std::string("/proc/self/exe").size())).c_str(), "r");
  if (pipe == nullptr) return Status::Failed("bench op: cannot start a process");
  std::string text;
  for (std::array<char, 512> buffer; std::fgets(buffer.data(), buffer.size(), pipe) != nullptr;) text += buffer.data();
  const int status = pclose(pipe);
  Json j = Json::parse(text, nullptr, false);
  if (status != 0 || j.is_discarded()) return Status::Failed("bench op: the process for '" + line + "' said: " + text);
  return j;
}

using ops::SuiteRow;

/// The names of all suites, of all operators.
std::string SuiteNames() {
  std::string names;
  for (const auto& list : {delta::SuiteNames(), vision::SuiteNames()}) {
    for (const std::string& n : list) names += (names.empty() ? "" : ", ") + n;
  }
  return names;
}

template <class Entry, class Format>
void AddRows(std::vector<Entry> entries, const Format& format, std::vector<SuiteRow>* out) {
  for (Entry& e : entries) out->push_back({format(e.line), std::move(e.anchors)});
}

Result<std::vector<SuiteRow>> Problems(const Options& o) {
  std::vector<SuiteRow> out;
  if (!o.problem.empty()) {
    if (IsVision(o.problem)) {
      FLUVIAL_ASSIGN_OR_RETURN(const vision::ProblemLine line, vision::ParseProblemLine(o.problem));
      out.push_back({vision::FormatProblemLine(line), {}});
    } else {
      FLUVIAL_ASSIGN_OR_RETURN(const delta::ProblemLine line, delta::ParseProblemLine(o.problem));
      out.push_back({delta::FormatProblemLine(line), {}});
    }
    return out;
  }
  const bool wants_vision = o.op == vision::kOpName;
  for (const std::string& name : Split(!o.suite.empty() ? o.suite : wants_vision ? "qwen2_5_vl,qwen3_vl" : "cpu")) {
    const auto names = vision::SuiteNames();
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      FLUVIAL_ASSIGN_OR_RETURN(auto suite, vision::Suite(name));
      AddRows(std::move(suite), vision::FormatProblemLine, &out);
    } else if (const auto suite = delta::Suite(name); suite.ok()) {
      AddRows(*suite, delta::FormatProblemLine, &out);
    } else {
      return Status::InvalidArgument("there is no suite '" + name + "'; suites: " + SuiteNames());
    }
  }
  if (!o.op.empty()) {
    if (!wants_vision) FLUVIAL_RETURN_IF_ERROR(delta::ParseOp(o.op).status());
    std::erase_if(out, [&](const SuiteRow& e) { return e.line.substr(0, e.line.find(' ')) != o.op; });
  }
  if (out.empty()) return Status::InvalidArgument("the suite has no problem of --op " + o.op);
  return out;
}

/// What auto picks for the line on the device.
Result<std::string> AutoName(const std::string& line, const DeviceInfo& device) {
  if (IsVision(line)) {
    FLUVIAL_ASSIGN_OR_RETURN(const vision::ProblemLine parsed, vision::ParseProblemLine(line));
    FLUVIAL_ASSIGN_OR_RETURN(const auto chosen, vision::Choose(parsed.problem, device, "auto"));
    return std::string(chosen.backend->name);
  }
  FLUVIAL_ASSIGN_OR_RETURN(const delta::ProblemLine parsed, delta::ParseProblemLine(line));
  FLUVIAL_ASSIGN_OR_RETURN(const auto chosen, delta::Choose(parsed.problem, device, "auto"));
  return std::string(chosen.backend->name);
}

Status RunBench(const Options& o) {
  if (!o.compare.empty()) {
    if (o.compare.size() != 2) return Status::InvalidArgument("--compare takes two files: OLD.json,NEW.json");
    FLUVIAL_ASSIGN_OR_RETURN(const std::string table, CompareRuns(o.compare[0], o.compare[1]));
    Print(table);
    return Status::Ok();
  }
  FLUVIAL_RETURN_IF_ERROR(LoadProviders(o.providers, {}));
  if (o.processes < 1)
    return Status::InvalidArgument("--processes is " + std::to_string(o.processes) + ": use 1 or more");
  if (o.child) {
    FLUVIAL_ASSIGN_OR_RETURN(const Json j, MeasureHere(o, o.problem, o.backends));
    Print(j.dump() + "\n");
    return Status::Ok();
  }
  FLUVIAL_ASSIGN_OR_RETURN(const std::vector<SuiteRow> problems, Problems(o));
  FLUVIAL_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, OpenStream(o));
  const DeviceInfo device = stream->device();
  Json rows = Json::array();
  char line[160];
  std::snprintf(line, sizeof(line), "%-22s %11s %11s %11s %7s  problem\n", "backend", "us", "active us", "floor us",
                "x floor");
  Print(line);
  for (const SuiteRow& e : problems) {
    const std::string& text = e.line;
    std::vector<std::string> names = Split(o.backends);
    if (names.empty() || (names.size() == 1 && names[0] == "auto")) {
      FLUVIAL_ASSIGN_OR_RETURN(const std::string chosen, AutoName(text, device));
      names = {chosen};
    }
    for (const std::string& name : names) {
      std::vector<Json> runs;
      for (int i = 0; i < o.processes; ++i) {
        auto j = o.processes == 1 ? MeasureHere(o, text, name) : MeasureThere(o, text, name);
        if (!j.ok()) return j.status();
        runs.push_back(std::move(j).value());
      }
      Json all = Json::array();  // in the order of the processes: --compare pairs them
      for (const Json& r : runs) all.push_back(r["us"]);
      std::sort(runs.begin(), runs.end(), [](const Json& a, const Json& b) { return a["us"] < b["us"]; });
      Json row = runs[runs.size() / 2];
      row["processes"] = o.processes;
      row["all_us"] = std::move(all);
      for (const auto& [peer, us] : e.anchors) row["anchors"][peer] = us;
      const double us = row["us"], floor = row["floor_us"];
      const double active = row.value("active_us", us);
      row["x_floor"] = active / floor;
      std::snprintf(line, sizeof(line), "%-22s %11.1f %11.1f %11.1f %7.2f  ", name.c_str(), us, active, floor,
                    active / floor);
      std::string tail = text;
      for (const auto& [peer, anchor] : e.anchors) {
        tail += "  " + peer + " " + std::to_string(static_cast<int64_t>(anchor));
      }
      if (!Print(line + tail + "\n")) return Status::Failed("writing to the standard output failed");
      rows.push_back(std::move(row));
    }
  }
  if (!o.json.empty()) {
    std::ofstream file(o.json);
    file << Json{{"results", rows}}.dump(2) << "\n";
    if (!file.flush()) return Status::Failed("--json: '" + o.json + "' cannot be written");
  }
  return Status::Ok();
}

}  // namespace

Command AddBenchOp(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("op", "Kernels alone, against the floor of this machine");
  auto o = std::make_shared<Options>();
  app->add_option("--op", o->op, "Only this operator of the suite")->type_name("NAME");
  app->add_option("--backend", o->backends, "Backends to time, separated by commas; auto times what auto picks")
      ->type_name("A,B");
  app->add_option("--suite", o->suite, "Problem lists, separated by commas: " + SuiteNames())->type_name("A,B");
  app->add_option("--problem", o->problem, "This problem only")->type_name("LINE");
  app->add_option("--device", o->device, "auto, cpu or cuda")->capture_default_str();
  app->add_option("--threads", o->threads, "CPU threads, 0 for all")->capture_default_str();
  app->add_option("--processes", o->processes, "Fresh processes per figure")->capture_default_str();
  app->add_option("--seconds", o->seconds, "Time to repeat within a process")->capture_default_str();
  app->add_option("--json", o->json, "Write all figures to this file")->type_name("FILE");
  app->add_option("--compare", o->compare, "Measure nothing: show two files written by --json side by side")
      ->type_name("OLD,NEW")
      ->delimiter(',');
  AddProviderFlag(*app, o->providers);
  app->add_flag("--child", o->child)->group("");
  app->footer(
      "us: median over processes of the best repeat; active us: CPU time per thread, which other programs do not\n"
      "stretch; floor: the larger of minimum traffic over bandwidth and multiply-adds over the peak rate, of CPU time, "
      "too;\n"
      "x floor: active us (on a GPU: us) over it.\n"
      "Examples:\n"
      "  fluvial bench op --suite cpu --backend cpu,cpu_bf16,token_loop --op gdn_prefill\n"
      "  fluvial bench op --problem \"kda_prefill lens=8192 hk=96 gate=bounded:-5\" --device cuda");
  return {app, [o] {
            const Status s = RunBench(*o);
            return s.ok() ? Finish() : Fail(s);
          }};
}

}  // namespace fluvial::tools
