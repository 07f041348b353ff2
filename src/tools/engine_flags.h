// SPDX-License-Identifier: Apache-2.0
// The options of every command that loads a model: device, types, backends, sizes.
#pragma once

#include <map>
#include <string>

#include "fluvial/engine.h"

namespace CLI {
class App;
}

namespace fluvial::tools {

struct EngineFlags {
  EngineOptions engine;
  std::map<std::string, std::string> backends;  ///< operator -> name, as typed; "auto" where nothing was said
};

/// Adds MODEL, --device, --dtype, --mamba-ssm-cache-dtype, --threads, the sizes and one --<operator>-backend each.
/// `flags` must outlive `app`.
void AddEngineFlags(CLI::App& app, EngineFlags& flags);

/// What Engine::Load takes.
EngineOptions ToEngineOptions(const EngineFlags& flags);

}  // namespace fluvial::tools
