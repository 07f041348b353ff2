// SPDX-License-Identifier: Apache-2.0
// Fetching an image over http(s): the only file that sees Boost.Asio's client side and OpenSSL.
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
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
using Clock = std::chrono::steady_clock;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

Status Bad(const std::string& message) { return Status::InvalidArgument(message); }

bool InBlock(uint32_t address, uint32_t block, int bits) { return (address ^ block) >> (32 - bits) == 0; }

/// Blocks of the IANA IPv4 Special-Purpose Address Registry, multicast and the reserved end.
bool IsPublic(const asio::ip::address_v4& address) {
  struct Block {
    uint32_t start;
    int bits;
  };
  static constexpr Block kBlocks[] = {
      {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},  {0xA9FE0000, 16},
      {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24}, {0xC0586300, 24}, {0xC0A80000, 16},
      {0xC6120000, 15}, {0xC6336400, 24}, {0xCB007100, 24}, {0xE0000000, 4},  {0xF0000000, 4},
  };
  return std::none_of(std::begin(kBlocks), std::end(kBlocks),
                      [&](const Block& b) { return InBlock(address.to_uint(), b.start, b.bits); });
}

/// Global unicast is 2000::/3; of it, what the IPv6 registry takes out: 2001::/23, 2001:db8::/32, 2002::/16 (6to4, an
/// IPv4 address in disguise), 3fff::/20.
bool IsPublic(const asio::ip::address_v6& address) {
  if (address.is_v4_mapped()) return IsPublic(asio::ip::make_address_v4(asio::ip::v4_mapped, address));
  const auto b = address.to_bytes();
  const uint32_t head = uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
  return InBlock(head, 0x20000000, 3) && !InBlock(head, 0x20010000, 23) && head != 0x20010DB8 &&
         !InBlock(head, 0x20020000, 16) && !InBlock(head, 0x3FFF0000, 20);
}

bool IsPublic(const asio::ip::address& address) {
  return address.is_v4() ? IsPublic(address.to_v4()) : IsPublic(address.to_v6());
}

struct Fetched {
  std::string body;
  std::string location;  ///< not empty: go there instead
};

template <class Stream>
asio::awaitable<Result<Fetched>> Ask(Stream& stream, const Url& url, uint64_t max_bytes) {
  http::request<http::empty_body> request(http::verb::get, url.target, 11);
  const bool usual = url.port == (url.tls ? 443 : 80);
  const std::string host = url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
  request.set(http::field::host, usual ? host : host + ":" + std::to_string(url.port));
  request.set(http::field::user_agent, "fluvial/" + Version());
  request.set(http::field::accept, "image/*");
  request.set(http::field::connection, "close");
  auto [write_error, written] = co_await http::async_write(stream, request, kTuple);
  if (write_error) co_return Bad("the server of the image did not take the request: " + write_error.message());

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(max_bytes);
  auto [error, read] = co_await http::async_read(stream, buffer, parser, kTuple);
  if (error == http::error::body_limit) {
    co_return Bad("the image is larger than " + std::to_string(max_bytes) + " bytes: send a smaller one");
  }
  if (error) co_return Bad("the image could not be read: " + error.message());
  const unsigned status = parser.get().result_int();
  Fetched fetched;
  if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) {
    fetched.location = std::string(parser.get()[http::field::location]);
    if (fetched.location.empty()) co_return Bad("the server of the image redirects to nowhere");
    co_return fetched;
  }
  if (status != 200) co_return Bad("the server of the image answered " + std::to_string(status));
  fetched.body = std::move(parser.get().body());
  co_return fetched;
}

asio::awaitable<Result<Fetched>> Get(const Url& url, const MediaPolicy& policy, Clock::time_point deadline) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::resolver resolver(executor);
  auto [resolve_error, found] = co_await resolver.async_resolve(url.host, std::to_string(url.port), kTuple);
  if (resolve_error) co_return Bad("the host '" + url.host + "' of the image is not known");
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) {
    if (policy.private_addresses || IsPublic(entry.endpoint().address())) endpoints.push_back(entry.endpoint());
  }
  if (endpoints.empty()) co_return Bad("the host '" + url.host + "' of the image is not a public address");

  beast::tcp_stream stream(executor);
  stream.expires_at(deadline);
  // Only what was checked is connected to: the name is not asked for a second time.
  auto [connect_error, endpoint] = co_await stream.async_connect(endpoints, kTuple);
  if (connect_error)
    co_return Bad("the host '" + url.host + "' of the image cannot be reached: " + connect_error.message());
  if (!url.tls) co_return co_await Ask(stream, url, policy.max_bytes);

  asio::ssl::context context(asio::ssl::context::tls_client);
  boost::system::error_code error;
  (void)context.set_default_verify_paths(error);
  (void)context.set_verify_mode(asio::ssl::verify_peer, error);
  (void)context.set_verify_callback(asio::ssl::host_name_verification(url.host), error);
  beast::ssl_stream<beast::tcp_stream> secure(std::move(stream), context);
  SSL_set_tlsext_host_name(secure.native_handle(), url.host.c_str());
  auto [handshake_error] = co_await secure.async_handshake(asio::ssl::stream_base::client, kTuple);
  if (handshake_error) co_return Bad("no secure connection to '" + url.host + "': " + handshake_error.message());
  co_return co_await Ask(secure, url, policy.max_bytes);
}

/// Where `location` leads from `base` (RFC 3986, section 5.2, without dot segments: servers resolve those).
std::string Absolute(const Url& base, const std::string& location) {
  const size_t mark = location.find_first_of(":/?#");
  if (mark != std::string::npos && location[mark] == ':') return location;  // has a scheme, maybe one that is refused
  const std::string scheme = base.tls ? "https:" : "http:";
  if (location.starts_with("//")) return scheme + location;
  const std::string host = base.host.find(':') == std::string::npos ? base.host : "[" + base.host + "]";
  const std::string root = scheme + "//" + host + ":" + std::to_string(base.port);
  if (location.starts_with('/')) return root + location;
  const std::string path = base.target.substr(0, base.target.find('?'));
  return root + path.substr(0, path.rfind('/') + 1) + location;
}

Result<std::string> Fetch(std::string where, const MediaPolicy& policy) {
  const Clock::time_point deadline = Clock::now() + policy.timeout;
  for (int hop = 0; hop <= policy.max_redirects; ++hop) {
    FLUVIAL_ASSIGN_OR_RETURN(const Url url, ParseUrl(where));
    const auto& domains = policy.domains;
    if (!domains.empty() && std::find(domains.begin(), domains.end(), url.host) == domains.end()) {
      return Bad("images are not fetched from '" + url.host +
                 "': the server allows other hosts (--allowed-media-domains)");
    }
    asio::io_context io(1);
    std::optional<Result<Fetched>> fetched;
    const auto get = [&]() -> asio::awaitable<void> { fetched = co_await Get(url, policy, deadline); };
    asio::co_spawn(io, get, [](const std::exception_ptr&) {});  // after an exception there is no result
    io.run_until(deadline);
    if (!fetched.has_value()) {
      return Bad("the image did not arrive within " + std::to_string(policy.timeout.count()) + " ms");
    }
    if (!fetched->ok()) return fetched->status();
    if ((*fetched)->location.empty()) return std::move((*fetched)->body);
    where = Absolute(url, (*fetched)->location);
  }
  return Bad("the server of the image redirects more than " + std::to_string(policy.max_redirects) + " times");
}

}  // namespace

bool IsPublicAddress(const std::string& address) {
  boost::system::error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  return !error && IsPublic(parsed);
}

Result<std::string> FetchUrl(const std::string& url, const MediaPolicy& policy) {
  try {
    return Fetch(url, policy);
  } catch (const std::exception& e) {
    return Status::Failed(std::string("fetching an image failed: ") + e.what());
  }
}

}  // namespace fluvial::server
