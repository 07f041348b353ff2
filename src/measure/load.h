// SPDX-License-Identifier: Apache-2.0
// Requests against an OpenAI server, streaming: one, or many with an arrival process. The clock is the client's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "fluvial/status.h"
#include "measure/dataset.h"

namespace fluvial::measure {

struct Target {
  std::string base_url;  ///< http://127.0.0.1:8000
  std::string endpoint = "/v1/completions";
  std::string model;
  std::string api_key;
  bool ignore_eos = false;
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k, seed;
  std::vector<std::string> stop;
  std::string extra_body;  ///< JSON object merged into each request; empty: nothing
  std::chrono::milliseconds timeout{600'000};

  bool chat() const { return endpoint.find("chat") != std::string::npos; }
};

/// Times in seconds. Definitions: docs/optimization.md.
struct RequestRecord {
  bool ok = false;
  std::string error;        ///< what went wrong, in one sentence
  std::string error_kind;   ///< "timeout", "connection", "http 503", "stream"
  double start = 0;         ///< since the load's start
  double queue = 0;         ///< sent this much after its arrival, because of max_concurrency
  double ttft = 0;          ///< sent to first piece of text
  double latency = 0;       ///< sent to end of stream
  std::vector<double> itl;  ///< between pieces of text
  int64_t prompt_tokens = 0, output_tokens = 0;
  std::string text, finish_reason;

  /// Seconds per token after the first; nothing for answers of one token.
  std::optional<double> Tpot() const {
    if (!ok || output_tokens < 2) return std::nullopt;
    return (latency - ttft) / static_cast<double>(output_tokens - 1);
  }
};

/// Body of the request, as sent. kInvalidArgument when extra_body is not a JSON object.
Result<std::string> RequestBody(const Target& target, const BenchPrompt& prompt);

/// Sends and waits. Never fails as a call: what goes wrong is in the record.
RequestRecord SendRequest(const Target& target, const BenchPrompt& prompt,
                          std::chrono::steady_clock::time_point origin);

struct LoadOptions {
  double request_rate = std::numeric_limits<double>::infinity();  ///< per second
  double burstiness = 1;  ///< shape of the gamma distribution of gaps; 1: Poisson, above: more even
  std::string ramp_up;    ///< "", "linear" or "exponential", from ramp_start to ramp_end per second
  double ramp_start = 1, ramp_end = 1;
  int64_t max_concurrency = 0;  ///< 0: no limit
  uint64_t seed = 0;
};

/// Arrival times in seconds, increasing. Without a ramp they are stretched so that the last comes at count / rate, as
/// vLLM does. kInvalidArgument for a rate or burstiness that is not above 0.
Result<std::vector<double>> Arrivals(const LoadOptions& options, int64_t count);

struct LoadResult {
  std::vector<RequestRecord> records;  ///< in the order of the prompts
  double duration = 0;                 ///< first arrival's clock to last answer's end
};

/// Called after each answer, from several threads, one at a time.
using Progress = std::function<void(int64_t done, int64_t failed, int64_t total)>;

Result<LoadResult> RunLoad(const Target& target, const std::vector<BenchPrompt>& prompts, const LoadOptions& options,
                           const Progress& progress = {});

/// First id of /v1/models.
Result<std::string> FirstModel(const Target& target);

/// Asks /health until it answers 200; kFailed after `limit`.
Status WaitReady(const Target& target, std::chrono::milliseconds limit);

}  // namespace fluvial::measure
