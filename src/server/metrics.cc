// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

namespace fluvial::server {
namespace {

std::string Number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g", value);
  return text;
}

/// Label values: backslash, quote and newline are escaped.
std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

/// 1, 2, 5, 10, 20, 50, ... up to `last`.
std::vector<double> Steps(double last) {
  std::vector<double> out;
  for (double base = 1; base <= last; base *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (base * factor <= last) out.push_back(base * factor);
    }
  }
  return out;
}

// The bounds that vLLM's dashboards were drawn for.
const std::vector<double> kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                         1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kBetweenTokens = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                            0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
const std::vector<double> kRequest = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                                      15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const std::vector<double> kHttp = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};

class Page {
 public:
  explicit Page(std::string labels) : labels_(std::move(labels)) {}

  void Type(const std::string& name, const char* type, const char* help) {
    text_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void Value(const std::string& name, const std::string& more_labels, double value) {
    std::string labels = labels_;
    if (!more_labels.empty()) labels += (labels.empty() ? "" : ",") + more_labels;
    text_ += name + "{" + labels + "} " + Number(value) + "\n";
  }
  void Gauge(const std::string& name, const char* help, double value) {
    Type(name, "gauge", help);
    Value(name, "", value);
  }
  void Counter(const std::string& name, const char* help, double value) {
    Type(name, "counter", help);
    Value(name, "", value);
  }
  void Distribution(const std::string& name, const char* help, const Histogram& histogram) {
    Type(name, "histogram", help);
    histogram.Write(name, labels_, &text_);
  }
  void Plain(const std::string& name, const char* type, const char* help, double value) {
    Type(name, type, help);
    text_ += name + " " + Number(value) + "\n";
  }
  std::string& text() { return text_; }

 private:
  std::string labels_;
  std::string text_;
};

std::string Join(const std::vector<std::pair<std::string, std::string>>& labels) {
  std::string out;
  for (const auto& [name, value] : labels) out += (out.empty() ? "" : ",") + name + "=\"" + Escape(value) + "\"";
  return out;
}

/// Resident bytes of this process; 0 where /proc is missing.
double ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  double size = 0, resident = 0;
  in >> size >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFiles() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int n = 0;
  while (readdir(folder) != nullptr) ++n;
  closedir(folder);
  return n - 3;  // ".", ".." and the descriptor of this very listing
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::Observe(double value, uint64_t times) {
  const size_t i = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  const std::lock_guard lock(mutex_);
  counts_[i] += times;
  sum_ += value * static_cast<double>(times);
  count_ += times;
}

void Histogram::Write(const std::string& name, const std::string& labels, std::string* out) const {
  const std::lock_guard lock(mutex_);
  const std::string prefix = labels.empty() ? "" : labels + ",";
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const double bound = i < bounds_.size() ? bounds_[i] : HUGE_VAL;
    *out += name + "_bucket{" + prefix + "le=\"" + Number(bound) + "\"} " + std::to_string(below) + "\n";
  }
  *out += name + "_sum{" + labels + "} " + Number(sum_) + "\n";
  *out += name + "_count{" + labels + "} " + std::to_string(count_) + "\n";
}

Metrics::Metrics(const std::string& model_name, const std::vector<std::pair<std::string, std::string>>& cache_config)
    : time_to_first_token(kFirstToken),
      inter_token_latency(kBetweenTokens),
      e2e_latency(kRequest),
      queue_time(kRequest),
      prefill_time(kRequest),
      decode_time(kRequest),
      inference_time(kRequest),
      prompt_tokens(Steps(1e6)),
      generation_tokens(Steps(1e6)),
      max_tokens(Steps(1e6)),
      params_n({1, 2, 5, 10, 20}),
      params_max_tokens(Steps(1e6)),
      iteration_tokens(Steps(16384)),
      http_duration(kHttp),
      labels_("model_name=\"" + Escape(model_name) + "\",engine=\"0\""),
      cache_labels_(Join(cache_config)) {}

void Metrics::CountHttp(std::string_view handler, std::string_view method, int status, double seconds) {
  http_duration.Observe(seconds);
  const std::lock_guard lock(mutex_);
  ++http_[{std::string(handler), std::string(method), status}];
}

std::string Metrics::Text(const Now& now) const {
  Page page(labels_);
  const EngineStats& e = now.engine;
  page.Gauge("vllm:num_requests_running", "Requests that hold a state slot.", e.requests_running);
  page.Gauge("vllm:num_requests_waiting", "Requests that wait for one.", e.requests_waiting);
  page.Gauge("vllm:kv_cache_usage_perc", "Pages of keys and values used by running requests, 0..1.", e.KvUsage());
  // The name before vLLM renamed it: old dashboards go on.
  page.Gauge("vllm:gpu_cache_usage_perc", "The same under its old name.", e.KvUsage());
  page.Type("vllm:cache_config_info", "gauge", "How the caches are set up.");
  page.Value("vllm:cache_config_info", cache_labels_, 1);
  page.Counter("vllm:prompt_tokens_total", "Prompt tokens computed.", static_cast<double>(e.prompt_tokens));
  page.Counter("vllm:generation_tokens_total", "Tokens drawn.", static_cast<double>(e.generated_tokens));
  page.Counter("vllm:num_preemptions_total", "Requests that gave their memory to older ones.",
               static_cast<double>(e.preemptions));
  page.Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               static_cast<double>(e.prefix_cache_queries));
  page.Counter("vllm:prefix_cache_hits_total", "Of those, tokens found.", static_cast<double>(e.prefix_cache_hits));
  page.Counter("vllm:corrupted_requests_total", "Requests ended because their logits were not finite.",
               static_cast<double>(e.nan_aborts));

  page.Type("vllm:request_success_total", "counter", "Choices that ended, by reason.");
  const char* reasons[] = {"stop", "length", "abort", "error"};
  for (size_t i = 0; i < ended.size(); ++i) {
    page.Value("vllm:request_success_total", std::string("finished_reason=\"") + reasons[i] + "\"",
               static_cast<double>(ended[i].load()));
  }
  page.Distribution("vllm:time_to_first_token_seconds", "From the request's arrival to its first token.",
                    time_to_first_token);
  page.Distribution("vllm:inter_token_latency_seconds", "Between two tokens of one choice.", inter_token_latency);
  page.Distribution("vllm:time_per_output_token_seconds", "The same under its old name.", inter_token_latency);
  page.Distribution("vllm:e2e_request_latency_seconds", "From arrival to the last token.", e2e_latency);
  page.Distribution("vllm:request_queue_time_seconds", "Waiting for a slot.", queue_time);
  page.Distribution("vllm:request_prefill_time_seconds", "From slot to first token.", prefill_time);
  page.Distribution("vllm:request_decode_time_seconds", "From first to last token.", decode_time);
  page.Distribution("vllm:request_inference_time_seconds", "From slot to last token.", inference_time);
  page.Distribution("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_tokens);
  page.Distribution("vllm:request_generation_tokens", "Tokens of a choice.", generation_tokens);
  page.Distribution("vllm:request_max_num_generation_tokens", "Most tokens that a choice may have.", max_tokens);
  page.Distribution("vllm:request_params_n", "Choices asked for.", params_n);
  page.Distribution("vllm:request_params_max_tokens", "max_tokens as asked for.", params_max_tokens);

  page.Distribution("vllm:iteration_tokens_total", "Tokens of one step.", iteration_tokens);

  page.Gauge("fluvial:state_slots_used", "State slots of running requests.", e.state_slots_used);
  page.Gauge("fluvial:state_slots_total", "State slots for running requests.", e.state_slots_total);
  page.Gauge("fluvial:snapshot_slots_used", "State slots of the prefix cache.", e.snapshot_slots_used);
  page.Gauge("fluvial:kv_pages_used", "Pages of running requests.", static_cast<double>(e.kv_pages_used));
  page.Gauge("fluvial:kv_pages_cached", "Pages of the prefix cache alone.", static_cast<double>(e.kv_pages_cached));
  page.Gauge("fluvial:kv_pages_total", "Pages of keys and values.", static_cast<double>(e.kv_pages_total));
  page.Gauge("fluvial:requests_active", "Requests given to the engine that have not ended.",
             static_cast<double>(now.active));
  page.Gauge("fluvial:http_connections", "Open client connections.", now.connections);
  page.Counter("fluvial:client_disconnects_total", "Clients that went before their answer was complete.",
               static_cast<double>(disconnects.load()));
  page.Counter("fluvial:engine_steps_total", "Steps of the engine.", static_cast<double>(e.steps));

  page.Type("http_requests_total", "counter", "Requests by handler, method and status; 499: the client went first.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : http_) {
      const auto& [handler, method, status] = key;
      page.text() += "http_requests_total{handler=\"" + Escape(handler) + "\",method=\"" + Escape(method) +
                     "\",status=\"" + std::to_string(status) + "\"} " + std::to_string(count) + "\n";
    }
  }
  page.Type("http_request_duration_seconds", "histogram", "From head to last byte of the answer.");
  http_duration.Write("http_request_duration_seconds", "", &page.text());
  page.Plain("process_resident_memory_bytes", "gauge", "Resident memory, mapped weights included.", ResidentBytes());
  page.Plain("process_open_fds", "gauge", "Open file descriptors.", OpenFiles());
  return std::move(page.text());
}

}  // namespace fluvial::server
