// SPDX-License-Identifier: Apache-2.0
#include "server/api.h"

#include <exception>
#include <random>
#include <utility>

#include "base/log.h"
#include "fluvial/version.h"

namespace fluvial::server {
namespace {

Json ModelCard(const ServedModel& model, const std::string& name) {
  Json card;
  card["id"] = name;
  card["object"] = "model";
  card["created"] = model.created;
  card["owned_by"] = "fluvial";
  card["root"] = model.path;
  card["parent"] = Json();
  card["max_model_len"] = model.info.max_model_len;
  return card;
}

/// Takes the same time for every wrong key of a length.
bool SameText(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

ApiError Error(int status, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  return error;
}

}  // namespace

/// One path. `quick` answers on the network thread, `answer` and `plan` on a worker.
struct Api::Route {
  std::string_view path;
  std::string_view method;
  bool needs_key = true;
  Answerer quick = nullptr;
  Answerer answer = nullptr;
  Planner plan = nullptr;
};

const Api::Route* Api::Find(std::string_view path) {
  static const Route kRoutes[] = {
      {.path = "/health", .method = "GET", .needs_key = false, .quick = &Api::Health},
      {.path = "/ping", .method = "GET", .needs_key = false, .quick = &Api::Health},
      {.path = "/metrics", .method = "GET", .needs_key = false, .quick = &Api::MetricsPage},
      {.path = "/version", .method = "GET", .needs_key = false, .quick = &Api::VersionText},
      {.path = "/load", .method = "GET", .needs_key = false, .quick = &Api::Load},
      {.path = "/v1/models", .method = "GET", .quick = &Api::Models},
      {.path = "/tokenize", .method = "POST", .answer = &Api::Tokenize},
      {.path = "/detokenize", .method = "POST", .answer = &Api::Detokenize},
      {.path = "/v1/completions", .method = "POST", .plan = &Api::PlanCompletion},
      {.path = "/v1/chat/completions", .method = "POST", .plan = &Api::PlanChat},
  };
  for (const Route& route : kRoutes) {
    if (path == route.path || (route.path == "/v1/models" && path.starts_with("/v1/models/"))) return &route;
  }
  return nullptr;
}

Api::Api(EngineLoop& loop, const ServedModel& model, Metrics& metrics, ApiOptions options)
    : loop_(loop),
      model_(model),
      metrics_(metrics),
      options_(std::move(options)),
      workers_(options_.workers),
      image_threads_(options_.image_threads) {}

HttpHooks Api::Hooks() {
  HttpHooks hooks;
  hooks.check = [this](const HttpRequest& head) { return Check(head); };
  hooks.handle = [this](HttpRequest request, std::shared_ptr<Exchange> exchange) {
    Handle(std::move(request), std::move(exchange));
  };
  hooks.refuse = [](int status, std::string message) { return ErrorResponse(Error(status, std::move(message))); };
  hooks.done = [this](const HttpRequest& head, int status, double seconds) {
    const Route* route = Find(head.path);
    const bool known = head.method == "GET" || head.method == "POST" || head.method == "HEAD";
    metrics_.CountHttp(route == nullptr ? "other" : route->path, known ? head.method : "other", status, seconds);
  };
  return hooks;
}

bool Api::Authorized(const std::string& header) const {
  if (options_.keys.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view key = header.starts_with(kBearer) ? std::string_view(header).substr(kBearer.size()) : "";
  bool found = false;
  for (const std::string& known : options_.keys) found |= SameText(key, known);
  return found;
}

std::optional<HttpResponse> Api::Check(const HttpRequest& head) const {
  const Route* route = Find(head.path);
  if (route == nullptr) return ErrorResponse(Error(404, "there is nothing here: see docs/server.md for the paths"));
  if (head.method != route->method && !(head.method == "HEAD" && route->method == "GET")) {
    HttpResponse response =
        ErrorResponse(Error(405, std::string(route->path) + " takes " + std::string(route->method)));
    response.headers.emplace_back("Allow", route->method);
    return response;
  }
  if (route->needs_key && !Authorized(head.authorization)) {
    ApiError error = Error(401, "the API key is missing or wrong: send Authorization: Bearer KEY");
    error.code = "invalid_api_key";
    return ErrorResponse(error);
  }
  return std::nullopt;
}

void Api::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  const Route* route = Find(request.path);  // Check let it pass
  if (route->quick != nullptr) return exchange->Send((this->*route->quick)(request));
  if (draining_.load()) {
    return exchange->Send(ErrorResponse(Error(503, "the server is shutting down: send the request again")));
  }
  const Clock::time_point arrival = Clock::now();
  workers_.Post([this, route, arrival, exchange, request = std::move(request)] {
    Guard(*exchange, [&] {
      if (route->answer != nullptr) return exchange->Send((this->*route->answer)(request));
      Generate(route->plan, request, exchange, arrival);
    });
  });
}

void Api::Guard(Exchange& exchange, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& e) {  // nlohmann and the standard library; a bug, but not the end of the others
    Log(LogLevel::kError, std::string("unexpected exception in a request: ") + e.what());
    exchange.Send(ErrorResponse(Error(500, "the server made a mistake with this request: please report it")));
  }
}

void Api::Generate(Planner planner, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange,
                   Clock::time_point arrival) {
  Json body;
  if (const auto error = ParseBody(request.body, &body)) return exchange->Send(ErrorResponse(*error));
  const auto plan = std::make_shared<GenerationPlan>();
  if (const auto error = (this->*planner)(body, plan.get())) return exchange->Send(ErrorResponse(*error));
  const auto start = [this, plan, exchange, arrival] {
    if (const auto error = Complete(plan.get())) return exchange->Send(ErrorResponse(*error));
    const Clock::time_point deadline =
        options_.request_timeout.count() > 0 ? arrival + options_.request_timeout : Clock::time_point::max();
    std::make_shared<Generation>(loop_, metrics_, model_, std::move(*plan), exchange, arrival, deadline)->Start();
  };
  // Fetching and decoding take long: text requests do not wait behind them.
  if (plan->image_urls.empty()) return start();
  image_threads_.Post([exchange, start] { Guard(*exchange, start); });
}

std::optional<ApiError> Api::Complete(GenerationPlan* plan) const {
  if (!plan->complete) return std::nullopt;
  std::vector<std::string> images;
  for (const std::string& url : plan->image_urls) {
    Result<std::string> image = LoadImage(url, options_.media);
    if (!image.ok()) {
      ApiError error = FromStatus(image.status());
      error.param = "messages";
      return error;
    }
    images.push_back(std::move(*image));
  }
  const auto complete = std::move(plan->complete);
  return complete(images, plan);
}

void Api::AddPrompt(std::vector<int32_t> ids, int64_t default_max_tokens, GenerationPlan* plan) const {
  const GenerationRequest& request = plan->request;
  const int64_t keep = request.truncate_prompt;
  if (keep > 0 && static_cast<int64_t>(ids.size()) > keep) ids.erase(ids.begin(), ids.end() - keep);
  Request engine = request.engine;
  engine.prompt = std::move(ids);
  engine.max_tokens = request.max_tokens.value_or(default_max_tokens);
  plan->prompts.push_back(std::move(engine));
}

HttpResponse Api::Health(const HttpRequest&) {
  if (!loop_.alive()) return ErrorResponse(Error(503, "the engine has stopped: see the server's log and restart it"));
  if (draining_.load()) return ErrorResponse(Error(503, "the server is shutting down"));
  return {.body = "", .content_type = "text/plain"};
}

HttpResponse Api::MetricsPage(const HttpRequest&) {
  Metrics::Now now;
  now.engine = loop_.engine().stats();
  now.active = loop_.active();
  const HttpListener* listener = listener_.load();
  now.connections = listener == nullptr ? 0 : listener->connections();
  return {.body = metrics_.Text(now), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

HttpResponse Api::Load(const HttpRequest&) {
  Json body;
  body["server_load"] = loop_.active();
  return {.body = Dump(body)};
}

HttpResponse Api::VersionText(const HttpRequest&) {
  Json body;
  body["version"] = Version();
  return {.body = Dump(body)};
}

HttpResponse Api::Models(const HttpRequest& request) {
  constexpr std::string_view kOne = "/v1/models/";
  if (request.path.starts_with(kOne)) {
    const std::string name = request.path.substr(kOne.size());
    if (model_.HasName(name)) return {.body = Dump(ModelCard(model_, name))};
    ApiError error = Error(404, "the model " + Quote(Json(name)) + " is not served here: see /v1/models");
    error.code = "model_not_found";
    return ErrorResponse(error);
  }
  Json body;
  body["object"] = "list";
  body["data"] = Json::array();
  for (const std::string& name : model_.names) body["data"].push_back(ModelCard(model_, name));
  return {.body = Dump(body)};
}

std::string MakeId(std::string_view prefix) {
  thread_local std::random_device device;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id(prefix);
  for (int word = 0; word < 4; ++word) {
    uint32_t bits = device();
    for (int i = 0; i < 8; ++i, bits >>= 4) id += kHex[bits & 15];
  }
  return id;
}

}  // namespace fluvial::server
