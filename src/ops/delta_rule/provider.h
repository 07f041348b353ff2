// SPDX-License-Identifier: Apache-2.0
// Providers: shared libraries that add backends (include/fluvial/provider.h). Nothing is loaded unless asked for.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

struct LoadedProvider {
  std::string name;
  std::string version;
  std::string path;                   ///< as given
  std::vector<std::string> backends;  ///< names, in the provider's order
};

/// Settings by the name of the provider that they are for: {"flashinfer": {"kda-backend": "cute-dsl"}}.
using ProviderSettings = std::map<std::string, std::map<std::string, std::string>>;

/// Loads the library at `path`, hands it the settings of its name and puts its backends into the lists of their
/// operators, before `reference`. All or nothing: on an error the lists stay as they were. The library stays loaded
/// until the process ends. Loading a path a second time without settings changes nothing.
/// kUnusableModel when the file is missing, is no provider, speaks another interface or describes a backend that cannot
/// be; kInvalidArgument for a name that exists already or a setting it does not take. Not thread-safe: load before
/// engines run. Lists and backends handed out before stay valid.
Result<LoadedProvider> LoadProvider(const std::string& path, const ProviderSettings& settings = {});

/// What has been loaded, in order.
const std::vector<LoadedProvider>& LoadedProviders();

/// Is there a provider of that name?
bool ProviderLoaded(std::string_view name);

}  // namespace fluvial::ops::delta_rule
