// SPDX-License-Identifier: Apache-2.0
#include "server/fields.h"

#include <cmath>
#include <exception>
#include <unordered_set>

#include "text/utf8.h"

namespace fluvial::server {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxKeys = 1024;
constexpr size_t kMaxAllKeys = 65536;

ApiError Bad(std::string message) {
  ApiError error;
  error.message = std::move(message);
  return error;
}

/// Leaves the parser early; nlohmann knows no other way.
struct Stop {
  std::string why;
};

}  // namespace

std::optional<ApiError> ParseBody(std::string_view body, Json* out) {
  if (body.empty()) return Bad("the body is empty: send a JSON object");
  std::vector<std::unordered_set<std::string>> keys;
  size_t all = 0;
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) throw Stop{"the body is nested deeper than " + std::to_string(kMaxDepth) + " levels"};
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      if (!keys.back().insert(value.get_ref<const std::string&>()).second) {
        throw Stop{"the body has the key " + Quote(value) + " twice in one object"};
      }
      if (keys.back().size() > kMaxKeys) {
        throw Stop{"the body has an object with more than " + std::to_string(kMaxKeys) + " keys"};
      }
      if (++all > kMaxAllKeys) throw Stop{"the body has more than " + std::to_string(kMaxAllKeys) + " keys"};
    }
    return true;
  };
  try {
    *out = Json::parse(body, watch);
  } catch (const Stop& stop) {
    return Bad(stop.why + ": simplify it");
  } catch (const Json::parse_error& e) {
    return Bad("the body is not JSON (error at byte " + std::to_string(e.byte) + "): send a JSON object in UTF-8");
  } catch (const Json::exception&) {  // a number out of range
    return Bad("the body is not JSON (a number is out of range): send a JSON object in UTF-8");
  }
  if (!out->is_object()) return Bad("the body is JSON, but not an object: send a JSON object");
  return std::nullopt;
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string Quote(const Json& value) {
  std::string text = Dump(value);
  if (text.size() <= 40) return text;
  size_t cut = 37;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;  // not inside a character
  return text.substr(0, cut) + "...";
}

const Json* Fields::Take(const char* name) {
  known_.insert(name);
  if (!ok()) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool Fields::Has(const char* name) const {
  const auto it = object_.find(name);
  return it != object_.end() && !it->is_null();
}

void Fields::Fail(const std::string& name, const std::string& message) {
  if (!ok()) return;
  error_ = Bad(message);
  error_->param = name.empty() ? "" : where_ + name;
}

void Fields::Wrong(const char* name, const Json& value, const std::string& must) {
  Fail(name, where_ + name + " is " + Quote(value) + ": it must be " + must);
}

void Fields::Bool(const char* name, bool* out) {
  const Json* value = Take(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return Wrong(name, *value, "true or false");
  *out = value->get<bool>();
}

void Fields::Int(const char* name, int64_t* out, int64_t low, int64_t high) {
  const Json* value = Take(name);
  if (value == nullptr) return;
  const std::string must = "an integer in " + std::to_string(low) + ".." + std::to_string(high);
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const uint64_t u = value->get<uint64_t>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return Wrong(name, *value, must);
    number = static_cast<int64_t>(u);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float() && std::trunc(value->get<double>()) == value->get<double>() &&
             std::fabs(value->get<double>()) < 9.0e15) {
    number = static_cast<int64_t>(value->get<double>());  // 16.0, as some clients write
  } else {
    return Wrong(name, *value, must);
  }
  if (number < low || number > high) return Wrong(name, *value, must);
  *out = number;
}

void Fields::Float(const char* name, float* out) {
  const Json* value = Take(name);
  if (value == nullptr) return;
  if (!value->is_number()) return Wrong(name, *value, "a number");
  *out = static_cast<float>(value->get<double>());  // its range is the engine's to check
}

void Fields::Text(const char* name, std::string* out) {
  const Json* value = Take(name);
  if (value == nullptr) return;
  if (!value->is_string()) return Wrong(name, *value, "a string");
  *out = value->get<std::string>();
}

void Fields::Texts(const char* name, std::vector<std::string>* out, size_t most) {
  const Json* value = Take(name);
  if (value == nullptr) return;
  const std::string must = "a string or a list of at most " + std::to_string(most) + " strings, none empty";
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > most) return Wrong(name, *value, must);
  std::vector<std::string> texts;
  for (const Json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty()) return Wrong(name, *value, must);
    texts.push_back(item.get<std::string>());
  }
  *out = std::move(texts);
}

void Fields::Ids(const char* name, std::vector<int32_t>* out, size_t most) {
  const Json* value = List(name);
  if (value == nullptr) return;
  const std::string must = "a list of at most " + std::to_string(most) + " token ids";
  if (value->size() > most) return Wrong(name, *value, must);
  std::vector<int32_t> ids;
  for (const Json& item : *value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT32_MAX) return Wrong(name, *value, must);
    ids.push_back(item.get<int32_t>());
  }
  *out = std::move(ids);
}

const Json* Fields::Object(const char* name) {
  const Json* value = Take(name);
  if (value == nullptr || value->is_object()) return value;
  Wrong(name, *value, "an object");
  return nullptr;
}

const Json* Fields::List(const char* name) {
  const Json* value = Take(name);
  if (value == nullptr || value->is_array()) return value;
  Wrong(name, *value, "a list");
  return nullptr;
}

void Fields::Ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

void Fields::Refuse(const char* name, const std::string& why, const Json& harmless) {
  const Json* value = Take(name);
  if (value != nullptr && *value != harmless) Fail(name, where_ + name + " is not supported: " + why);
}

void Fields::RefuseUnknown() {
  for (const auto& [key, value] : object_.items()) {
    if (known_.contains(key)) continue;
    Fail(key, "there is no field " + Quote(Json(where_ + key)) + ": leave it out (docs/server.md lists the fields)");
    return;
  }
}

}  // namespace fluvial::server
