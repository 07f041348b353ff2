// SPDX-License-Identifier: Apache-2.0
// fluvial backends: every operator and backend, usable here or the reason why not.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/command.h"
#include "tools/op_catalog.h"
#include "tools/provider_flags.h"

namespace fluvial::tools {
namespace {

struct Options {
  std::string op;
  std::string problem;
  std::string assume_device;
  ProviderFlags providers;
  bool json = false;
};

std::string Table(const std::vector<OpEntry>& entries, const std::vector<DeviceInfo>& devices) {
  std::string out = "devices:";
  for (const DeviceInfo& d : devices) {
    out += " " + d.Arch() + " (" + d.name +
           (d.kind == DeviceKind::kCpu ? ", " + std::to_string(d.multiprocessors) + " threads" : "") + ")";
  }
  const std::string no_cuda = CudaUnavailableReason();
  if (!no_cuda.empty()) out += "; CUDA: " + no_cuda;
  out += "\n";
  for (const OpEntry& e : entries) {
    size_t width = 0;
    for (const BackendEntry& b : e.backends) width = std::max(width, b.name.size());
    out += "\n" + e.op + (e.option.empty() ? "" : "   " + e.option + " NAME") + "   contract: " + e.contract + "\n";
    out += "  asked about: " + e.problem + "\n";
    for (const BackendEntry& b : e.backends) {
      const std::string indent(width + 9, ' ');
      out += "  " + b.name + std::string(width - b.name.size(), ' ') + (b.usable ? "  yes  " : "  no   ") +
             b.description + "\n";
      if (!b.usable) out += indent + "not here: " + b.reason + "\n";
    }
  }
  return out;
}

std::string Json(const std::vector<OpEntry>& entries, const std::vector<DeviceInfo>& devices) {
  nlohmann::ordered_json root;
  root["devices"] = nlohmann::ordered_json::array();
  for (const DeviceInfo& d : devices) root["devices"].push_back({{"arch", d.Arch()}, {"name", d.name}});
  root["cuda_unavailable"] = CudaUnavailableReason();
  root["operators"] = nlohmann::ordered_json::array();
  for (const OpEntry& e : entries) {
    nlohmann::ordered_json op;
    op["op"] = e.op;
    op["option"] = e.option;
    op["contract"] = e.contract;
    op["problem"] = e.problem;
    op["backends"] = nlohmann::ordered_json::array();
    for (const BackendEntry& b : e.backends) {
      nlohmann::ordered_json backend;
      backend["name"] = b.name;
      backend["description"] = b.description;
      backend["usable"] = b.usable;
      backend["reason"] = b.reason;
      for (const DeviceVerdict& v : b.devices) {
        backend["devices"].push_back({{"arch", v.device}, {"usable", v.usable}, {"reason", v.reason}});
      }
      op["backends"].push_back(std::move(backend));
    }
    root["operators"].push_back(std::move(op));
  }
  // Reasons may quote a user's option: bytes that are not UTF-8 become U+FFFD instead of an exception.
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<std::vector<DeviceInfo>> Devices(const std::string& assumed) {
  std::vector<DeviceInfo> devices;
  if (!assumed.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(DeviceInfo info, AssumedDevice(assumed));
    devices.push_back(std::move(info));
    return devices;
  }
  devices.push_back(CpuDeviceInfo(AvailableCpus()));
  for (int i = 0; i < CudaDeviceCount(); ++i) {
    FLUVIAL_ASSIGN_OR_RETURN(DeviceInfo info, CudaDeviceInfo(i));
    const bool seen =
        std::any_of(devices.begin(), devices.end(), [&](const DeviceInfo& d) { return d.Arch() == info.Arch(); });
    if (!seen) devices.push_back(std::move(info));
  }
  return devices;
}

Status RunBackends(const Options& o) {
  FLUVIAL_RETURN_IF_ERROR(LoadProviders(o.providers, {}));
  FLUVIAL_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, Devices(o.assume_device));
  std::vector<std::string> names = OpNames();
  if (!o.problem.empty()) {
    const std::string from_line = o.problem.substr(0, o.problem.find(' '));
    if (!o.op.empty() && o.op != from_line) {
      return Status::InvalidArgument("--op is " + o.op + ", but --problem is of " + from_line);
    }
    names = {from_line};
  } else if (!o.op.empty()) {
    names = {o.op};
  }
  std::vector<OpEntry> entries;
  for (const std::string& name : names) {
    FLUVIAL_ASSIGN_OR_RETURN(OpEntry entry, DescribeOp(name, o.problem, devices));
    entries.push_back(std::move(entry));
  }
  Print(o.json ? Json(entries, devices) : Table(entries, devices));
  return Status::Ok();
}

}  // namespace

Command AddBackends(CLI::App& root) {
  CLI::App* app = root.add_subcommand("backends", "Every operator and backend: usable here, or the reason why not");
  auto o = std::make_shared<Options>();
  app->add_option("--op", o->op, "Only this operator, e.g. gdn_prefill")->type_name("NAME");
  app->add_option("--problem", o->problem, "Ask about this problem line instead of a typical one")->type_name("LINE");
  app->add_option("--assume-device", o->assume_device, "Ask for sm_90, sm_100, sm_103, sm_120 or cpu, present or not")
      ->type_name("ARCH");
  AddProviderFlag(*app, o->providers);
  app->add_flag("--json", o->json, "One JSON object (docs/cli.md)");
  app->footer(
      "Examples:\n"
      "  fluvial backends --op kda_prefill\n"
      "  fluvial backends --problem \"gdn_prefill hk=16 hv=32 k=128 v=128 io=bf16 state=fp32 lens=8x1024\"\n"
      "  fluvial backends --assume-device sm_90 --json");
  return {app, [o] {
            const Status s = RunBackends(*o);
            return s.ok() ? Finish() : Fail(s);
          }};
}

}  // namespace fluvial::tools
