// SPDX-License-Identifier: Apache-2.0
// Status and Result: how Fluvial reports a bad request or a bad environment.
//
// Three kinds of failure are kept apart (docs/failures.md):
//   * a refusal - "this backend cannot take this problem" - is a value (ops/common/backend.h: Check);
//   * a bad request or environment is a Status: a code and one sentence that says what to do;
//   * a bug stops at FLUVIAL_CHECK (base/check.h).
// The library never prints and never throws across its surface.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fluvial {

/// What went wrong, coarse enough to map on an exit status (docs/cli.md) and an HTTP status.
enum class Code {
  kOk = 0,
  kInvalidArgument,  ///< the caller asked for something that can never work; exit 2, HTTP 400
  kUnusableModel,    ///< a model or file is missing, damaged or unknown; exit 3
  kRefused,          ///< a backend named explicitly cannot take the problem; exit 4
  kResource,         ///< memory, slots or workspace too small; exit 1, HTTP 503
  kCancelled,        ///< stopped on request; exit 1 (130 for Ctrl-C in the tools)
  kFailed,           ///< failed while running; exit 1, HTTP 500
};

/// Name of a code as written in logs and JSON ("invalid_argument", ...).
std::string_view CodeName(Code code);

/// Success, or a code and one sentence. Cheap to move; success carries no allocation.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
  static Status UnusableModel(std::string m) { return {Code::kUnusableModel, std::move(m)}; }
  static Status Refused(std::string m) { return {Code::kRefused, std::move(m)}; }
  static Status Resource(std::string m) { return {Code::kResource, std::move(m)}; }
  static Status Cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
  static Status Failed(std::string m) { return {Code::kFailed, std::move(m)}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  /// Danger: only after ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

/// Return early with the Status of a failed expression (which yields a Status).
#define FLUVIAL_RETURN_IF_ERROR(expr)                  \
  do {                                                 \
    ::fluvial::Status fluvial_status_ = (expr);        \
    if (!fluvial_status_.ok()) return fluvial_status_; \
  } while (0)

#define FLUVIAL_CONCAT_INNER(a, b) a##b
#define FLUVIAL_CONCAT(a, b) FLUVIAL_CONCAT_INNER(a, b)

/// FLUVIAL_ASSIGN_OR_RETURN(auto x, F()): x = value of F(), or return its Status.
#define FLUVIAL_ASSIGN_OR_RETURN(lhs, expr) \
  FLUVIAL_ASSIGN_OR_RETURN_IMPL(FLUVIAL_CONCAT(fluvial_result_, __LINE__), lhs, expr)
#define FLUVIAL_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  lhs = std::move(tmp).value()

}  // namespace fluvial
