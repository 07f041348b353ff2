// SPDX-License-Identifier: Apache-2.0
#include "server/server.h"

#include <utility>

namespace fluvial::server {

Result<std::unique_ptr<Server>> Server::Start(std::unique_ptr<Engine> engine, ServedModel model,
                                              const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server);
  server->engine_ = std::move(engine);
  server->model_ = std::make_unique<ServedModel>(std::move(model));
  server->metrics_ = std::make_unique<Metrics>(server->model_->names.front(), options.cache_config);
  server->loop_ = std::make_unique<EngineLoop>(*server->engine_, options.max_requests,
                                               [&metrics = *server->metrics_](int64_t tokens) {
                                                 metrics.iteration_tokens.Observe(static_cast<double>(tokens));
                                               });
  server->api_ = std::make_unique<Api>(*server->loop_, *server->model_, *server->metrics_, options.api);
  FLUVIAL_ASSIGN_OR_RETURN(server->listener_, HttpListener::Start(options.http, server->api_->Hooks()));
  server->api_->SetListener(server->listener_.get());
  return server;
}

bool Server::Drain(std::chrono::milliseconds limit) {
  api_->Drain();
  listener_->Drain();
  if (listener_->WaitIdle(limit)) return true;
  loop_->CancelAll();
  listener_->WaitIdle(std::chrono::milliseconds(1000));  // for the errors to go out
  return false;
}

Server::~Server() {
  // Callbacks run into the API and from there into exchanges: the workers and the loop end first, then the network.
  if (api_ != nullptr) {
    api_->Drain();
    api_->StopWorkers();
  }
  if (loop_ != nullptr) loop_->Stop();
  listener_.reset();
}

}  // namespace fluvial::server
