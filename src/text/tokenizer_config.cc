// SPDX-License-Identifier: Apache-2.0
// tokenizer_config.json: added tokens and the names of special tokens.
#include <charconv>
#include <nlohmann/json.hpp>

#include "text/tokenizer_data.h"

namespace fluvial::text {
namespace {

using Json = nlohmann::json;

// A token's content: a string, or an object with `content`.
const std::string* ContentOf(const Json& value) {
  if (value.is_string()) return value.get_ptr<const std::string*>();
  if (!value.is_object()) return nullptr;
  const auto it = value.find("content");
  return it != value.end() && it->is_string() ? it->get_ptr<const std::string*>() : nullptr;
}

bool Flag(const Json& object, const char* name, bool fallback) {
  const auto it = object.find(name);
  return it != object.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

}  // namespace

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view text) {
  TokenizerConfig config;
  if (text.empty()) return config;
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return Status::UnusableModel("tokenizer_config.json is not a JSON object; fetch the file again");
  }
  if (const auto it = json.find("added_tokens_decoder"); it != json.end() && it->is_object()) {
    for (const auto& [key, value] : it->items()) {
      const std::string* content = ContentOf(value);
      AddedToken token;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
      if (content == nullptr || !value.is_object() || error != std::errc() || end != key.data() + key.size()) {
        return Status::UnusableModel("tokenizer_config.json: added_tokens_decoder['" + key +
                                     "'] must have a token id as its key and an object with content as its value");
      }
      token.content = *content;
      token.special = Flag(value, "special", false);
      token.single_word = Flag(value, "single_word", false);
      token.lstrip = Flag(value, "lstrip", false);
      token.rstrip = Flag(value, "rstrip", false);
      token.normalized = Flag(value, "normalized", !token.special);
      config.added_tokens.push_back(std::move(token));
    }
  }
  if (const auto map = json.find("auto_map"); map != json.end() && map->is_object()) {
    const auto it = map->find("AutoTokenizer");
    // A string, or [slow class, fast class or null].
    const Json* slow = it == map->end() ? nullptr : it->is_array() && !it->empty() ? &it->front() : &*it;
    if (slow != nullptr && slow->is_string()) config.remote_class = slow->get<std::string>();
  }
  for (const auto& [key, value] : json.items()) {
    if (!key.ends_with("_token")) continue;
    if (const std::string* content = ContentOf(value)) config.special_tokens[key] = *content;
  }
  return config;
}

}  // namespace fluvial::text
