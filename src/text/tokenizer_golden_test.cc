// SPDX-License-Identifier: Apache-2.0
// Every stored text against what Hugging Face tokenizers and tiktoken made of it (tools/golden/make_tokenizer.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace fluvial::text {
namespace {

using Json = nlohmann::json;

const std::filesystem::path kDirectory = std::filesystem::path(FLUVIAL_SOURCE_DIR) / "tests/golden/tokenizer";
const std::vector<std::string> kNames = {"qwen3", "qwen35", "glm", "odd", "kimi"};

const Json& Golden() {
  static const Json json = Json::parse(std::ifstream(kDirectory / "cases.json"));
  return json;
}

const Tokenizer& Get(const std::string& name) {
  static std::map<std::string, Tokenizer> loaded;
  auto it = loaded.find(name);
  if (it == loaded.end()) {
    auto tokenizer = Tokenizer::Load(kDirectory / name);
    if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
    it = loaded.emplace(name, std::move(tokenizer).value()).first;
  }
  return it->second;
}

std::vector<TokenId> Encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, DecodeOptions options) {
  StreamDecoder stream(tokenizer, options);
  std::string out;
  for (const TokenId id : ids) out += stream.Push(id);
  return out + stream.Finish();
}

TEST(TokenizerGolden, HasEnoughCases) {
  EXPECT_GE(Golden()["cases"].size(), 300u);
  EXPECT_GE(Golden()["id_cases"].size(), 200u);
  EXPECT_GE(Golden()["long_cases"].size(), 10u);
}

TEST(TokenizerGolden, EncodesAsTheReferences) {
  for (const Json& item : Golden()["cases"]) {
    const auto text = item["text"].get<std::string>();
    for (const std::string& name : kNames) {
      const auto want = item["ids"][name].get<std::vector<TokenId>>();
      EXPECT_EQ(Encode(Get(name), text), want) << name << ": " << item["text"].dump(-1, ' ', true);
    }
  }
}

TEST(TokenizerGolden, LeavesSpecialTokensAloneWhenAsked) {
  int different = 0;
  for (const Json& item : Golden()["cases"]) {
    const auto text = item["text"].get<std::string>();
    for (const std::string& name : kNames) {
      const bool differs = item["plain"].contains(name);
      different += differs;
      const auto want = (differs ? item["plain"] : item["ids"])[name].get<std::vector<TokenId>>();
      EXPECT_EQ(Encode(Get(name), text, {.parse_special = false}), want)
          << name << ": " << item["text"].dump(-1, ' ', true);
    }
  }
  EXPECT_GT(different, 20);
}

TEST(TokenizerGolden, DecodesAsTheReferences) {
  for (const Json& item : Golden()["cases"]) {
    for (const std::string& name : kNames) {
      const auto ids = item["ids"][name].get<std::vector<TokenId>>();
      for (const bool skip : {false, true}) {
        const char* key = skip ? "skip" : "keep";
        std::string want = item["text"].get<std::string>();
        if (item["decoded"].contains(name) && item["decoded"][name].contains(key)) {
          want = item["decoded"][name][key].get<std::string>();
        }
        EXPECT_EQ(Get(name).Decode(ids, {.skip_special_tokens = skip}), want) << name << " " << key;
        EXPECT_EQ(Stream(Get(name), ids, {.skip_special_tokens = skip}), want) << name << " " << key;
      }
    }
  }
}

TEST(TokenizerGolden, DecodesAnyIdsAsTheReferences) {
  int broken = 0;
  for (const Json& item : Golden()["id_cases"]) {
    const auto name = item["tokenizer"].get<std::string>();
    const auto ids = item["ids"].get<std::vector<TokenId>>();
    for (const bool skip : {false, true}) {
      const auto want = item[skip ? "skip" : "keep"].get<std::string>();
      broken += want.find("\xEF\xBF\xBD") != std::string::npos;
      EXPECT_EQ(Get(name).Decode(ids, {.skip_special_tokens = skip}), want) << item.dump(-1, ' ', true);
      EXPECT_EQ(Stream(Get(name), ids, {.skip_special_tokens = skip}), want) << item.dump(-1, ' ', true);
    }
  }
  EXPECT_GT(broken, 50);
}

TEST(TokenizerGolden, EncodesLongTextsAsTheReferences) {
  for (const Json& item : Golden()["long_cases"]) {
    std::string text;
    for (int i = 0; i < item["count"].get<int>(); ++i) text += item["unit"].get<std::string>();
    text += item["tail"].get<std::string>();
    for (const std::string& name : kNames) {
      const std::vector<TokenId> ids = Encode(Get(name), text);
      uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a, as in make_tokenizer.py
      for (const TokenId id : ids) {
        for (int shift = 0; shift < 32; shift += 8) {
          hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3ull;
        }
      }
      EXPECT_EQ(ids.size(), item["ids"][name]["count"].get<size_t>())
          << name << " " << item["unit"].dump(-1, ' ', true);
      EXPECT_EQ(std::to_string(hash), item["ids"][name]["fnv1a"].get<std::string>())
          << name << " " << item["unit"].dump(-1, ' ', true);
    }
  }
}

TEST(TokenizerGolden, EncodeThenDecodeGivesTheNormalText) {
  for (const Json& item : Golden()["cases"]) {
    const auto text = item["text"].get<std::string>();
    std::string normal;
    ASSERT_TRUE(AppendNormalized(NormalForm::kNfc, text, &normal).ok());
    for (const std::string name : {"qwen3", "qwen35", "glm", "kimi"}) {
      const bool normalizes = name.starts_with("qwen");
      const std::vector<TokenId> plain = Encode(Get(name), text, {.parse_special = false});
      EXPECT_EQ(Get(name).Decode(plain, {.skip_special_tokens = false}), normalizes ? normal : text) << name;
    }
  }
}

}  // namespace
}  // namespace fluvial::text
