// SPDX-License-Identifier: Apache-2.0
// Reading JSON files of a checkpoint. Internal to this room's .cc files; the JSON library stays behind it.
//
// A JsonObject answers typed questions and remembers the first answer that had the wrong type, so that a config
// reader can ask for all its keys in a row and check once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fluvial/status.h"

namespace fluvial::weights {

/// Member `key` of the JSON object in `text`, itself an object of strings. Anything else is kUnusableModel.
Status ReadStringMap(const std::string& text, const std::string& file, const char* key,
                     std::map<std::string, std::string>& out);

/// A JSON object inside a parsed document. Copies share the document.
class JsonObject {
 public:
  struct Document;

  /// Parses `text`; `file` names it in messages. Duplicate keys: the last one counts, as in Python.
  static Result<JsonObject> Parse(const std::string& text, const std::string& file);

  /// True when the key is there and not null.
  bool Has(std::string_view key) const;
  /// True when the key is there and null.
  bool IsNull(std::string_view key) const;
  /// The nested object; an empty one when absent.
  JsonObject Object(std::string_view key) const;

  // Value or fallback. A value of another type, or an integer outside [low, high], is remembered as an error.
  int64_t Int(std::string_view key, int64_t fallback, int64_t low = 0, int64_t high = int64_t{1} << 40) const;
  double Float(std::string_view key, double fallback) const;
  bool Bool(std::string_view key, bool fallback) const;
  std::string String(std::string_view key, std::string_view fallback = "") const;
  std::vector<int64_t> Ints(std::string_view key) const;
  std::vector<std::string> Strings(std::string_view key) const;
  /// An integer or an array of integers (eos_token_id).
  std::vector<int64_t> IntOrInts(std::string_view key) const;

  /// The first wrong answer of the whole document, or ok.
  Status status() const;

 private:
  std::shared_ptr<Document> document_;
  const void* node_ = nullptr;  // nlohmann::json object, or nullptr for "absent"
  std::string path_;            // "text_config." for messages
};

}  // namespace fluvial::weights
