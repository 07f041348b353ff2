// SPDX-License-Identifier: Apache-2.0
#include "tools/run_output.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace fluvial::tools {
namespace {

using nlohmann::ordered_json;

std::string Fixed(double x, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.*f", digits, x);
  return buffer;
}

ordered_json Stats(const RunReport& r) {
  const EngineStats& s = r.stats;
  ordered_json j;
  j["prompt_tokens"] = s.prompt_tokens;
  j["generated_tokens"] = s.generated_tokens;
  j["load_seconds"] = s.load_seconds;
  j["first_token_seconds"] = r.completion.first_token_seconds;
  j["total_seconds"] = r.completion.total_seconds;
  j["prefill_tokens_per_second"] = s.PrefillTokensPerSecond();
  j["decode_tokens_per_second"] = s.DecodeTokensPerSecond();
  j["weight_bytes"] = s.weight_bytes;
  j["kv_bytes"] = s.kv_bytes;
  j["state_bytes"] = s.state_bytes;
  j["workspace_bytes"] = s.workspace_bytes;
  j["peak_memory_bytes"] = s.peak_memory_bytes;
  j["device"] = r.info.device;
  j["device_name"] = r.info.device_name;
  j["dtype"] = r.info.dtype;
  return j;
}

}  // namespace

std::string RunJson(const RunReport& r, bool logprobs, bool prompt_logits) {
  ordered_json root;
  root["prompt_token_ids"] = r.prompt_ids;
  root["token_ids"] = ordered_json::array();
  for (const Token& t : r.completion.tokens) root["token_ids"].push_back(t.id);
  root["text"] = r.has_text ? ordered_json(r.text) : ordered_json(nullptr);
  root["finish_reason"] = Name(r.completion.finish_reason);
  root["logprobs"] = nullptr;
  if (logprobs) {
    root["logprobs"] = ordered_json::array();
    for (const Token& t : r.completion.tokens) {
      ordered_json top = ordered_json::array();
      for (const auto& [id, value] : t.top) top.push_back({id, value});
      root["logprobs"].push_back({{"token_id", t.id}, {"logprob", t.logprob}, {"top", std::move(top)}});
    }
  }
  if (prompt_logits) root["prompt_logits"] = r.completion.prompt_logits;
  root["backends"] = ordered_json::object();
  for (const BackendUse& b : r.backends) root["backends"][b.op] = b.name;
  root["stats"] = Stats(r);
  return root.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string RunStatistics(const RunReport& r) {
  const EngineStats& s = r.stats;
  constexpr double kMiB = 1024.0 * 1024.0;
  std::string out;
  out += "prompt     " + std::to_string(s.prompt_tokens) + " tokens, " + Fixed(s.PrefillTokensPerSecond(), 1) +
         " tokens/s, first token after " + Fixed(r.completion.first_token_seconds * 1e3, 1) + " ms\n";
  out += "answer     " + std::to_string(s.generated_tokens) + " tokens, " + Fixed(s.DecodeTokensPerSecond(), 1) +
         " tokens/s, ended by " + std::string(Name(r.completion.finish_reason)) + "\n";
  out += "loading    " + Fixed(s.load_seconds, 2) + " s, peak memory " +
         Fixed(static_cast<double>(s.peak_memory_bytes) / kMiB, 0) + " MiB (weights " +
         Fixed(static_cast<double>(s.weight_bytes) / kMiB, 1) + ", keys and values " +
         Fixed(static_cast<double>(s.kv_bytes) / kMiB, 1) + ", states " +
         Fixed(static_cast<double>(s.state_bytes) / kMiB, 1) + ")\n";
  out += "device     " + r.info.device + " (" + r.info.device_name + "), " + r.info.dtype + "\n";
  out += "backends  ";
  for (const BackendUse& b : r.backends) out += " " + b.op + "=" + b.name;
  return out + "\n";
}

}  // namespace fluvial::tools
