// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <future>
#include <thread>

#include "server/http_connection.h"

namespace fluvial::server {
namespace {

using boost::system::error_code;

class Listener final : public HttpListener {
 public:
  Listener(const HttpOptions& options, HttpHooks hooks)
      : core_(std::make_shared<HttpCore>()), acceptor_(core_->io), retry_(core_->io) {
    core_->options = options;
    core_->hooks = std::move(hooks);
  }

  ~Listener() override {
    if (!thread_.joinable()) return;
    asio::post(core_->io, [this] {
      CloseAcceptor();
      const auto open = core_->open;  // Close() changes the set
      for (const auto& connection : open) connection->Close();
    });
    work_.reset();
    thread_.join();
  }

  Status Open() {
    error_code error;
    tcp::resolver resolver(core_->io);
    const auto found = resolver.resolve(core_->options.host, std::to_string(core_->options.port),
                                        tcp::resolver::passive | tcp::resolver::numeric_service, error);
    const std::string where = core_->options.host + ":" + std::to_string(core_->options.port);
    if (error || found.empty()) {
      return Status::InvalidArgument("cannot listen on " + where + ": this is no address of this machine (" +
                                     error.message() + ")");
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    (void)acceptor_.open(endpoint.protocol(), error);
    if (!error) (void)acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) (void)acceptor_.bind(endpoint, error);
    if (!error) (void)acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (error) {
      return Status::Failed("cannot listen on " + where + ": " + error.message() +
                            "; is another server running there? Choose another --port");
    }
    Accept();
    work_.emplace(core_->io.get_executor());
    thread_ = std::thread([this] { core_->io.run(); });
    return Status::Ok();
  }

  uint16_t port() const override { return port_; }
  int32_t connections() const override { return core_->count.load(); }

  void Drain() override {
    core_->draining.store(true);
    asio::post(core_->io, [this] {
      CloseAcceptor();
      const auto open = core_->open;
      for (const auto& connection : open) connection->CloseIfIdle();
    });
  }

  bool WaitIdle(std::chrono::milliseconds limit) override {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (core_->count.load() > 0) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

 private:
  void CloseAcceptor() {
    error_code ignored;
    (void)acceptor_.close(ignored);
    retry_.cancel();
  }

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {
        // Most often out of file descriptors: give the connections time to end.
        retry_.expires_after(std::chrono::milliseconds(50));
        retry_.async_wait([this](error_code stopped) {
          if (!stopped && acceptor_.is_open()) Accept();
        });
        return;
      }
      const bool full = core_->count.load() >= core_->options.max_connections;
      auto connection = std::make_shared<Connection>(core_, std::move(socket));
      core_->open.insert(connection);
      core_->count.fetch_add(1);
      connection->Start(full);
      Accept();
    });
  }

  const std::shared_ptr<HttpCore> core_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::thread thread_;
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpListener>> HttpListener::Start(const HttpOptions& options, HttpHooks hooks) {
  auto listener = std::make_unique<Listener>(options, std::move(hooks));
  FLUVIAL_RETURN_IF_ERROR(listener->Open());
  return std::unique_ptr<HttpListener>(std::move(listener));
}

}  // namespace fluvial::server
