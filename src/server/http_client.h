// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 client for the measuring tools: one request, its answer as it arrives.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::server {

struct HttpCall {
  std::string url;   ///< http://host:port/path or https://...
  std::string body;  ///< empty: GET, else POST of JSON
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::chrono::milliseconds timeout{600'000};  ///< from the call to the last byte
};

struct HttpReply {
  int status = 0;
  std::string body;  ///< empty when it went to on_data
};

/// One request over a connection of its own. With `on_data`, the body of a 200 goes there piece by piece, as it comes.
/// kInvalidArgument: not a URL. kFailed: not connected, or the answer broke off. kCancelled: the timeout has passed.
Result<HttpReply> CallHttp(const HttpCall& call, const std::function<void(std::string_view)>& on_data = {});

}  // namespace fluvial::server
