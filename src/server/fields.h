// SPDX-License-Identifier: Apache-2.0
// Reading a request's JSON: bounded parsing, and typed fields whose first mistake is kept as an error that names the
// field, what it is and what it must be.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/errors.h"

namespace fluvial::server {

using Json = nlohmann::ordered_json;

/// A JSON object from a client's bytes, or the reason why not: not JSON, not UTF-8, not an object, nested deeper than
/// 64, a key twice in one object, more than 1024 keys in one or 65536 in all (objects keep their order and are searched
/// from the front, so that keys cost their square).
std::optional<ApiError> ParseBody(std::string_view body, Json* out);

/// Text of `json`; ill-formed UTF-8, which cannot come from here, would be replaced and not thrown at.
std::string Dump(const Json& json);

/// Reads the members of one object. A null member counts as absent. Every reader marks its field as known; the first
/// error stays and later calls do nothing. Outputs are untouched when the field is absent.
class Fields {
 public:
  /// `where`: prefix of field names in messages ("messages[0]."). Danger: `object` must outlive this.
  explicit Fields(const Json& object, std::string where = "") : object_(object), where_(std::move(where)) {}

  const Json* Take(const char* name);
  bool Has(const char* name) const;

  void Bool(const char* name, bool* out);
  void Int(const char* name, int64_t* out, int64_t low, int64_t high);
  void Float(const char* name, float* out);
  void Text(const char* name, std::string* out);
  /// A string or a list of strings, none empty.
  void Texts(const char* name, std::vector<std::string>* out, size_t most);
  void Ids(const char* name, std::vector<int32_t>* out, size_t most);
  /// Must be an object; nullptr when absent.
  const Json* Object(const char* name);
  const Json* List(const char* name);

  /// Known, and of no effect here: what clients send for services that Fluvial is not.
  void Ignore(std::initializer_list<const char*> names);
  /// Known and not supported: an error unless absent or equal to `harmless`.
  void Refuse(const char* name, const std::string& why, const Json& harmless = Json());
  /// A field that nobody has asked for is an error: an option must not be ignored silently.
  void RefuseUnknown();

  /// Records an error about `name` (empty: about no field in particular).
  void Fail(const std::string& name, const std::string& message);

  const std::optional<ApiError>& error() const { return error_; }
  bool ok() const { return !error_.has_value(); }

 private:
  void Wrong(const char* name, const Json& value, const std::string& must);

  const Json& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

/// A value as it may be quoted in a message: cut to 40 characters.
std::string Quote(const Json& value);

}  // namespace fluvial::server
