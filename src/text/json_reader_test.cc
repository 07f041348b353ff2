// SPDX-License-Identifier: Apache-2.0
#include "text/json_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace fluvial::text {
namespace {

TEST(JsonReader, WalksContainers) {
  JsonReader reader(R"( {"a" : [1, [2], "x"], "b":{}, "c" : [] , "d": null} )", "test");
  std::string_view key;
  std::vector<std::string> keys;
  uint32_t number = 0;
  ASSERT_TRUE(reader.EnterObject());
  while (reader.NextMember(&key)) {
    keys.emplace_back(key);
    if (keys.back() == "a") {
      ASSERT_TRUE(reader.EnterArray());
      ASSERT_TRUE(reader.NextElement());
      ASSERT_TRUE(reader.Unsigned(&number));
      EXPECT_EQ(number, 1u);
      ASSERT_TRUE(reader.NextElement());
      EXPECT_EQ(reader.Peek(), JsonReader::Kind::kArray);
      std::string_view raw;
      ASSERT_TRUE(reader.Skip(&raw));
      EXPECT_EQ(raw, "[2]");
      ASSERT_TRUE(reader.NextElement());
      std::string_view text;
      ASSERT_TRUE(reader.String(&text));
      EXPECT_EQ(text, "x");
      EXPECT_FALSE(reader.NextElement());
    } else if (keys.back() == "b") {
      ASSERT_TRUE(reader.EnterObject());
      EXPECT_FALSE(reader.NextMember(&key));
    } else if (keys.back() == "c") {
      ASSERT_TRUE(reader.EnterArray());
      EXPECT_FALSE(reader.NextElement());
    } else {
      EXPECT_EQ(reader.Peek(), JsonReader::Kind::kNull);
      ASSERT_TRUE(reader.Skip());
    }
  }
  EXPECT_TRUE(reader.AtEnd());
  EXPECT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(keys, (std::vector<std::string>{"a", "b", "c", "d"}));
}

TEST(JsonReader, DecodesEscapes) {
  JsonReader reader(R"(["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u4e2d\ud83d\ude00", "plain\u0120"])", "test");
  std::string_view text;
  ASSERT_TRUE(reader.EnterArray());
  ASSERT_TRUE(reader.NextElement());
  ASSERT_TRUE(reader.String(&text));
  EXPECT_EQ(text, "\"\\/\b\f\n\r\t");
  ASSERT_TRUE(reader.NextElement());
  ASSERT_TRUE(reader.String(&text));
  EXPECT_EQ(text, "A\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80");
  ASSERT_TRUE(reader.NextElement());
  ASSERT_TRUE(reader.String(&text));
  EXPECT_EQ(text, "plain\xC4\xA0");
  EXPECT_FALSE(reader.NextElement());
  EXPECT_TRUE(reader.ok());
}

TEST(JsonReader, BadStringsAreErrors) {
  for (const std::string_view bad : {R"("abc)", R"("a\)", R"("a\x")", R"("\u12")", R"("\u12G4")", R"("\ud83d")",
                                     R"("\ud83dx")", R"("\ud83dA")", R"("\ude00")", "\"a\nb\"", "abc", ""}) {
    JsonReader reader(bad, "test");
    std::string_view text;
    EXPECT_FALSE(reader.String(&text)) << bad;
    EXPECT_FALSE(reader.ok()) << bad;
    EXPECT_EQ(reader.status().code(), Code::kUnusableModel);
    EXPECT_FALSE(reader.Skip()) << "an error must stick";
  }
}

TEST(JsonReader, BadNumbersAreErrors) {
  for (const std::string_view bad : {"-1", "1.5", "1e3", "4294967296", "99999999999999999999", "x", "\"1\"", ""}) {
    JsonReader reader(bad, "test");
    uint32_t number = 0;
    EXPECT_FALSE(reader.Unsigned(&number)) << bad;
  }
  JsonReader reader("4294967295", "test");
  uint32_t number = 0;
  EXPECT_TRUE(reader.Unsigned(&number));
  EXPECT_EQ(number, 4294967295u);
}

TEST(JsonReader, BadStructureIsAnError) {
  std::string deep(300, '[');
  for (const std::string bad : {"{\"a\":[1,2}", "[1", "{\"a\" 1}", "{\"a\":}", "{,}", "]", deep.c_str(), "nul", ""}) {
    JsonReader reader(bad, "test");
    std::string_view key;
    bool failed = false;
    if (reader.Peek() == JsonReader::Kind::kObject) {
      reader.EnterObject();
      while (reader.NextMember(&key)) reader.Skip();
    } else {
      reader.Skip();
    }
    failed = !reader.ok() || !reader.AtEnd();
    EXPECT_TRUE(failed) << bad;
  }
  JsonReader reader("1 2", "test");
  EXPECT_TRUE(reader.Skip());
  EXPECT_FALSE(reader.AtEnd());
}

TEST(JsonReader, MessageNamesFileAndPlace) {
  JsonReader reader("{\"a\" 1}", "tokenizer.json");
  std::string_view key;
  ASSERT_TRUE(reader.EnterObject());
  EXPECT_FALSE(reader.NextMember(&key));
  EXPECT_NE(reader.status().message().find("tokenizer.json: a colon was expected at byte 5"), std::string::npos)
      << reader.status().message();
}

}  // namespace
}  // namespace fluvial::text
