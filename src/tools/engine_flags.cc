// SPDX-License-Identifier: Apache-2.0
#include "tools/engine_flags.h"

#include <algorithm>

#include "base/log.h"
#include "tools/command.h"
#include "tools/op_catalog.h"

namespace fluvial::tools {
namespace {

struct BackendFlag {
  const char* op;
  const char* option;
  const char* what;
};

constexpr BackendFlag kBackendFlags[] = {
    {"gdn_prefill", "--gdn-prefill-backend", "Gated DeltaNet over prompts"},
    {"gdn_decode", "--gdn-decode-backend", "Gated DeltaNet, one token a step"},
    {"kda_prefill", "--kda-prefill-backend", "Kimi Delta Attention over prompts"},
    {"kda_decode", "--kda-decode-backend", "Kimi Delta Attention, one token a step"},
    {"paged_attention", "--paged-attention-backend", "Full attention over pages"},
    {"vision_attention", "--mm-encoder-attn-backend", "Attention of the vision tower"},
    {"causal_conv1d", "--causal-conv1d-backend", "Short convolutions"},
    {"gemm", "--gemm-backend", "Linear layers"},
    {"moe", "--moe-backend", "Routed experts"},
};

}  // namespace

void AddEngineFlags(CLI::App& app, EngineFlags& flags) {
  EngineOptions& e = flags.engine;
  app.add_option("model,--model", e.model, "Folder of a Hugging Face checkpoint")->type_name("MODEL")->required();
  app.add_option("--device", e.device, "auto, cpu, cuda or cuda:N")->type_name("NAME")->capture_default_str();
  app.add_option("--dtype", e.dtype, "Activations and caches: auto (the checkpoint's), float32, bfloat16, float16")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--mamba-ssm-cache-dtype", e.mamba_ssm_cache_dtype,
                 "Recurrent state: auto, float32, bfloat16 or float16")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--threads", e.threads, "CPU threads; 0: all that the process may use")->type_name("N");
  app.add_option("--max-model-len", e.max_model_len, "Longest prompt and answer together; 0: automatic")
      ->type_name("N");
  app.add_option("--max-num-batched-tokens", e.max_num_batched_tokens, "Tokens of one step")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--block-size", e.block_size, "Tokens of one page of keys and values")
      ->type_name("N")
      ->capture_default_str();
  for (const BackendFlag& b : kBackendFlags) {
    std::string& name = flags.backends[b.op];
    name = "auto";
    app.add_option(b.option, name, b.what)
        ->type_name("NAME")
        ->group("Backends (auto, or a name of `fluvial backends`)");
  }
}

Result<EngineOptions> ToEngineOptions(const EngineFlags& flags) {
  EngineOptions options = flags.engine;
  for (const BackendFlag& flag : kBackendFlags) {
    const std::string& name = flags.backends.at(flag.op);
    if (name.empty() || name == "auto") continue;
    FLUVIAL_ASSIGN_OR_RETURN(const OpEntry entry, DescribeOp(flag.op, "", {}));
    std::string names = "auto";
    bool known = false;
    for (const BackendEntry& b : entry.backends) {
      names += ", " + b.name;
      known = known || b.name == name;
    }
    if (!known) {
      return Status::InvalidArgument(std::string(flag.option) + ": there is no backend '" + name +
                                     "'; backends: " + names);
    }
    options.backends[flag.op] = name;
  }
  return options;
}

void WarnOfUnusedBackends(const EngineOptions& options, const Engine& engine) {
  const std::vector<BackendUse> used = engine.backends();
  for (const auto& [op, name] : options.backends) {
    const bool found = std::any_of(used.begin(), used.end(), [&](const BackendUse& u) { return u.op == op; });
    if (!found) LogWarning("this model has no " + op + ": its backend '" + name + "' is not used");
  }
}

}  // namespace fluvial::tools
