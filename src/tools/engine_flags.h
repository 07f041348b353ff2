// SPDX-License-Identifier: Apache-2.0
// The options of every command that loads a model: device, types, backends, sizes.
#pragma once

#include <map>
#include <string>

#include "fluvial/engine.h"
#include "tools/provider_flags.h"

namespace CLI {
class App;
}

namespace fluvial::tools {

struct EngineFlags {
  EngineOptions engine;
  std::map<std::string, std::string> backends;  ///< operator -> name, as typed; "auto" where nothing was said
  ProviderFlags providers;
};

/// Adds MODEL, --device, --dtype, --mamba-cache-dtype, --mamba-ssm-cache-dtype, --threads, the sizes, one
/// --<operator>-backend each, and the options of providers. `flags` must outlive `app`.
void AddEngineFlags(CLI::App& app, EngineFlags& flags);

/// Adds what only commands with many requests use: --max-num-seqs, --kv-cache-tokens and the prefix cache.
void AddBatchingFlags(CLI::App& app, EngineFlags& flags);

/// Loads the providers asked for and gives what Engine::Load takes. kInvalidArgument for a backend name that its
/// operator does not have: also where the model turns out not to use that operator.
Result<EngineOptions> ToEngineOptions(const EngineFlags& flags);

/// One log line for each backend named for an operator that the loaded model does not have.
void WarnOfUnusedBackends(const EngineOptions& options, const Engine& engine);

}  // namespace fluvial::tools
