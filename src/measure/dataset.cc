// SPDX-License-Identifier: Apache-2.0
#include "measure/dataset.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace fluvial::measure {
namespace {

using Json = nlohmann::json;

Status Damaged(const std::string& path, const std::string& why) {
  return Status::UnusableModel("'" + path + "' " + why);
}

}  // namespace

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in) return Damaged(path, "cannot be read");
  return std::move(text).str();
}

Result<std::vector<BenchPrompt>> RandomPrompts(const text::Tokenizer& tokenizer, const RandomShape& shape,
                                               int64_t count, uint64_t seed) {
  if (shape.input_len < 1 || shape.output_len < 1 || shape.prefix_len < 0) {
    return Status::InvalidArgument("lengths of random prompts must be at least 1 (prefix: 0)");
  }
  if (!(shape.range_ratio >= 0 && shape.range_ratio < 1)) {
    return Status::InvalidArgument("--random-range-ratio must be at least 0 and below 1");
  }
  std::vector<int32_t> ordinary;
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab_size()); ++id) {
    if (!tokenizer.IsSpecial(id) && !tokenizer.TokenBytes(id).empty()) ordinary.push_back(id);
  }
  if (ordinary.empty()) return Status::UnusableModel("the tokenizer has no ordinary tokens");
  std::mt19937_64 random(seed);
  const auto draw = [&](std::vector<int32_t>& ids, int64_t n) {
    for (int64_t i = 0; i < n; ++i) ids.push_back(ordinary[random() % ordinary.size()]);
  };
  const auto length = [&](int64_t around) {
    const auto low = static_cast<int64_t>(std::floor(static_cast<double>(around) * (1 - shape.range_ratio)));
    const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(around) * (1 + shape.range_ratio)));
    return std::max<int64_t>(1, std::uniform_int_distribution<int64_t>(low, high)(random));
  };
  std::vector<int32_t> prefix;
  draw(prefix, shape.prefix_len);
  std::vector<BenchPrompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    BenchPrompt p;
    p.ids = prefix;
    draw(p.ids, length(shape.input_len));
    p.text = tokenizer.Decode(p.ids);
    p.prompt_tokens = static_cast<int64_t>(p.ids.size());
    p.max_tokens = length(shape.output_len);
    prompts.push_back(std::move(p));
  }
  return prompts;
}

Result<std::vector<BenchPrompt>> CustomPrompts(const std::string& path, int64_t output_len, int64_t count) {
  FLUVIAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::istringstream lines(text);
  std::vector<BenchPrompt> all;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json j = Json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains("prompt") || !j["prompt"].is_string()) {
      return Damaged(path, "line " + std::to_string(number) + R"( is not {"prompt": TEXT})");
    }
    BenchPrompt p;
    p.text = j["prompt"].get<std::string>();
    p.max_tokens = output_len;
    if (j.contains("output_tokens") && j["output_tokens"].is_number_integer()) p.max_tokens = j["output_tokens"];
    if (p.max_tokens < 1) return Damaged(path, "line " + std::to_string(number) + ": output_tokens must be at least 1");
    all.push_back(std::move(p));
  }
  if (all.empty()) return Damaged(path, "has no prompts");
  std::vector<BenchPrompt> prompts;
  for (int64_t i = 0; i < count; ++i) prompts.push_back(all[static_cast<size_t>(i) % all.size()]);
  return prompts;
}

Result<std::vector<BenchPrompt>> ShareGptPrompts(const std::string& path, const text::Tokenizer& tokenizer,
                                                 int64_t output_len, int64_t count, uint64_t seed) {
  FLUVIAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Json list = Json::parse(text, nullptr, false);
  if (!list.is_array()) return Damaged(path, "is not a JSON list of conversations");
  std::vector<const Json*> order;
  for (const Json& j : list) order.push_back(&j);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<BenchPrompt> prompts;
  for (const Json* entry : order) {
    if (static_cast<int64_t>(prompts.size()) == count) break;
    if (!entry->is_object() || !entry->contains("conversations")) continue;
    const Json& turns = (*entry)["conversations"];
    const auto is_turn = [](const Json& t) { return t.is_object() && t.contains("value") && t["value"].is_string(); };
    if (!turns.is_array() || turns.size() < 2 || !is_turn(turns[0]) || !is_turn(turns[1])) continue;
    BenchPrompt p;
    p.text = turns[0]["value"].get<std::string>();
    FLUVIAL_ASSIGN_OR_RETURN(const auto prompt_ids, tokenizer.Encode(p.text));
    FLUVIAL_ASSIGN_OR_RETURN(const auto answer_ids, tokenizer.Encode(turns[1]["value"].get<std::string>()));
    p.prompt_tokens = static_cast<int64_t>(prompt_ids.size());
    p.max_tokens = output_len > 0 ? output_len : static_cast<int64_t>(answer_ids.size());
    if (p.prompt_tokens < 4 || (output_len <= 0 && p.max_tokens < 4)) continue;
    if (p.prompt_tokens > 1024 || p.prompt_tokens + p.max_tokens > 2048) continue;
    prompts.push_back(std::move(p));
  }
  if (prompts.empty()) return Damaged(path, "has no conversation of a usable length");
  const size_t unique = prompts.size();
  for (size_t i = 0; static_cast<int64_t>(prompts.size()) < count; ++i) prompts.push_back(prompts[i % unique]);
  return prompts;
}

Result<std::string> ImageUrl(const std::string& path) {
  FLUVIAL_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  static constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const bool jpeg = bytes.starts_with("\xFF\xD8");
  std::string url = jpeg ? "data:image/jpeg;base64," : "data:image/png;base64,";
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k) three = three << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) url += i + k > bytes.size() ? '=' : kLetters[three >> (18 - 6 * k) & 63];
  }
  return url;
}

}  // namespace fluvial::measure
