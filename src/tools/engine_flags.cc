// SPDX-License-Identifier: Apache-2.0
#include "tools/engine_flags.h"

#include <CLI/CLI.hpp>

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
    {"mla_attention", "--mla-attention-backend", "Latent attention over pages"},
    {"pool_index", "--pool-index-backend", "Indexer of sparse attention"},
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
  app.add_option("--mamba-cache-dtype", e.mamba_cache_dtype,
                 "Convolution states: auto (that of the activations) or float32")
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
  app.add_option("--memory-limit", e.memory_limit,
                 "Most memory for weights, caches and workspace (\"12GB\"); 0: all that there is. What does not fit is "
                 "refused at the start")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  for (const BackendFlag& b : kBackendFlags) {
    std::string& name = flags.backends[b.op];
    name = "auto";
    app.add_option(b.option, name, b.what)
        ->type_name("NAME")
        ->group("Backends (auto, or a name of `fluvial backends`)");
  }
  AddFlashInferFlags(app, flags.providers);
  AddProviderFlag(app, flags.providers);
}

void AddBatchingFlags(CLI::App& app, EngineFlags& flags) {
  EngineOptions& e = flags.engine;
  app.add_option("--max-num-seqs", e.max_num_seqs, "Requests that run at once")->type_name("N")->capture_default_str();
  app.add_option("--kv-cache-tokens", e.kv_cache_tokens,
                 "Tokens that the pages of keys and values hold; 0: --max-num-seqs times --max-model-len, or what the "
                 "memory limit leaves")
      ->type_name("N");
  app.add_option("--long-prefill-token-threshold", e.long_prefill_token_threshold,
                 "Most tokens of one prompt in one step; 0: as many as fit")
      ->type_name("N");
  const char* group = "Prefix cache";
  app.add_flag("--enable-prefix-caching", e.enable_prefix_caching,
               "Keep the states of prompts for requests that begin alike")
      ->group(group);
  app.add_option("--prefix-cache-size", e.prefix_cache_bytes,
                 "Memory for state snapshots (\"2GB\"); 0: 4 snapshots for each of --max-num-seqs, at least 16")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->group(group);
  app.add_option(
         "--prefix-cache-interval", e.prefix_cache_interval,
         "Most prompt tokens between two snapshots, besides the places chosen anyway; a multiple of 64, 0: no limit")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--prefix-cache-points", e.prefix_cache_points,
         "grid: a hit computes bit for bit what a miss does; all: snapshots also where prompts and answers end, "
         "for longer hits that are equal up to rounding")
      ->type_name("WHICH")
      ->capture_default_str()
      ->group(group);
}

Result<EngineOptions> ToEngineOptions(const EngineFlags& flags) {
  EngineOptions options = flags.engine;
  FLUVIAL_RETURN_IF_ERROR(LoadProviders(flags.providers, flags.backends));
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
      const std::string missing = MissingProvider(name);
      return Status::InvalidArgument(std::string(flag.option) + ": there is no backend '" + name +
                                     "'; backends: " + names + (missing.empty() ? "" : "; " + missing));
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
