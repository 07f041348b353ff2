// SPDX-License-Identifier: Apache-2.0
// HTTP as the rest of the room sees it: a request, a response, and an Exchange through which any thread answers. The
// library behind it (Boost.Beast) is seen by http_listener.cc and http_connection.* alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::server {

struct HttpRequest {
  std::string method;  ///< "POST"
  std::string path;    ///< of the target, as sent, without the query
  std::string query;   ///< what stands behind '?', without it
  std::string authorization;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// One request's answer: either Send, or BeginStream, Write..., EndStream. Any thread, one at a time. What is written
/// after the client has gone is dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void Send(HttpResponse response) = 0;

  /// Status 200 and the head of an event stream.
  virtual void BeginStream() = 0;
  /// Queues a piece. False when the client has gone or reads too slowly (HttpOptions::max_pending_bytes): the
  /// connection is then closed.
  virtual bool Write(std::string_view piece) = 0;
  virtual void EndStream() = 0;

  /// `lost` is called once, on the network thread, when the client goes before the answer is complete - at once when it
  /// already has. Not after the end.
  virtual void OnLost(std::function<void()> lost) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";  ///< numeric address or a name of this machine
  uint16_t port = 8000;            ///< 0: any free port
  int32_t max_connections = 4096;  ///< more are answered 503 and closed
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = uint64_t{32} << 20;
  /// Bodies of all requests that are being read or answered; what would exceed it is answered 503.
  uint64_t max_all_body_bytes = uint64_t{1} << 30;
  /// A client that is this far behind its stream is disconnected.
  uint64_t max_pending_bytes = uint64_t{1} << 20;
  std::chrono::milliseconds idle_timeout{75'000};    ///< between requests
  std::chrono::milliseconds header_timeout{10'000};  ///< first to last byte of a head
  std::chrono::milliseconds body_timeout{60'000};    ///< for the whole body
  std::chrono::milliseconds write_timeout{30'000};   ///< for one write of at most max_pending_bytes
};

/// What the listener asks of its owner. All are called on the network thread and must return at once.
struct HttpHooks {
  /// After the head, before the body is read: a response refuses the request.
  std::function<std::optional<HttpResponse>(const HttpRequest& head)> check;
  std::function<void(HttpRequest request, std::shared_ptr<Exchange> exchange)> handle;
  /// The answer to what is not HTTP, or too large or too slow: 400, 408, 413, 431, 503.
  std::function<HttpResponse(int status, std::string message)> refuse;
  /// An answer has ended; `status` 499: the client went first.
  std::function<void(const HttpRequest& head, int status, double seconds)> done;
};

/// Accepts connections on a thread of its own.
class HttpListener {
 public:
  /// kFailed when the address cannot be bound.
  static Result<std::unique_ptr<HttpListener>> Start(const HttpOptions& options, HttpHooks hooks);

  /// Closes everything and joins the thread. Exchanges that are still held stay usable and go nowhere.
  virtual ~HttpListener() = default;

  virtual uint16_t port() const = 0;
  virtual int32_t connections() const = 0;

  /// Stops accepting and closes idle connections; answers under way end with `Connection: close`.
  virtual void Drain() = 0;
  /// Waits until no connection is left; false when that takes longer.
  virtual bool WaitIdle(std::chrono::milliseconds limit) = 0;
};

}  // namespace fluvial::server
