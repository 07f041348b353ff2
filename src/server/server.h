// SPDX-License-Identifier: Apache-2.0
// Server: an engine behind the OpenAI API over HTTP. What it answers is in docs/server.md.
//
//     auto server = fluvial::server::Server::Start(std::move(engine), std::move(model), options);
//     ... (*server)->port() ...
//     (*server)->Drain(std::chrono::seconds(30));   // answers under way end, new ones are refused
#pragma once

#include <chrono>
#include <memory>

#include "fluvial/engine.h"
#include "server/api.h"
#include "server/http.h"
#include "server/served_model.h"

namespace fluvial::server {

struct ServerOptions {
  HttpOptions http;
  ApiOptions api;
  int64_t max_requests = 1024;  ///< choices waiting and running together
  /// Labels of vllm:cache_config_info: name and value.
  std::vector<std::pair<std::string, std::string>> cache_config = {};
};

class Server {
 public:
  /// Starts threads for the network, the engine and the reading of requests. Errors: those of HttpListener::Start.
  static Result<std::unique_ptr<Server>> Start(std::unique_ptr<Engine> engine, ServedModel model,
                                               const ServerOptions& options);

  /// Cuts off whatever is still under way.
  ~Server();

  uint16_t port() const { return listener_->port(); }
  /// False when the engine has broken: the server answers 503 from then on.
  bool alive() const { return loop_->alive(); }
  int64_t active() const { return loop_->active(); }

  /// Stops accepting, lets answers under way end, and cancels after `limit` what has not. True when nothing had to be
  /// cancelled.
  bool Drain(std::chrono::milliseconds limit);

 private:
  Server() = default;

  // In order of construction: each uses those before it.
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<HttpListener> listener_;
};

}  // namespace fluvial::server
