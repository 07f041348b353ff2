// SPDX-License-Identifier: Apache-2.0
#include "server/errors.h"

#include <nlohmann/json.hpp>

namespace fluvial::server {

std::string ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "internal_server_error" : "invalid_request_error";
  }
}

std::string ErrorJson(const ApiError& error) {
  nlohmann::ordered_json body;
  auto& e = body["error"];
  e["message"] = error.message;
  e["type"] = ErrorType(error.status);
  e["param"] = error.param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param);
  e["code"] = error.code.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.code);
  // A message may quote what a client sent; `replace` keeps ill-formed bytes from throwing.
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ErrorJson(error);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

ApiError FromStatus(const Status& status) {
  ApiError error;
  error.message = status.message();
  switch (status.code()) {
    case Code::kInvalidArgument:
      error.status = 400;
      break;
    case Code::kResource:
      error.status = 503;
      break;
    default:
      error.status = 500;
  }
  return error;
}

}  // namespace fluvial::server
