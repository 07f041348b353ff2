// SPDX-License-Identifier: Apache-2.0
// fluvial explain: what auto would choose for a model on this machine or an assumed one, and why not the others.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text_form.h"
#include "models/footprint.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/common/backend.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/delta_rule/flashinfer_names.h"
#include "ops/delta_rule/provider.h"
#include "ops/gemm/gemm.h"
#include "ops/moe/moe.h"
#include "ops/paged_attention/mla_attention.h"
#include "ops/paged_attention/paged_attention.h"
#include "ops/pool_index/pool_index.h"
#include "ops/vision_attention/vision_attention.h"
#include "tools/command.h"
#include "tools/footprint_text.h"
#include "tools/provider_flags.h"
#include "weights/model_config.h"

namespace fluvial::tools {
namespace {

using ops::Candidate;

struct Options {
  std::string model;
  std::string problem;
  std::string assume_device;
  std::string state_dtype = "auto";
  ProviderFlags providers;
  bool flashinfer = false;
  bool graph_capture = false;
  std::string workspace = "none";
  bool json = false;
  std::string gdn_prefill = "auto", gdn_decode = "auto", kda_prefill = "auto", kda_decode = "auto", encoder = "auto";
};

struct Answer {
  std::string op;
  std::string when;     ///< "a prompt of 2048 tokens"
  std::string problem;  ///< the line
  std::vector<Candidate> candidates;
  std::string error;   ///< why nothing can be chosen
  bool named = false;  ///< the user named a backend
};

template <class Problem, class Args>
void Select(Answer* answer, std::span<const ops::Backend<Problem, Args>> list, const Problem& problem,
            const DeviceInfo& device, const std::string& preference) {
  const auto selection = ops::Select<Problem, Args>(list, answer->op, problem, device, preference);
  if (selection.ok()) {
    answer->candidates = selection->candidates;
    return;
  }
  answer->error = selection.status().message();
  for (const auto& b : list) answer->candidates.push_back({b.name, b.check(problem, device), 0, false});
}

Result<Answer> Ask(const std::string& when, const std::string& line, const DeviceInfo& device, const Options& o) {
  Answer a{line.substr(0, line.find(' ')), when, line, {}, {}, false};
  if (a.op == "gemm") {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::gemm::ParseProblemLine(line));
    Select(&a, ops::gemm::Backends(), p.problem, device, "auto");
  } else if (a.op == "causal_conv1d") {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::causal_conv1d::ParseProblemLine(line));
    Select(&a, ops::causal_conv1d::Backends(), p.problem, device, "auto");
  } else if (a.op == "paged_attention") {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::paged_attention::ParseProblemLine(line));
    Select(&a, ops::paged_attention::Backends(), p.problem, device, "auto");
  } else if (a.op == "vision_attention") {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::vision_attention::ParseProblemLine(line));
    a.named = o.encoder != "auto";
    Select(&a, ops::vision_attention::Backends(), p.problem, device, o.encoder);
  } else if (a.op == ops::mla_attention::kOpName) {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::mla_attention::ParseProblemLine(line));
    Select(&a, ops::mla_attention::Backends(), p.problem, device, "auto");
  } else if (a.op == ops::pool_index::kOpName) {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::pool_index::ParseProblemLine(line));
    Select(&a, ops::pool_index::Backends(), p.problem, device, "auto");
  } else if (a.op == ops::moe::kOpName) {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::moe::ParseProblemLine(line));
    Select(&a, ops::moe::Backends(), p.problem, device, "auto");
  } else {
    FLUVIAL_ASSIGN_OR_RETURN(const auto p, ops::delta_rule::ParseProblemLine(line));
    const std::string& preference = a.op == "gdn_prefill"   ? o.gdn_prefill
                                    : a.op == "gdn_decode"  ? o.gdn_decode
                                    : a.op == "kda_prefill" ? o.kda_prefill
                                                            : o.kda_decode;
    a.named = preference != "auto";
    const auto list = ops::delta_rule::Backends(p.problem.op);
    Select(&a, list, p.problem, device, preference);
    const bool known = std::any_of(list.begin(), list.end(), [&](const auto& b) { return b.name == preference; });
    if (a.named && !known) return Status::InvalidArgument(a.error);
  }
  return a;
}

/// The operators of a model at the sizes that matter: one prompt, many prompts, one and many decodes.
std::vector<std::pair<std::string, std::string>> Problems(const weights::ModelConfig& c, DType io, DType state) {
  const auto n = [](int64_t x) { return std::to_string(x); };
  const std::string type(Name(io));
  std::vector<std::pair<std::string, std::string>> out;
  const auto& l = c.linear;
  if (c.CountLayers(weights::LayerType::kLinearAttention) > 0) {
    const bool kda = c.latent.rank > 0;
    const std::string rule = kda ? "kda" : "gdn";
    const std::string gate = l.gate_lower_bound ? " gate=bounded:" + n(static_cast<int64_t>(*l.gate_lower_bound)) : "";
    const std::string delta = gate + " hk=" + n(l.key_heads) + " hv=" + n(l.value_heads) + " k=" + n(l.key_dim) +
                              " v=" + n(l.value_dim) + " io=" + type + " state=" + std::string(Name(state)) + " lens=";
    out.emplace_back("a prompt of 2048 tokens", rule + "_prefill" + delta + "2048");
    out.emplace_back("eight prompts of 1024 tokens", rule + "_prefill" + delta + "8x1024");
    out.emplace_back("one decoding sequence", rule + "_decode" + delta + "1");
    out.emplace_back("64 decoding sequences", rule + "_decode" + delta + "64x1");
    out.emplace_back("a prompt of 2048 tokens",
                     "causal_conv1d c=" + n(l.conv_channels()) + " w=" + n(l.conv_kernel) + " lens=2048");
  }
  if (c.latent.rank > 0) {
    const auto& a = c.latent;
    const std::string mla = "mla_attention h=" + n(c.heads) + " nope=" + n(a.nope) + " rope=" + n(a.rope) +
                            " v=" + n(a.v) + " rank=" + n(a.rank) + " io=" + type;
    out.emplace_back("a prompt of 2048 tokens", mla + " lens=2048");
    out.emplace_back("one decoding sequence after 8191 tokens", mla + " lens=1 ctx=8191");
    if (const auto& x = c.indexer; x.topk > 0) {
      const int64_t most = x.topk + x.pool - 1;
      out.emplace_back("one decoding sequence after 65535 tokens", mla + " selected=" + n(most) + " lens=1 ctx=65535");
      out.emplace_back("one decoding sequence after 65535 tokens",
                       "pool_index h=" + n(x.heads) + " dim=" + n(x.dim) + " pool=" + n(x.pool) +
                           " keep=" + n(x.topk / x.pool) + " io=" + type + " lens=1 ctx=65535");
    }
  } else if (c.CountLayers(weights::LayerType::kFullAttention) > 0) {
    out.emplace_back("a prompt of 2048 tokens", "paged_attention hq=" + n(c.heads) + " hkv=" + n(c.kv_heads) +
                                                    " dqk=" + n(c.head_dim) + " dv=" + n(c.head_dim) + " lens=2048");
  }
  if (c.vision.has_value()) {
    const weights::VisionConfig& v = *c.vision;
    const std::string attention =
        "vision_attention heads=" + n(v.heads) + " d=" + n(v.hidden / v.heads) + " io=" + type + " lens=";
    // About what a picture of 1000 x 1000 pixels has.
    out.emplace_back("an image of 4096 patches", attention + "4096");
    if (v.windowed) {
      const int64_t side = v.window / v.patch;
      out.emplace_back("its windows", attention + n(4096 / (side * side)) + "x" + n(side * side));
    }
  }
  if (c.moe.experts > 0) {
    const std::string moe = " e=" + n(c.moe.experts) + " top=" + n(c.moe.per_token) + " h=" + n(c.hidden) +
                            " i=" + n(c.moe.intermediate) + " io=" + type + " w=" + type +
                            (c.swiglu_limit > 0 ? " limit=" + FormatFloat(static_cast<float>(c.swiglu_limit)) : "");
    out.emplace_back("one decoding sequence", "moe m=1" + moe);
    out.emplace_back("64 decoding sequences", "moe m=64" + moe);
    out.emplace_back("a prompt of 2048 tokens", "moe m=2048" + moe);
  }
  const int64_t inter = c.moe.experts > 0 ? c.moe.shared_intermediate : c.intermediate;
  const std::string gemm =
      " n=" + n(inter > 0 ? inter : c.hidden) + " k=" + n(c.hidden) + " x=" + type + " w=" + type + " y=" + type;
  out.emplace_back("one decoding sequence", "gemm m=1" + gemm);
  out.emplace_back("a prompt of 2048 tokens", "gemm m=2048" + gemm);
  return out;
}

std::string Text(const models::Footprint& f, const std::vector<Answer>& answers, const DeviceInfo& device) {
  std::string out = "device: " + device.Arch() + " (" + device.name + ")\n";
  out += "parameters: " + ParameterText(f) + "\n";
  out += "caches: " + ByteText(f.cache.SlotBytes()) + " of state per sequence, " + ByteText(f.cache.TokenBytes()) +
         " of keys and values per token\n";
  for (const Answer& a : answers) {
    out += "\n" + a.op + ", " + a.when + "\n  " + a.problem + "\n";
    for (const Candidate& c : a.candidates) {
      char cost[48];
      std::snprintf(cost, sizeof(cost), "%.1f us expected", c.cost_us);
      out += std::string("  ") + (c.chosen ? "* " : "  ") + std::string(c.name) + ": " +
             (c.check.ok() ? std::string(a.error.empty() ? cost : "could run") : "refused: " + c.check.reason()) + "\n";
    }
    if (!a.error.empty()) out += "  " + a.error + "\n";
  }
  return out;
}

std::string Json(const models::Footprint& f, const std::vector<Answer>& answers, const DeviceInfo& device) {
  nlohmann::ordered_json root;
  root["parameters"] = {{"text", f.parameters},
                        {"active", f.active_parameters},
                        {"mtp", f.mtp_parameters},
                        {"vision", f.vision_parameters}};
  root["memory"] = {{"state_bytes_per_sequence", f.cache.SlotBytes()}, {"kv_bytes_per_token", f.cache.TokenBytes()}};
  root["device"] = {{"arch", device.Arch()}, {"name", device.name}, {"assumed", device.assumed}};
  root["operators"] = nlohmann::ordered_json::array();
  for (const Answer& a : answers) {
    nlohmann::ordered_json j;
    j["op"] = a.op;
    j["when"] = a.when;
    j["problem"] = a.problem;
    j["chosen"] = nullptr;
    j["error"] = a.error;
    j["backends"] = nlohmann::ordered_json::array();
    for (const Candidate& c : a.candidates) {
      if (c.chosen) j["chosen"] = c.name;
      nlohmann::ordered_json b{{"name", c.name}, {"usable", c.check.ok()}, {"reason", c.check.reason()}};
      b["expected_us"] = c.check.ok() && a.error.empty() ? nlohmann::ordered_json(c.cost_us) : nullptr;
      j["backends"].push_back(std::move(b));
    }
    root["operators"].push_back(std::move(j));
  }
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

/// The names inside FlashInfer, asked by their contracts; no provider needs to be loaded. `named` is the one that
/// --flashinfer-...-backend gives, when FlashInfer was selected and cannot be asked itself.
Result<Answer> AskFlashInfer(const Answer& asked, const DeviceInfo& device, const Options& o, bool selected) {
  namespace delta = ops::delta_rule;
  FLUVIAL_ASSIGN_OR_RETURN(const auto parsed, delta::ParseProblemLine(asked.problem));
  delta::ProviderSituation situation;
  situation.graph_capture = o.graph_capture;
  situation.explicit_workspace = o.workspace != "none";
  situation.warmed_workspace = o.workspace == "warmed";
  const std::string& named = parsed.problem.kda() ? o.providers.flashinfer_kda : o.providers.flashinfer_gdn;
  Answer names{asked.op + " through FlashInfer", asked.when, asked.problem, {}, {}, false};
  std::string verdict;
  for (const auto& n : delta::FlashInferNames(parsed.problem.op)) {
    names.candidates.push_back({n.name, n.check(parsed.problem, device, situation), 0, false});
    if (!selected || n.name != named) continue;
    const ops::Check& check = names.candidates.back().check;
    names.named = !check.ok();
    verdict = check.ok() ? "flashinfer (" + named + ") takes this; "
                         : asked.op + ": flashinfer (" + named + ") cannot run this: " + check.reason() + "; ";
  }
  names.error = verdict + (delta::ProviderLoaded("flashinfer")
                               ? "these are the contracts of the names; the loaded provider decides"
                               : "these are contracts only: the FlashInfer provider is not loaded");
  return names;
}

Result<std::vector<std::pair<std::string, std::string>>> Asked(const Options& o, models::Footprint* footprint) {
  if (!o.problem.empty()) return std::vector<std::pair<std::string, std::string>>{{"as asked", o.problem}};
  FLUVIAL_ASSIGN_OR_RETURN(const weights::ModelConfig config, weights::ReadModelConfig(o.model));
  DType state = config.linear.state_dtype;
  if (o.state_dtype != "auto") {
    FLUVIAL_ASSIGN_OR_RETURN(state, ParseDType(o.state_dtype));
  }
  models::LoadOptions options;
  options.recurrent_dtype = state;
  FLUVIAL_ASSIGN_OR_RETURN(*footprint, models::FootprintOf(config, options));
  return Problems(config, config.dtype.value_or(DType::kBF16), state);
}

Result<std::vector<Answer>> RunExplain(const Options& o, DeviceInfo* device, models::Footprint* footprint) {
  if (o.model.empty() == o.problem.empty()) {
    return Status::InvalidArgument("explain: give a model, or one --problem");
  }
  if (o.workspace != "none" && o.workspace != "cold" && o.workspace != "warmed") {
    return Status::InvalidArgument("--flashinfer-workspace is " + o.workspace + ": use none, cold or warmed");
  }
  FLUVIAL_RETURN_IF_ERROR(LoadProviders(o.providers, {{"gdn_prefill", o.gdn_prefill}, {"kda_prefill", o.kda_prefill}}));
  *device = CpuDeviceInfo(AvailableCpus());
  if (!o.assume_device.empty()) {
    FLUVIAL_ASSIGN_OR_RETURN(*device, AssumedDevice(o.assume_device));
  } else if (CudaDeviceCount() > 0) {
    FLUVIAL_ASSIGN_OR_RETURN(*device, CudaDeviceInfo(0));
  }
  FLUVIAL_ASSIGN_OR_RETURN(const auto asked, Asked(o, footprint));
  std::vector<Answer> answers;
  for (const auto& [when, line] : asked) {
    const std::string op = line.substr(0, line.find(' '));
    const bool prefill = op == "gdn_prefill" || op == "kda_prefill";
    const bool selected = prefill && (op == "gdn_prefill" ? o.gdn_prefill : o.kda_prefill) == "flashinfer";
    const bool loaded = ops::delta_rule::ProviderLoaded("flashinfer");
    Options asking = o;
    // What FlashInfer would say is known from its contracts; the others are asked as usual.
    if (selected && !loaded) asking.gdn_prefill = asking.kda_prefill = "auto";
    FLUVIAL_ASSIGN_OR_RETURN(Answer a, Ask(when, line, *device, asking));
    if (selected && !loaded) {
      for (Candidate& c : a.candidates) c.chosen = false;
    }
    answers.push_back(a);
    if (!prefill || (!o.flashinfer && !selected)) continue;
    FLUVIAL_ASSIGN_OR_RETURN(Answer names, AskFlashInfer(a, *device, o, selected));
    answers.push_back(std::move(names));
  }
  return answers;
}

}  // namespace

Command AddExplain(CLI::App& root) {
  CLI::App* app = root.add_subcommand("explain", "What auto would choose for a model, and why not the other backends");
  auto o = std::make_shared<Options>();
  app->add_option("model", o->model, "Directory of a Hugging Face checkpoint (config.json is enough)")
      ->type_name("MODEL");
  app->add_option("--problem", o->problem, "Instead of a model: this problem line")->type_name("LINE");
  app->add_option("--assume-device", o->assume_device, "Ask for sm_90, sm_100, sm_103, sm_120 or cpu, present or not")
      ->type_name("ARCH");
  app->add_option("--mamba-ssm-cache-dtype", o->state_dtype, "auto, bfloat16, float16 or float32")
      ->capture_default_str();
  app->add_option("--gdn-prefill-backend", o->gdn_prefill, "As fluvial run takes it")->capture_default_str();
  app->add_option("--gdn-decode-backend", o->gdn_decode, "As fluvial run takes it")->capture_default_str();
  app->add_option("--kda-prefill-backend", o->kda_prefill, "As fluvial run takes it")->capture_default_str();
  app->add_option("--kda-decode-backend", o->kda_decode, "As fluvial run takes it")->capture_default_str();
  app->add_option("--mm-encoder-attn-backend", o->encoder, "As fluvial run takes it")->capture_default_str();
  app->add_flag("--flashinfer", o->flashinfer,
                "Also say which of FlashInfer's own backend names could take the prefill");
  AddFlashInferFlags(*app, o->providers);
  app->add_flag("--graph-capture", o->graph_capture, "FlashInfer: the prefill is captured into a CUDA graph");
  app->add_option("--flashinfer-workspace", o->workspace, "FlashInfer: the caller's workspace: none, cold or warmed")
      ->capture_default_str();
  AddProviderFlag(*app, o->providers);
  app->add_flag("--json", o->json, "One JSON object (docs/cli.md)");
  app->footer(
      "Examples:\n"
      "  fluvial explain Qwen3.5-0.8B\n"
      "  fluvial explain Qwen3.5-0.8B --assume-device sm_90 --flashinfer\n"
      "  fluvial explain --problem \"kda_prefill hk=96 gate=bounded:-5 norm=none lens=8192\" --assume-device sm_103 "
      "\\\n"
      "      --kda-prefill-backend flashinfer --flashinfer-kda-backend ptx");
  return {app, [o] {
            DeviceInfo device;
            models::Footprint footprint;
            const auto answers = RunExplain(*o, &device, &footprint);
            if (!answers.ok()) return Fail(answers.status());
            Print(o->json ? Json(footprint, *answers, device) : Text(footprint, *answers, device));
            for (const Answer& a : *answers) {
              // A backend named by the user that cannot run is the program's own status for that.
              if (!a.error.empty() && a.named) return Fail(Status::Refused(a.error));
            }
            return Finish();
          }};
}

}  // namespace fluvial::tools
