// SPDX-License-Identifier: Apache-2.0
// Api: which path does what. Sits between HTTP (http.h) and the engine (engine_loop.h).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/engine_loop.h"
#include "server/generation.h"
#include "server/generation_request.h"
#include "server/http.h"
#include "server/media.h"
#include "server/metrics.h"
#include "server/served_model.h"
#include "server/workers.h"

namespace fluvial::server {

struct ApiOptions {
  std::vector<std::string> keys;  ///< empty: everybody is served
  RequestLimits limits;
  MediaPolicy media;
  std::chrono::milliseconds request_timeout{600'000};  ///< from arrival to last token; 0: none
  int workers = 2;
  int image_threads = 4;  ///< threads that fetch and decode images
};

class Api {
 public:
  /// Danger: what the references name must outlive this, and every exchange must have ended or been closed before.
  Api(EngineLoop& loop, const ServedModel& model, Metrics& metrics, ApiOptions options);

  /// For the listener. Danger: `this` must outlive it.
  HttpHooks Hooks();
  /// From now on /health is 503 and no new work is taken.
  void Drain() { draining_.store(true); }
  /// Whose connections /metrics counts.
  void SetListener(const HttpListener* listener) { listener_.store(listener); }
  /// Waits for requests that are being read; none is read afterwards.
  void StopWorkers() {
    workers_.Stop();
    image_threads_.Stop();
  }

 private:
  struct Route;
  using Clock = std::chrono::steady_clock;
  using Answerer = HttpResponse (Api::*)(const HttpRequest& request);
  using Planner = std::optional<ApiError> (Api::*)(const Json& body, GenerationPlan* plan);

  static const Route* Find(std::string_view path);
  std::optional<HttpResponse> Check(const HttpRequest& head) const;
  bool Authorized(const std::string& header) const;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange);
  std::optional<ApiError> Complete(GenerationPlan* plan) const;
  static void Guard(Exchange& exchange, const std::function<void()>& work);
  void Generate(Planner planner, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                Clock::time_point arrival);

  HttpResponse Health(const HttpRequest& request);
  HttpResponse MetricsPage(const HttpRequest& request);
  HttpResponse Models(const HttpRequest& request);
  HttpResponse Load(const HttpRequest& request);
  HttpResponse VersionText(const HttpRequest& request);
  HttpResponse Tokenize(const HttpRequest& request);
  HttpResponse Detokenize(const HttpRequest& request);
  std::optional<ApiError> PlanCompletion(const Json& body, GenerationPlan* plan);
  std::optional<ApiError> PlanChat(const Json& body, GenerationPlan* plan);
  std::optional<ApiError> FinishChat(text::ChatRequest chat, const text::ToolSchemas& schemas,
                                     text::OutputFormat format, const std::vector<std::string>& images,
                                     GenerationPlan* plan) const;
  /// Engine requests for prompts, with limits on their number and length.
  void AddPrompt(std::vector<int32_t> ids, int64_t default_max_tokens, GenerationPlan* plan) const;

  EngineLoop& loop_;
  const ServedModel& model_;
  Metrics& metrics_;
  const ApiOptions options_;
  std::atomic<bool> draining_{false};
  std::atomic<const HttpListener*> listener_{nullptr};
  Workers workers_, image_threads_;
};

/// A chat request as the template takes it, from the fields `messages`, `tools`, `tool_choice`, ... of `fields`.
/// `*tools`: the schemas for the output parser; empty where the model must not call any. `*images`: URLs of the images
/// in order, at most `max_images`; what the template sees of them is that they are there.
void ReadChat(const ServedModel& model, int64_t max_images, Fields* fields, text::ChatRequest* chat, std::string* tools,
              std::vector<std::string>* images);

/// "cmpl-" and 32 hexadecimal digits.
std::string MakeId(std::string_view prefix);

}  // namespace fluvial::server
