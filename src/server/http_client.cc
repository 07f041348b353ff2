// SPDX-License-Identifier: Apache-2.0
// The client side of HTTP for the measuring tools, over Boost.Beast.
#include "server/http_client.h"

#include <openssl/ssl.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <exception>
#include <optional>

#include "fluvial/version.h"
#include "server/media.h"

namespace fluvial::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using OnData = std::function<void(std::string_view)>;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

Status Broken(const Url& url, const std::string& what, const boost::system::error_code& error) {
  const std::string where = url.host + ":" + std::to_string(url.port);
  if (error == beast::error::timeout) return Status::Cancelled("timed out: " + where + " took too long to answer");
  return Status::Failed(where + " " + what + ": " + error.message());
}

template <class Stream>
asio::awaitable<Result<HttpReply>> Ask(Stream& stream, const Url& url, const HttpCall& call, const OnData& on_data) {
  http::request<http::string_body> request(call.body.empty() ? http::verb::get : http::verb::post, url.target, 11);
  const std::string host = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
  request.set(http::field::host, host + ":" + std::to_string(url.port));
  request.set(http::field::user_agent, "fluvial/" + Version());
  request.set(http::field::connection, "close");
  if (!call.body.empty()) request.set(http::field::content_type, "application/json");
  for (const auto& [name, value] : call.headers) request.set(name, value);
  request.body() = call.body;
  request.prepare_payload();
  auto [write_error, written] = co_await http::async_write(stream, request, kTuple);
  if (write_error) co_return Broken(url, "did not take the request", write_error);

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  auto [head_error, head] = co_await http::async_read_header(stream, buffer, parser, kTuple);
  if (head_error) co_return Broken(url, "ended the connection without an answer", head_error);
  HttpReply reply;
  reply.status = parser.get().result_int();
  const bool streams = on_data && reply.status == 200;
  std::array<char, 16384> bytes;
  while (!parser.is_done()) {
    parser.get().body().data = bytes.data();
    parser.get().body().size = bytes.size();
    auto [error, read] = co_await http::async_read_some(stream, buffer, parser, kTuple);
    const std::string_view piece(bytes.data(), bytes.size() - parser.get().body().size);
    if (streams) {
      if (!piece.empty()) on_data(piece);
    } else {
      reply.body += piece;
    }
    if (error && error != http::error::need_buffer) co_return Broken(url, "broke off its answer", error);
  }
  co_return reply;
}

asio::awaitable<Result<HttpReply>> Connect(const Url& url, const HttpCall& call, const OnData& on_data) {
  const auto executor = co_await asio::this_coro::executor;
  // An address needs no resolver, whose thread would be in the time of the request.
  std::vector<tcp::endpoint> endpoints;
  boost::system::error_code ignored;
  const auto address = asio::ip::make_address(url.host, ignored);
  if (!ignored) {
    endpoints.emplace_back(address, url.port);
  } else {
    tcp::resolver resolver(executor);
    auto [resolve_error, found] = co_await resolver.async_resolve(url.host, std::to_string(url.port), kTuple);
    if (resolve_error) co_return Status::Failed("the host '" + url.host + "' is not known");
    for (const auto& entry : found) endpoints.push_back(entry.endpoint());
  }
  beast::tcp_stream stream(executor);
  stream.expires_after(call.timeout);
  auto [connect_error, endpoint] = co_await stream.async_connect(endpoints, kTuple);
  if (connect_error) co_return Broken(url, "cannot be reached", connect_error);
  stream.socket().set_option(tcp::no_delay(true), ignored);
  if (!url.tls) co_return co_await Ask(stream, url, call, on_data);

  asio::ssl::context context(asio::ssl::context::tls_client);
  context.set_default_verify_paths(ignored);
  context.set_verify_mode(asio::ssl::verify_peer, ignored);
  context.set_verify_callback(asio::ssl::host_name_verification(url.host), ignored);
  beast::ssl_stream<beast::tcp_stream> secure(std::move(stream), context);
  SSL_set_tlsext_host_name(secure.native_handle(), url.host.c_str());
  auto [handshake_error] = co_await secure.async_handshake(asio::ssl::stream_base::client, kTuple);
  if (handshake_error) co_return Broken(url, "gives no secure connection", handshake_error);
  co_return co_await Ask(secure, url, call, on_data);
}

}  // namespace

Result<HttpReply> CallHttp(const HttpCall& call, const OnData& on_data) {
  try {
    FLUVIAL_ASSIGN_OR_RETURN(const Url url, ParseUrl(call.url));
    asio::io_context io(1);
    std::optional<Result<HttpReply>> reply;
    const auto work = [&]() -> asio::awaitable<void> { reply = co_await Connect(url, call, on_data); };
    asio::co_spawn(io, work, [](const std::exception_ptr&) {});  // after an exception there is no reply
    io.run();
    if (!reply.has_value()) return Status::Failed("the request to " + call.url + " failed in the client");
    return std::move(*reply);
  } catch (const std::exception& e) {
    return Status::Failed("the request to " + call.url + " failed: " + e.what());
  }
}

}  // namespace fluvial::server
