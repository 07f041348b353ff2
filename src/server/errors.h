// SPDX-License-Identifier: Apache-2.0
// Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}} and an HTTP status.
#pragma once

#include <optional>
#include <string>

#include "fluvial/status.h"
#include "server/http.h"

namespace fluvial::server {

struct ApiError {
  int status = 400;
  std::string message;  ///< one sentence that says what to do
  std::string param;    ///< the field that is wrong; empty: null
  std::string code;     ///< "model_not_found", ...; empty: null
};

/// {"error": {...}} as text. `type` follows from the status.
std::string ErrorJson(const ApiError& error);

HttpResponse ErrorResponse(const ApiError& error);

/// kInvalidArgument 400, kResource 503, everything else 500.
ApiError FromStatus(const Status& status);

/// "invalid_request_error", "authentication_error", ...
std::string ErrorType(int status);

}  // namespace fluvial::server
