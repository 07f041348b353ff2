// SPDX-License-Identifier: Apache-2.0
#include "measure/load.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "server/http_client.h"

namespace fluvial::measure {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMostThreads = 4096;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

std::string Trimmed(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

server::HttpCall CallOf(const Target& target, const std::string& path, std::string body) {
  server::HttpCall call;
  call.url = Trimmed(target.base_url) + path;
  call.body = std::move(body);
  call.timeout = target.timeout;
  if (!target.api_key.empty()) call.headers.emplace_back("Authorization", "Bearer " + target.api_key);
  return call;
}

/// Takes the stream of server-sent events apart and keeps the time of each piece of text.
class Reader {
 public:
  Reader(RequestRecord* record, Clock::time_point sent) : record_(record), sent_(sent) {}

  void Take(std::string_view bytes) {
    const Clock::time_point now = Clock::now();
    buffer_ += bytes;
    size_t at = 0;
    for (size_t end; (end = buffer_.find('\n', at)) != std::string::npos; at = end + 1) {
      std::string_view line(buffer_.data() + at, end - at);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      while (line.starts_with(' ')) line.remove_prefix(1);
      Event(line, now);
    }
    buffer_.erase(0, at);
  }

  bool done() const { return done_; }
  bool any() const { return any_; }
  Clock::time_point end() const { return end_; }

 private:
  void Event(std::string_view data, Clock::time_point now) {
    end_ = now;
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Json j = Json::parse(data, nullptr, false);
    if (!j.is_object()) {
      record_->error = "the stream has an event that is not JSON";
      return;
    }
    if (j.contains("error")) {
      const Json& e = j["error"];
      record_->error = e.is_object() && e.contains("message") && e["message"].is_string()
                           ? e["message"].get<std::string>()
                           : e.dump();
      return;
    }
    if (j.contains("usage") && j["usage"].is_object()) {
      record_->prompt_tokens = j["usage"].value("prompt_tokens", int64_t{0});
      record_->output_tokens = j["usage"].value("completion_tokens", int64_t{0});
    }
    if (!j.contains("choices") || !j["choices"].is_array() || j["choices"].empty()) return;
    const Json& choice = j["choices"][0];
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) {
      record_->finish_reason = choice["finish_reason"].get<std::string>();
    }
    std::string piece;
    const auto add = [&](const Json& from, const char* key) {
      if (from.is_object() && from.contains(key) && from[key].is_string()) piece += from[key].get<std::string>();
    };
    add(choice, "text");
    if (choice.contains("delta")) {
      add(choice["delta"], "reasoning_content");
      add(choice["delta"], "content");
    }
    if (piece.empty()) return;
    record_->text += piece;
    if (any_) {
      record_->itl.push_back(Seconds(now - last_));
    } else {
      record_->ttft = Seconds(now - sent_);
      any_ = true;
    }
    last_ = now;
    ++pieces_;
  }

  RequestRecord* record_;
  Clock::time_point sent_, last_, end_;
  std::string buffer_;
  bool any_ = false, done_ = false;
  int64_t pieces_ = 0;
};

std::string MessageOf(const std::string& body) {
  const Json j = Json::parse(body, nullptr, false);
  if (j.is_object() && j.contains("error") && j["error"].is_object() && j["error"].contains("message") &&
      j["error"]["message"].is_string()) {
    return j["error"]["message"].get<std::string>();
  }
  return body.substr(0, 200);
}

}  // namespace

Result<std::string> RequestBody(const Target& t, const BenchPrompt& prompt) {
  Json body;
  body["model"] = t.model;
  if (!t.chat()) {
    if (prompt.ids.empty()) {
      body["prompt"] = prompt.text;
    } else {
      body["prompt"] = prompt.ids;
    }
  } else if (prompt.images.empty()) {
    body["messages"] = Json::array({Json{{"role", "user"}, {"content", prompt.text}}});
  } else {
    Json parts = Json::array();
    for (const std::string& url : prompt.images) {
      parts.push_back(Json{{"type", "image_url"}, {"image_url", Json{{"url", url}}}});
    }
    parts.push_back(Json{{"type", "text"}, {"text", prompt.text}});
    body["messages"] = Json::array({Json{{"role", "user"}, {"content", std::move(parts)}}});
  }
  body["max_tokens"] = prompt.max_tokens;
  body["stream"] = true;
  body["stream_options"] = Json{{"include_usage", true}};
  if (t.ignore_eos) body["ignore_eos"] = true;
  if (t.temperature.has_value()) body["temperature"] = *t.temperature;
  if (t.top_p.has_value()) body["top_p"] = *t.top_p;
  if (t.top_k.has_value()) body["top_k"] = *t.top_k;
  if (t.seed.has_value()) body["seed"] = *t.seed;
  if (!t.stop.empty()) body["stop"] = t.stop;
  if (!t.extra_body.empty()) {
    const Json extra = Json::parse(t.extra_body, nullptr, false);
    if (!extra.is_object()) return Status::InvalidArgument("--extra-body is not a JSON object");
    body.update(extra);
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RequestRecord SendRequest(const Target& target, const BenchPrompt& prompt, Clock::time_point origin) {
  RequestRecord r;
  const auto fail = [&](std::string kind, std::string why) {
    r.ok = false;
    r.error_kind = std::move(kind);
    if (r.error.empty()) r.error = std::move(why);
    return r;
  };
  const Result<std::string> body = RequestBody(target, prompt);
  if (!body.ok()) return fail("request", body.status().message());
  const server::HttpCall call = CallOf(target, target.endpoint, *body);
  const Clock::time_point sent = Clock::now();
  r.start = Seconds(sent - origin);
  Reader reader(&r, sent);
  const auto reply = server::CallHttp(call, [&](std::string_view bytes) { reader.Take(bytes); });
  r.latency = Seconds(Clock::now() - sent);
  if (!reply.ok()) {
    return fail(reply.status().code() == Code::kCancelled ? "timeout" : "connection", reply.status().message());
  }
  if (reply->status != 200) {
    return fail("http " + std::to_string(reply->status),
                "HTTP " + std::to_string(reply->status) + ": " + MessageOf(reply->body));
  }
  if (!r.error.empty()) return fail("stream", "");
  if (!reader.done() && r.finish_reason.empty()) return fail("stream", "the stream ended before the answer did");
  r.latency = Seconds(reader.end() - sent);
  if (!reader.any()) r.ttft = r.latency;  // an answer without text: its end is all that there is to time
  if (r.prompt_tokens == 0) r.prompt_tokens = prompt.prompt_tokens;
  if (r.output_tokens == 0 && reader.any()) r.output_tokens = static_cast<int64_t>(r.itl.size()) + 1;  // no usage
  r.ok = true;
  return r;
}

Result<std::vector<double>> Arrivals(const LoadOptions& o, int64_t count) {
  if (!(o.request_rate > 0)) return Status::InvalidArgument("--request-rate must be above 0, or inf");
  if (!(o.burstiness > 0)) return Status::InvalidArgument("--burstiness must be above 0");
  if (!o.ramp_up.empty() && o.ramp_up != "linear" && o.ramp_up != "exponential") {
    return Status::InvalidArgument("--ramp-up-strategy must be linear or exponential");
  }
  if (!o.ramp_up.empty() && !(o.ramp_start > 0 && o.ramp_end > 0)) {
    return Status::InvalidArgument("--ramp-up-start-rps and --ramp-up-end-rps must be above 0");
  }
  std::vector<double> times(static_cast<size_t>(count), 0.0);
  if (o.ramp_up.empty() && std::isinf(o.request_rate)) return times;
  std::mt19937_64 random(o.seed);
  double at = 0;
  for (int64_t i = 0; i < count; ++i) {
    double rate = o.request_rate;
    const double progress = static_cast<double>(i) / std::max<double>(1, static_cast<double>(count - 1));
    if (o.ramp_up == "linear") rate = o.ramp_start + (o.ramp_end - o.ramp_start) * progress;
    if (o.ramp_up == "exponential") rate = o.ramp_start * std::pow(o.ramp_end / o.ramp_start, progress);
    at += std::gamma_distribution<double>(o.burstiness, 1 / (rate * o.burstiness))(random);
    times[static_cast<size_t>(i)] = at;
  }
  if (o.ramp_up.empty() && at > 0) {
    const double stretch = static_cast<double>(count) / o.request_rate / at;
    for (double& t : times) t *= stretch;
  }
  return times;
}

Result<LoadResult> RunLoad(const Target& target, const std::vector<BenchPrompt>& prompts, const LoadOptions& options,
                           const Progress& progress) {
  if (prompts.empty()) return Status::InvalidArgument("there are no prompts to send");
  FLUVIAL_ASSIGN_OR_RETURN(const std::string checked, RequestBody(target, prompts.front()));
  const auto count = static_cast<int64_t>(prompts.size());
  FLUVIAL_ASSIGN_OR_RETURN(const std::vector<double> arrivals, Arrivals(options, count));
  const int64_t limit = options.max_concurrency > 0 ? options.max_concurrency : kMostThreads;
  LoadResult result;
  result.records.resize(prompts.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  int64_t done = 0, failed = 0;
  const Clock::time_point origin = Clock::now();
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < prompts.size();) {
      const auto due = origin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrivals[i]));
      std::this_thread::sleep_until(due);
      RequestRecord record = SendRequest(target, prompts[i], origin);
      record.queue = std::max(0.0, record.start - arrivals[i]);
      const std::lock_guard lock(mutex);
      ++done;
      failed += !record.ok;
      result.records[i] = std::move(record);
      if (progress) progress(done, failed, count);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int64_t i = 0; i < std::min(limit, count); ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are do the work, with less concurrency.
  }
  if (threads.empty()) return Status::Resource("the system gives no thread to send requests with");
  for (std::thread& t : threads) t.join();
  result.duration = Seconds(Clock::now() - origin);
  return result;
}

Result<std::string> FirstModel(const Target& target) {
  FLUVIAL_ASSIGN_OR_RETURN(const server::HttpReply reply, server::CallHttp(CallOf(target, "/v1/models", "")));
  const Json j = Json::parse(reply.body, nullptr, false);
  if (reply.status != 200 || !j.is_object() || !j.contains("data") || !j["data"].is_array() || j["data"].empty() ||
      !j["data"][0].contains("id") || !j["data"][0]["id"].is_string()) {
    return Status::Failed(target.base_url + "/v1/models answered " + std::to_string(reply.status) +
                          " and names no model: say which with --model");
  }
  return j["data"][0]["id"].get<std::string>();
}

Status WaitReady(const Target& target, std::chrono::milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  while (true) {
    server::HttpCall call = CallOf(target, "/health", "");
    call.timeout = std::chrono::milliseconds(5000);
    const auto reply = server::CallHttp(call);
    if (reply.ok() && reply->status == 200) return Status::Ok();
    if (!reply.ok() && reply.status().code() == Code::kInvalidArgument) return reply.status();
    if (Clock::now() >= deadline) {
      return Status::Failed(
          "no server is ready at " + target.base_url + ": " +
          (reply.ok() ? "/health answers " + std::to_string(reply->status) : reply.status().message()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace fluvial::measure
