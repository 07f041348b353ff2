// SPDX-License-Identifier: Apache-2.0
// Options about providers: --provider PATH, and the names inside the FlashInfer provider.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fluvial/status.h"

namespace CLI {
class App;
}

namespace fluvial::tools {

struct ProviderFlags {
  std::vector<std::string> paths;
  std::string flashinfer_gdn = "auto", flashinfer_kda = "auto";
};

/// Adds --provider. `flags` must outlive `app`.
void AddProviderFlag(CLI::App& app, ProviderFlags& flags);

/// Adds --flashinfer-gdn-backend and --flashinfer-kda-backend.
void AddFlashInferFlags(CLI::App& app, ProviderFlags& flags);

/// Loads what --provider names. `backends` is operator -> the backend named for it: a FlashInfer name other than auto
/// needs that operator's prefill backend to be `flashinfer`. kInvalidArgument for a name that FlashInfer does not have,
/// or that is named without selecting its provider.
Status LoadProviders(const ProviderFlags& flags, const std::map<std::string, std::string>& backends);

/// What --<operator>-backend flashinfer lacks when its provider is not loaded; empty for other names.
std::string MissingProvider(const std::string& backend);

}  // namespace fluvial::tools
