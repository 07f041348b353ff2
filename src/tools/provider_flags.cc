// SPDX-License-Identifier: Apache-2.0
#include "tools/provider_flags.h"

#include <algorithm>

#include "ops/delta_rule/flashinfer_names.h"
#include "ops/delta_rule/provider.h"
#include "tools/command.h"

namespace fluvial::tools {
namespace {

namespace delta = ops::delta_rule;

constexpr const char* kFlashInfer = "flashinfer";

std::string Names(delta::Op op) {
  std::string names;
  for (const auto& n : delta::FlashInferNames(op)) names += (names.empty() ? "" : ", ") + std::string(n.name);
  return names;
}

Status CheckName(const char* option, const std::string& name, delta::Op op,
                 const std::map<std::string, std::string>& backends) {
  const auto known = delta::FlashInferNames(op);
  if (std::none_of(known.begin(), known.end(), [&](const auto& n) { return n.name == name; })) {
    return Status::InvalidArgument(std::string(option) + ": FlashInfer has no backend '" + name +
                                   "'; names: " + Names(op));
  }
  if (name == "auto") return Status::Ok();
  const std::string prefill(delta::Name(op));
  const auto at = backends.find(prefill);
  if (at != backends.end() && at->second == kFlashInfer) return Status::Ok();
  std::string select = "--" + prefill + "-backend flashinfer";
  std::replace(select.begin(), select.end(), '_', '-');
  return Status::InvalidArgument(std::string(option) + " " + name +
                                 " names a backend inside FlashInfer, which is not " + "selected: add " + select +
                                 ", or leave " + option + " out");
}

}  // namespace

void AddProviderFlag(CLI::App& app, ProviderFlags& flags) {
  app.add_option("--provider", flags.paths, "Shared libraries that add backends, separated by commas")
      ->type_name("PATH")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

void AddFlashInferFlags(CLI::App& app, ProviderFlags& flags) {
  app.add_option("--flashinfer-gdn-backend", flags.flashinfer_gdn,
                 "With --gdn-prefill-backend flashinfer: " + Names(delta::Op::kGdnPrefill))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--flashinfer-kda-backend", flags.flashinfer_kda,
                 "With --kda-prefill-backend flashinfer: " + Names(delta::Op::kKdaPrefill))
      ->type_name("NAME")
      ->capture_default_str();
}

Status LoadProviders(const ProviderFlags& flags, const std::map<std::string, std::string>& backends) {
  FLUVIAL_RETURN_IF_ERROR(
      CheckName("--flashinfer-gdn-backend", flags.flashinfer_gdn, delta::Op::kGdnPrefill, backends));
  FLUVIAL_RETURN_IF_ERROR(
      CheckName("--flashinfer-kda-backend", flags.flashinfer_kda, delta::Op::kKdaPrefill, backends));
  delta::ProviderSettings settings;
  if (flags.flashinfer_gdn != "auto") settings[kFlashInfer]["gdn-backend"] = flags.flashinfer_gdn;
  if (flags.flashinfer_kda != "auto") settings[kFlashInfer]["kda-backend"] = flags.flashinfer_kda;
  for (const std::string& path : flags.paths) {
    const auto loaded = delta::LoadProvider(path, settings);
    if (!loaded.ok()) return Status(loaded.status().code(), "--provider: " + loaded.status().message());
  }
  return Status::Ok();
}

std::string MissingProvider(const std::string& backend) {
  if (backend != kFlashInfer || delta::ProviderLoaded(kFlashInfer)) return "";
  return "the FlashInfer provider is not loaded: give its library with --provider PATH";
}

}  // namespace fluvial::tools
