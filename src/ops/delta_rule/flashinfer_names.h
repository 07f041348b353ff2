// SPDX-License-Identifier: Apache-2.0
// The FlashInfer provider's table: which of FlashInfer's own backend names can take a problem, and why not. The engine
// knows none of these names; `--kda-prefill-backend flashinfer --flashinfer-kda-backend NAME` hands the name through,
// and `fluvial explain` asks here. The rules are FlashInfer's and vLLM's documented contracts (docs/ops/delta_rule.md).
#pragma once

#include <span>
#include <string_view>

#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// What a name needs to know besides problem and device.
struct ProviderSituation {
  bool graph_capture = false;       ///< prefill is to be captured into a CUDA graph
  bool explicit_workspace = false;  ///< the caller owns the workspace ...
  bool warmed_workspace = false;    ///< ... and has run once with it, eagerly, on the capture stream
};

struct ProviderName {
  std::string_view name;
  std::string_view description;
  Check (*check)(const Problem& problem, const DeviceInfo& device, const ProviderSituation& situation);
};

/// Names that --flashinfer-kda-backend (or --flashinfer-gdn-backend, for GDN) takes, "auto" first.
std::span<const ProviderName> FlashInferNames(Op op);

/// The check of one name. An unknown name is kInvalidArgument with the list; a refusal is a value.
Result<Check> CheckFlashInfer(std::string_view name, const Problem& problem, const DeviceInfo& device,
                              const ProviderSituation& situation);

}  // namespace fluvial::ops::delta_rule
