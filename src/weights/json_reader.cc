// SPDX-License-Identifier: Apache-2.0
#include "weights/json_reader.h"

#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

namespace fluvial::weights {
namespace {

using Json = nlohmann::json;

/// Deeper nesting than any config has; guards the recursive destructor of the document against strangers' files.
constexpr int kMaxDepth = 64;

Result<Json> ParseDocument(const std::string& text, const std::string& file) {
  bool too_deep = false;
  const auto guard = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) too_deep = true;
    return depth <= kMaxDepth;
  };
  try {
    Json json = Json::parse(text, guard, /*allow_exceptions=*/false);
    if (too_deep) {
      return Status::UnusableModel(file + " nests deeper than " + std::to_string(kMaxDepth) +
                                   " levels; download it again");
    }
    if (json.is_discarded()) return Status::UnusableModel(file + " is not JSON; download it again");
    if (!json.is_object()) return Status::UnusableModel(file + " does not hold a JSON object; download it again");
    return json;
  } catch (const std::exception&) {
    return Status::UnusableModel(file + " is not JSON; download it again");
  }
}

}  // namespace

struct JsonObject::Document {
  Json root;
  std::string file;
  Status status;
};

namespace {

const Json* Node(const void* object, std::string_view key) {
  if (object == nullptr) return nullptr;
  const Json& json = *static_cast<const Json*>(object);
  const auto it = json.find(std::string(key));
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

void Wrong(JsonObject::Document& document, const std::string& path, std::string_view key, const std::string& want,
           const Json& have) {
  if (!document.status.ok()) return;
  std::string text = have.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  document.status = Status::UnusableModel(document.file + ": '" + path + std::string(key) + "' must be " + want +
                                          ", not " + text + "; correct it or download the file again");
}

bool ReadInt(const Json& node, int64_t& out) {
  if (node.is_number_unsigned()) {
    const uint64_t v = node.get<uint64_t>();
    if (v > static_cast<uint64_t>(INT64_MAX)) return false;
    out = static_cast<int64_t>(v);
    return true;
  }
  if (node.is_number_integer()) {
    out = node.get<int64_t>();
    return true;
  }
  // Some exporters write 64.0.
  if (node.is_number_float()) {
    const double v = node.get<double>();
    if (v != std::floor(v) || std::fabs(v) > 1e15) return false;
    out = static_cast<int64_t>(v);
    return true;
  }
  return false;
}

}  // namespace

Status ReadStringMap(const std::string& text, const std::string& file, const char* key,
                     std::map<std::string, std::string>& out) {
  FLUVIAL_ASSIGN_OR_RETURN(const Json json, ParseDocument(text, file));
  const Json* map = Node(&json, key);
  if (map == nullptr || !map->is_object()) {
    return Status::UnusableModel(file + " has no object '" + std::string(key) + "'; download it again");
  }
  for (const auto& [name, value] : map->items()) {
    if (!value.is_string()) {
      return Status::UnusableModel(file + ": '" + std::string(key) + "' entry '" + name +
                                   "' is not a string; download it again");
    }
    out[name] = value.get<std::string>();
  }
  return Status::Ok();
}

Result<JsonObject> JsonObject::Parse(const std::string& text, const std::string& file) {
  JsonObject out;
  out.document_ = std::make_shared<Document>();
  out.document_->file = file;
  FLUVIAL_ASSIGN_OR_RETURN(out.document_->root, ParseDocument(text, file));
  out.node_ = &out.document_->root;
  return out;
}

bool JsonObject::Has(std::string_view key) const { return Node(node_, key) != nullptr; }

bool JsonObject::IsNull(std::string_view key) const {
  if (node_ == nullptr) return false;
  const Json& json = *static_cast<const Json*>(node_);
  const auto it = json.find(std::string(key));
  return it != json.end() && it->is_null();
}

JsonObject JsonObject::Object(std::string_view key) const {
  JsonObject out = *this;
  out.node_ = nullptr;
  out.path_ = path_ + std::string(key) + ".";
  const Json* node = Node(node_, key);
  if (node == nullptr) return out;
  if (node->is_object()) {
    out.node_ = node;
  } else {
    Wrong(*document_, path_, key, "an object", *node);
  }
  return out;
}

int64_t JsonObject::Int(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
  const Json* node = Node(node_, key);
  if (node == nullptr) return fallback;
  int64_t value = 0;
  if (!ReadInt(*node, value) || value < low || value > high) {
    Wrong(*document_, path_, key, "an integer from " + std::to_string(low) + " to " + std::to_string(high), *node);
    return fallback;
  }
  return value;
}

double JsonObject::Float(std::string_view key, double fallback) const {
  const Json* node = Node(node_, key);
  if (node == nullptr) return fallback;
  if (!node->is_number() || !std::isfinite(node->get<double>())) {
    Wrong(*document_, path_, key, "a number", *node);
    return fallback;
  }
  return node->get<double>();
}

bool JsonObject::Bool(std::string_view key, bool fallback) const {
  const Json* node = Node(node_, key);
  if (node == nullptr) return fallback;
  if (!node->is_boolean()) {
    Wrong(*document_, path_, key, "true or false", *node);
    return fallback;
  }
  return node->get<bool>();
}

std::string JsonObject::String(std::string_view key, std::string_view fallback) const {
  const Json* node = Node(node_, key);
  if (node == nullptr) return std::string(fallback);
  if (!node->is_string()) {
    Wrong(*document_, path_, key, "a string", *node);
    return std::string(fallback);
  }
  return node->get<std::string>();
}

std::vector<int64_t> JsonObject::Ints(std::string_view key) const {
  const Json* node = Node(node_, key);
  std::vector<int64_t> out;
  if (node == nullptr) return out;
  bool good = node->is_array();
  if (good) {
    for (const Json& item : *node) {
      int64_t value = 0;
      good = good && ReadInt(item, value);
      out.push_back(value);
    }
  }
  if (!good) Wrong(*document_, path_, key, "a list of integers", *node);
  return good ? out : std::vector<int64_t>{};
}

std::vector<std::string> JsonObject::Strings(std::string_view key) const {
  const Json* node = Node(node_, key);
  std::vector<std::string> out;
  if (node == nullptr) return out;
  bool good = node->is_array();
  if (good) {
    for (const Json& item : *node) {
      good = good && item.is_string();
      if (good) out.push_back(item.get<std::string>());
    }
  }
  if (!good) Wrong(*document_, path_, key, "a list of strings", *node);
  return good ? out : std::vector<std::string>{};
}

std::vector<int64_t> JsonObject::IntOrInts(std::string_view key) const {
  const Json* node = Node(node_, key);
  if (node == nullptr) return {};
  if (node->is_array()) return Ints(key);
  int64_t value = 0;
  if (!ReadInt(*node, value)) {
    Wrong(*document_, path_, key, "an integer or a list of integers", *node);
    return {};
  }
  return {value};
}

Status JsonObject::status() const { return document_ == nullptr ? Status::Ok() : document_->status; }

}  // namespace fluvial::weights
