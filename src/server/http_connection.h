// SPDX-License-Identifier: Apache-2.0
// One client connection: reads requests one after another, watches for the client's going while an answer is under way,
// and writes what an Exchange queues. All of it runs on the network thread, except the queueing.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "server/http.h"

namespace fluvial::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

class Connection;

/// What connections share. Owned by the listener and by every connection.
struct HttpCore {
  HttpOptions options;
  HttpHooks hooks;
  asio::io_context io;
  std::unordered_set<std::shared_ptr<Connection>> open;  // network thread only
  std::atomic<int32_t> count{0};                         // size of `open`
  std::atomic<bool> draining{false};
  uint64_t body_bytes = 0;  // reserved by connections; network thread only
};

/// The Exchange of one request.
class Reply final : public Exchange, public std::enable_shared_from_this<Reply> {
 public:
  Reply(std::shared_ptr<HttpCore> core, std::shared_ptr<Connection> connection, HttpRequest head, bool http10,
        bool keep_alive);

  void Send(HttpResponse response) override;
  void BeginStream() override;
  bool Write(std::string_view piece) override;
  void EndStream() override;
  void OnLost(std::function<void()> lost) override;

 private:
  friend class Connection;

  std::string Head(int status, std::string_view content_type,
                   const std::vector<std::pair<std::string, std::string>>& headers, std::optional<size_t> length);
  bool Queue(std::string_view bytes, bool end, bool bounded);
  /// Network thread: takes what is queued; `*end` when nothing more will come.
  std::string Take(bool* end);
  /// Network thread: the connection is gone or done with this. `lost`: before the end.
  void Detach(bool lost);

  const std::shared_ptr<HttpCore> core_;
  const HttpRequest head_;  // without body
  const bool http10_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<Connection> connection_;
  std::string queued_;
  std::function<void()> on_lost_;
  int status_ = 0;
  bool keep_alive_;
  bool chunked_ = false;
  bool ended_ = false;
  bool detached_ = false;
  bool lost_ = false;
  bool posted_ = false;  // a flush is on its way or writing
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpCore> core, tcp::socket socket);

  /// Begins; `refuse`: only to answer 503.
  void Start(bool refuse);
  void Close();
  void CloseIfIdle();

 private:
  friend class Reply;
  enum class State : uint8_t { kIdle, kReading, kBusy, kLingering, kClosed };

  void WaitForRequest();
  void Watch();
  void OnReadable(const boost::system::error_code& error);
  void ReadHead();
  void OnHead(const boost::system::error_code& error);
  /// Makes room for the body that the head announces; false when there is none.
  bool ReserveBody();
  void ReleaseBody();
  void ReadBody();
  void OnBody(const boost::system::error_code& error);
  void Dispatch();
  HttpRequest HeadOf() const;
  std::shared_ptr<Reply> MakeReply(bool keep_alive);
  void RefuseRead(const boost::system::error_code& error);
  void Refuse(int status, const std::string& message);
  void Flush();
  void OnWritten(const boost::system::error_code& error);
  void EndReply();
  void Linger();
  void Discard();
  void ExpireReading(std::chrono::milliseconds after);
  void ExpireWriting(std::chrono::milliseconds after);

  const std::shared_ptr<HttpCore> core_;
  tcp::socket socket_;
  asio::steady_timer read_timer_, write_timer_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<Reply> reply_;
  std::string writing_;
  State state_ = State::kIdle;
  bool watching_ = false;
  bool write_pending_ = false;
  size_t discarded_ = 0;
  uint64_t reserved_ = 0;  // of HttpCore::body_bytes
};

}  // namespace fluvial::server
