// SPDX-License-Identifier: Apache-2.0
#include "text/regex_dialect.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "text/regex.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

Regex Compiled(std::string_view pattern) {
  auto pcre2 = ToPcre2(pattern);
  EXPECT_TRUE(pcre2.ok()) << pattern << ": " << pcre2.status().message();
  auto regex = Regex::Compile(pcre2.ok() ? *pcre2 : "x");
  EXPECT_TRUE(regex.ok()) << pattern << ": " << regex.status().message();
  return std::move(regex).value();
}

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  const Regex regex = Compiled(pattern);
  Regex::Scratch scratch;
  std::array<Span, 3> spans;  // small, so that a text needs several calls
  std::vector<std::string> out;
  size_t offset = 0, found = 0;
  do {
    auto result = regex.Next(text, &offset, spans, &scratch);
    EXPECT_TRUE(result.ok()) << result.status().message();
    found = result.ok() ? *result : 0;
    for (size_t i = 0; i < found; ++i) out.emplace_back(text.substr(spans[i].begin, spans[i].end - spans[i].begin));
  } while (found == spans.size());
  return out;
}

size_t CountMatching(std::string_view pattern) {
  const Regex regex = Compiled(pattern);
  Regex::Scratch scratch;
  std::array<Span, 1> spans;
  size_t count = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    size_t offset = 0;
    const auto found = regex.Next(text, &offset, spans, &scratch);
    count += found.ok() && *found == 1;
  }
  return count;
}

// Sizes of the sets in Unicode 16, as Oniguruma (tokenizers 0.23.3) and Rust's regex (tiktoken 0.14.0) have them.
TEST(RegexDialect, PropertiesAreThoseOfUnicode16) {
  EXPECT_EQ(CountMatching("\\p{L}"), 141028u);
  EXPECT_EQ(CountMatching("\\p{M}"), 2501u);
  EXPECT_EQ(CountMatching("\\p{N}"), 1911u);
  EXPECT_EQ(CountMatching("\\p{P}"), 855u);
  EXPECT_EQ(CountMatching("\\p{S}"), 8514u);
  EXPECT_EQ(CountMatching("\\p{Lu}"), 1858u);
  EXPECT_EQ(CountMatching("\\p{Ll}"), 2258u);
  EXPECT_EQ(CountMatching("\\p{Lt}"), 31u);
  EXPECT_EQ(CountMatching("\\p{Lm}"), 404u);
  EXPECT_EQ(CountMatching("\\p{Lo}"), 136477u);
  EXPECT_EQ(CountMatching("\\d"), 760u);
  EXPECT_EQ(CountMatching("\\p{Han}"), 99030u);
  EXPECT_EQ(CountMatching("\\s"), 25u);
  EXPECT_EQ(CountMatching("\\S"), 0x110000u - 0x800 - 25);
  EXPECT_EQ(CountMatching("[^\\s\\p{L}\\p{N}]"), 0x110000u - 0x800 - 25 - 141028 - 1911);
}

TEST(RegexDialect, SpacesAreUnicodeWhiteSpace) {
  EXPECT_EQ(Matches("\\s+",
                    "a\xE1\xA0\x8E"
                    "b"),
            std::vector<std::string>{});  // U+180E is a space to PCRE2 alone
  EXPECT_EQ(Matches("\\s+",
                    "a\xC2\x85"
                    "b"),
            std::vector<std::string>{"\xC2\x85"});
}

TEST(RegexDialect, HanIsTheScriptNotItsExtensions) {
  EXPECT_EQ(Matches("\\p{Han}+", "\xE4\xB8\xAD\xE3\x80\x82\xE6\x96\x87"),
            (std::vector<std::string>{"\xE4\xB8\xAD", "\xE6\x96\x87"}));
}

TEST(RegexDialect, KimiIntersectionExcludesHan) {
  ASSERT_NE(KimiPattern().find("&&"), std::string_view::npos);
  EXPECT_EQ(Matches(KimiPattern(),
                    "abc\xE4\xB8\xAD\xE6\x96\x87"
                    "Def's 1234"),
            (std::vector<std::string>{"abc", "\xE4\xB8\xAD\xE6\x96\x87", "Def's", " ", "123", "4"}));
  EXPECT_EQ(Matches(KimiPattern(), "XMLHttp"), (std::vector<std::string>{"XMLHttp"}));
  EXPECT_EQ(Matches(KimiPattern(), "camelCase"), (std::vector<std::string>{"camel", "Case"}));
}

TEST(RegexDialect, CaselessContractionsFoldLongS) {
  EXPECT_EQ(Matches("(?i:'s|'t)", "x's X'S '\xC5\xBF 'T"), (std::vector<std::string>{"'s", "'S", "'\xC5\xBF", "'T"}));
}

TEST(RegexDialect, RefusesWhatItDoesNotKnow) {
  const std::pair<const char*, const char*> cases[] = {
      {"[a-z&&[^x]]", "'&&'"},
      {"[[:alpha:]]", "class within a class"},
      {"\\bfoo", "'\\b'"},
      {"\\w+", "'\\w'"},
      {"^a", "'^'"},
      {"a$", "'$'"},
      {"a.c", "'.'"},
      {"\\p{Greek}", "'Greek'"},
      {"(?<n>a)", "'(?<n'"},
      {"(?i)a", "'(?i)'"},
      {"a{2}+", "'}+'"},
      {"a{2}?", "'}?'"},
      {"a{,3}", "'{'"},
      {"(a", "does not end"},
      {"a)", "closing bracket"},
      {"[a", "does not end"},
      {"(?i:[a])", "caseless"},
      {"(?i:\\p{L})", "caseless"},
      {"[\\S]", "'\\S'"},
      {"[]a]", "first character"},
      {"\\R", "'\\R'"},
      {"(*UCP)a", "'(*UC'"},
      {"a\\", "'\\"},
  };
  for (const auto& [pattern, construct] : cases) {
    const auto result = ToPcre2(pattern);
    ASSERT_FALSE(result.ok()) << pattern;
    EXPECT_EQ(result.status().code(), Code::kUnusableModel);
    EXPECT_NE(result.status().message().find(construct), std::string::npos) << result.status().message();
  }
}

TEST(RegexDialect, LiteralsAreLiteral) {
  const auto regex = Regex::Compile(LiteralToPcre2("a.b(\xC3\xA9)*"));
  ASSERT_TRUE(regex.ok());
  Regex::Scratch scratch;
  std::array<Span, 2> spans;
  size_t offset = 0;
  const auto found = regex->Next("axb a.b(\xC3\xA9)*", &offset, spans, &scratch);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(*found, 1u);
  EXPECT_EQ(spans[0], (Span{4, 12}));
}

TEST(Regex, RefusesBadAndEmptyPatterns) {
  EXPECT_FALSE(Regex::Compile("(").ok());
  const auto empty = Regex::Compile("a*");
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.status().message().find("empty"), std::string::npos);
}

TEST(Regex, LongWordsWithGroupsFitTheStack) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "\xE0\xB8\x81";  // Lo: both letter classes of the pattern match it
  EXPECT_EQ(Matches(KimiPattern(), text).size(), 1u);
}

}  // namespace
}  // namespace fluvial::text
