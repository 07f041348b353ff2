// SPDX-License-Identifier: Apache-2.0
// Tokenizers small enough to follow by hand, bad files, and properties that hold for every text.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "text/stream_decoder.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<TokenId>;

// 256 bytes (ids = the alphabet in byte order), then "ab", "abc", "bc", "de", "cde".
Json Small() {
  Json vocab = Json::object();
  int extra = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool self = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    std::string key;
    AppendUtf8(static_cast<char32_t>(self ? byte : extra++), &key);
    vocab[key] = byte;
  }
  int next = 256;
  for (const char* token : {"bc", "ab", "abc", "de", "cde"}) vocab[token] = next++;
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 300}, {"content", "<s>"}, {"special", true}, {"normalized", false}},
            {{"id", 302}, {"content", "<think>"}, {"special", false}, {"normalized", false}}}},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"b c", "a b", "ab c", "d e", "c de"}}}}};
}

Result<Tokenizer> From(const Json& json, std::string_view config = {}) {
  return Tokenizer::FromTokenizerJson(json.dump(), config);
}

Tokenizer Made(const Json& json, std::string_view config = {}) {
  auto tokenizer = From(json, config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer t = Made(Small());
  EXPECT_EQ(Encode(t, "abc"), (Ids{'a', 256}));  // "b c" has the lowest rank, and "a" + "bc" is no pair
  EXPECT_EQ(Encode(t, "ab"), (Ids{257}));
  EXPECT_EQ(Encode(t, "abab"), (Ids{257, 257}));
  EXPECT_EQ(Encode(t, "bcde"), (Ids{256, 259}));
  EXPECT_EQ(Encode(t, "acde"), (Ids{'a', 260}));
}

TEST(Tokenizer, IgnoreMergesTakesWholePieces) {
  Json json = Small();
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Encode(Made(json), "abc"), (Ids{258}));
  EXPECT_EQ(Encode(Made(json), "abcd"), (Ids{'a', 256, 'd'}));
}

TEST(Tokenizer, MergesAsArraysAndAsStringsAreEqual) {
  Json json = Small();
  json["model"]["merges"] = Json::array();
  for (const auto& [a, b] : {std::pair("b", "c"), {"a", "b"}, {"ab", "c"}, {"d", "e"}, {"c", "de"}}) {
    json["model"]["merges"].push_back({a, b});
  }
  for (const char* text : {"abc", "ab", "bcde", "acde", "abcabcde"}) {
    EXPECT_EQ(Encode(Made(json), text), Encode(Made(Small()), text));
  }
}

TEST(Tokenizer, LongAndShortWordsUseTheSameRule) {
  const Tokenizer t = Made(Small());
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    // A short word, and the same behind 'z's that merge with nothing: the long one takes the heap.
    std::string word;
    for (size_t i = 0, n = 1 + random() % 30; i < n; ++i) word += static_cast<char>('a' + random() % 5);
    Ids want(100, 'z');
    const Ids tail = Encode(t, word);
    want.insert(want.end(), tail.begin(), tail.end());
    EXPECT_EQ(Encode(t, std::string(100, 'z') + word), want) << word;
  }
}

TEST(Tokenizer, AddedTokensAndTheirOptions) {
  const Tokenizer t = Made(Small());
  EXPECT_EQ(Encode(t, "a<s>b"), (Ids{'a', 300, 'b'}));
  EXPECT_EQ(Encode(t, "<s>", {.parse_special = false}), (Ids{'<', 's', '>'}));
  EXPECT_EQ(Encode(t, "<think>", {.parse_special = false}), (Ids{302}));
  EXPECT_EQ(t.Decode(Ids{300, 'a', 302}), "a<think>");
  EXPECT_EQ(t.Decode(Ids{300, 'a', 302}, {.skip_special_tokens = false}), "<s>a<think>");
  EXPECT_TRUE(t.IsSpecial(300));
  EXPECT_FALSE(t.IsSpecial(302));
  EXPECT_EQ(t.TokenToId("<s>"), 300);
  EXPECT_EQ(t.TokenToId("abc"), 258);
  EXPECT_EQ(t.TokenToId("nope"), std::nullopt);
  EXPECT_EQ(t.TokenToId("\xFF"), std::nullopt);
  EXPECT_EQ(t.vocab_size(), 303u);
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  const Tokenizer t = Made(Small());
  EXPECT_EQ(t.Decode(Ids{'a', 261, 299, 301, 303, 1 << 30, -1, -2147483647 - 1, 'b'}), "ab");
  EXPECT_EQ(t.TokenBytes(301), "");
  EXPECT_FALSE(t.IsSpecial(-1));
  StreamDecoder stream(t);
  EXPECT_EQ(stream.Push(-5) + stream.Push(1 << 30) + stream.Finish(), "");
}

TEST(Tokenizer, InvalidUtf8IsReplaced) {
  const Tokenizer t = Made(Small());
  EXPECT_EQ(Encode(t,
                   "a\xFF"
                   "b"),
            Encode(t,
                   "a\xEF\xBF\xBD"
                   "b"));
  EXPECT_EQ(Encode(t, "\xF0\x9F\x98"), Encode(t, "\xEF\xBF\xBD"));
}

TEST(Tokenizer, BytesWithoutATokenVanish) {
  Json json = Small();
  json["model"]["vocab"].erase("z");
  EXPECT_EQ(Encode(Made(json), "azb"), (Ids{257}));
  EXPECT_EQ(Encode(Made(json), "z"), Ids{});
  EXPECT_EQ(Encode(Made(json), std::string(100, 'z') + "ab"), (Ids{257}));
}

TEST(Tokenizer, ConfigAddsAndOverridesTokens) {
  const Tokenizer t = Made(Small(), R"({
    "added_tokens_decoder": {"300": {"content": "<s>", "special": false}, "310": {"content": "<new>", "special": true}},
    "bos_token": "<s>", "eos_token": {"content": "<new>"}, "pad_token": null})");
  EXPECT_FALSE(t.IsSpecial(300));
  EXPECT_EQ(Encode(t, "<new>"), (Ids{310}));
  EXPECT_EQ(t.special_tokens(), (std::map<std::string, std::string>{{"bos_token", "<s>"}, {"eos_token", "<new>"}}));
}

TEST(Tokenizer, TemplateAddsTokensAroundTheText) {
  Json json = Small();
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {300}}}}}}};
  EXPECT_EQ(Encode(Made(json), "ab"), (Ids{300, 257}));
  EXPECT_EQ(Encode(Made(json), "ab", {.add_special_tokens = false}), (Ids{257}));
}

// What must be refused, and the field that the message must name.
TEST(Tokenizer, RefusalsNameTheField) {
  const std::pair<const char*, const char*> edits[] = {
      {R"({"model": {"type": "Unigram"}})", "model.type is 'Unigram'"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout"},
      {R"({"model": {"byte_fallback": true}})", "model.byte_fallback"},
      {R"({"model": {"continuing_subword_prefix": "##"}})", "model.continuing_subword_prefix"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})", "model.end_of_word_suffix"},
      {R"({"model": {"merges": ["a b c"]}})", "model.merges[0]"},
      {R"({"model": {"merges": [["a", "b", "c"]]}})", "model.merges[0]"},
      {R"({"model": {"merges": ["a b", "a q"]}})", "model.merges[1] needs the token 'aq'"},
      {R"({"model": {"merges": [7]}})", "model.merges"},
      {R"({"model": {"vocab": {"a": 0, "b": 0}}})", "model.vocab"},
      {R"({"model": {"vocab": {"a": 4294967295}}})", "model.vocab"},
      {R"({"model": {"vocab": {"a": -1}}})", "model.vocab"},
      {R"({"model": {"vocab": [1]}})", "model.vocab"},
      {R"({"normalizer": {"type": "Lowercase"}})", "normalizer is of type 'Lowercase'"},
      {R"({"pre_tokenizer": null})", "pre_tokenizer"},
      {R"({"pre_tokenizer": {"type": "Metaspace"}})", "pre_tokenizer is of type 'Metaspace'"},
      {R"({"pre_tokenizer": {"add_prefix_space": true}})", "pre_tokenizer.add_prefix_space"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&[b]]"}, "behavior": "Isolated"}})", "'&&'"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a*"}, "behavior": "Isolated"}})", "empty"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext"}})", "behavior"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {}, "behavior": "Isolated"}})", "pre_tokenizer.pattern"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": 1}})", "pre_tokenizer.pretokenizers"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}})", "has no ByteLevel"},
      {R"({"decoder": {"type": "WordPiece"}})", "decoder is of type 'WordPiece'"},
      {R"({"decoder": null})", "decoder"},
      {R"({"post_processor": {"type": "BertProcessing"}})", "post_processor is of type 'BertProcessing'"},
      {R"({"added_tokens": [{"id": 5}]})", "added_tokens[0]"},
      {R"({"added_tokens": [{"id": -5, "content": "x"}]})", "added_tokens[0]"},
      {R"({"added_tokens": [{"id": 7, "content": "<x>"}]})", "'<x>'"},
      {R"({"added_tokens": [{"id": 400, "content": "ab"}]})", "'ab'"},
      {R"({"added_tokens": [{"id": 400, "content": "<x>"}, {"id": 400, "content": "<y>"}]})", "'<y>'"},
      {R"({"added_tokens": [{"id": 400, "content": "<x>"}, {"id": 401, "content": "<x>"}]})", "'<x>'"},
  };
  for (const auto& [edit, field] : edits) {
    Json json = Small();
    const Json patch = Json::parse(edit);
    for (const auto& [key, value] : patch.items()) {
      if (!value.is_object() || !json[key].is_object()) {
        json[key] = value;
      } else {
        for (const auto& [inner, inner_value] : value.items()) json[key][inner] = inner_value;
      }
    }
    const auto result = From(json);
    ASSERT_FALSE(result.ok()) << edit;
    EXPECT_EQ(result.status().code(), Code::kUnusableModel) << edit;
    EXPECT_NE(result.status().message().find(field), std::string::npos) << result.status().message();
  }
}

TEST(Tokenizer, DamagedFilesAreRefused) {
  const std::string good = Small().dump();
  ASSERT_TRUE(Tokenizer::FromTokenizerJson(good, "").ok());
  for (size_t cut = 0; cut < good.size(); cut += 7) {
    EXPECT_FALSE(Tokenizer::FromTokenizerJson(good.substr(0, cut), "").ok()) << cut;
  }
  std::string binary = good;
  binary[good.size() / 2] = '\xFF';
  EXPECT_FALSE(Tokenizer::FromTokenizerJson(binary, "").ok());
  EXPECT_FALSE(Tokenizer::FromTokenizerJson(good + "x", "").ok());
  EXPECT_FALSE(Tokenizer::FromTokenizerJson(good, "[1]").ok());
  EXPECT_FALSE(Tokenizer::FromTokenizerJson(good, "{\"added_tokens_decoder\": {\"x\": {\"content\": \"y\"}}}").ok());
  EXPECT_FALSE(Tokenizer::FromTokenizerJson(good, "{\"added_tokens_decoder\": {\"400\": \"y\"}}").ok());
  EXPECT_EQ(Tokenizer::Load("/nowhere/at/all").status().code(), Code::kUnusableModel);
}

TEST(Tiktoken, BadFilesAreRefused) {
  const auto fails = [](std::string_view ranks, const char* why, std::string_view config = "") {
    const auto result = Tokenizer::FromTiktoken(ranks, config);
    ASSERT_FALSE(result.ok()) << ranks;
    EXPECT_NE(result.status().message().find(why), std::string::npos) << result.status().message();
  };
  fails("", "single byte 0");
  fails("YQ== 0\nYg== 2\n", "line 2 has not the rank 1");
  fails("YQ== 0\nYQ== 1\n", "line 2");
  fails("YQ==\n", "line 1");
  fails("Y!== 0\n", "line 1");
  fails("YQ== x\n", "line 1");
  std::ifstream file(std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/tokenizer/kimi/tiktoken.model");
  const std::string good{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_TRUE(Tokenizer::FromTiktoken(good, "").ok());
  fails(good, "'x.TikTokenTokenizer'", R"({"auto_map": {"AutoTokenizer": ["x.TikTokenTokenizer", null]}})");
  for (const char* config : {R"({"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}})",
                             R"({"auto_map": {"AutoTokenizer": "org/repo--tokenization_kimi.TikTokenTokenizer"}})",
                             R"({"auto_map": {"AutoTokenizer": []}})", R"({"auto_map": {}})"}) {
    EXPECT_TRUE(Tokenizer::FromTiktoken(good, config).ok()) << config;
  }
  fails(good, "outside the ids", R"({"added_tokens_decoder": {"5": {"content": "x"}}})");
  fails(good, "'x'", R"({"added_tokens_decoder": {"1600": {"content": "x"}, "1601": {"content": "x"}}})");
}

const char* kAllNames[] = {"qwen3", "qwen35", "glm", "kimi"};

Tokenizer Golden(const char* name) {
  auto tokenizer = Tokenizer::Load(std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/tokenizer/" + name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

std::string RandomText(std::mt19937* random, bool composed_only) {
  std::string text;
  for (size_t i = 0, n = (*random)() % 40; i < n; ++i) {
    char32_t c = 0;
    switch ((*random)() % 5) {
      case 0:
        c = 0x20 + (*random)() % 0x5F;
        break;
      case 1:
        c = 0x4E00 + (*random)() % 0x5000;
        break;
      case 2:
        c = 0x1F300 + (*random)() % 0x200;
        break;
      case 3:
        c = "\n\r\t  "[(*random)() % 5];
        break;
      default:
        c = composed_only ? 0xC0 + (*random)() % 0x40 : 0x300 + (*random)() % 0x2000;
    }
    AppendUtf8(c, &text);
  }
  return text;
}

TEST(TokenizerProperty, DecodeOfEncodeIsTheTextWhenItIsNfc) {
  std::mt19937 random(20261130);
  for (const char* name : kAllNames) {
    const Tokenizer t = Golden(name);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = RandomText(&random, true);
      ASSERT_EQ(t.Decode(Encode(t, text), {.skip_special_tokens = false}), text) << name;
    }
  }
}

TEST(TokenizerProperty, StreamingEqualsDecodeAndNeverSplitsACharacter) {
  std::mt19937 random(7);
  for (const char* name : kAllNames) {
    const Tokenizer t = Golden(name);
    for (int i = 0; i < 2000; ++i) {
      Ids ids;
      if (i % 2 == 0) {
        ids = Encode(t, RandomText(&random, false));
      } else {
        for (size_t k = 0, n = random() % 20; k < n; ++k) {
          ids.push_back(static_cast<TokenId>(random() % (t.vocab_size() + 3)));
        }
      }
      for (const bool skip : {false, true}) {
        // Every prefix is a stream of its own; what a longer one has pushed up to there is the same.
        StreamDecoder stream(t, {.skip_special_tokens = skip});
        std::string pushed;
        for (size_t k = 0; k <= ids.size(); ++k) {
          StreamDecoder prefix = stream;
          ASSERT_EQ(pushed + prefix.Finish(), t.Decode({ids.data(), k}, {.skip_special_tokens = skip})) << name;
          if (k == ids.size()) break;
          const std::string more = stream.Push(ids[k]);
          ASSERT_TRUE(IsValidUtf8(more));
          pushed += more;
        }
      }
    }
  }
}

TEST(TokenizerProperty, StreamHoldsBackPartsOfCharacters) {
  const Tokenizer t = Made(Small());
  StreamDecoder stream(t);
  EXPECT_EQ(stream.Push(0xF0), "");
  EXPECT_EQ(stream.Push(0x9F), "");
  EXPECT_EQ(stream.Push(0x98), "");
  EXPECT_TRUE(stream.holding());
  EXPECT_EQ(stream.Push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_FALSE(stream.holding());
  EXPECT_EQ(stream.Push(0xE4), "");
  EXPECT_EQ(stream.Push('a'),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.Push(0xE4), "");
  EXPECT_EQ(stream.Push(300), "");  // a special token, skipped: the character may still go on
  EXPECT_EQ(stream.Push(0xBD), "");
  EXPECT_EQ(stream.Finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TokenizerProperty, ThreadsShareOneTokenizer) {
  const Tokenizer t = Golden("qwen3");
  std::mt19937 random(3);
  std::vector<std::string> texts;
  std::vector<Ids> want;
  for (int i = 0; i < 300; ++i) {
    texts.push_back(RandomText(&random, false));
    want.push_back(Encode(t, texts.back()));
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&, copy = t] {
      for (size_t i = 0; i < texts.size(); ++i) {
        const auto ids = copy.Encode(texts[i]);
        if (!ids.ok() || *ids != want[i]) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace fluvial::text
