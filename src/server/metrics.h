// SPDX-License-Identifier: Apache-2.0
// What the server counts, in the text format of Prometheus, under the `vllm:` names that dashboards know. Own code: the
// packaged client library brings a web server of its own along.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "fluvial/engine.h"

namespace fluvial::server {

class Histogram {
 public:
  /// `bounds`: upper ends, rising.
  explicit Histogram(std::vector<double> bounds);
  void Observe(double value, uint64_t times = 1);

  /// Appends `name_bucket`, `name_sum`, `name_count` lines; `labels` without braces, may be empty.
  void Write(const std::string& name, const std::string& labels, std::string* out) const;

 private:
  const std::vector<double> bounds_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> counts_;  // one more than bounds: +Inf
  double sum_ = 0;
  uint64_t count_ = 0;
};

/// How a choice ended, as a label of request_success.
enum class Ended : uint8_t { kStop, kLength, kAbort, kError };

class Metrics {
 public:
  /// `cache_config`: labels of vllm:cache_config_info.
  explicit Metrics(const std::string& model_name,
                   const std::vector<std::pair<std::string, std::string>>& cache_config = {});

  Histogram time_to_first_token, inter_token_latency, e2e_latency, queue_time, prefill_time, decode_time,
      inference_time;
  Histogram prompt_tokens, generation_tokens, max_tokens, params_n, params_max_tokens, iteration_tokens;
  Histogram http_duration;
  std::array<std::atomic<uint64_t>, 4> ended{};  ///< by Ended
  std::atomic<uint64_t> disconnects{0};          ///< clients that went before their answer was complete

  /// `handler`: one of a fixed list, or "other": a client must not be able to add time series.
  void CountHttp(std::string_view handler, std::string_view method, int status, double seconds);

  struct Now {
    EngineStats engine;
    int64_t active = 0;  ///< requests given to the engine that have not ended
    int32_t connections = 0;
  };
  /// The whole page.
  std::string Text(const Now& now) const;

 private:
  const std::string labels_;        ///< model_name="...",engine="0"
  const std::string cache_labels_;  ///< of vllm:cache_config_info
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, uint64_t> http_;
};

}  // namespace fluvial::server
