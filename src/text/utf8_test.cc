// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <vector>

#include "text/byte_level.h"
#include "text/unicode.h"

namespace fluvial::text {
namespace {

using Kind = Utf8Head::Kind;

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    const Utf8Head head = DecodeHead(text);
    ASSERT_EQ(head.kind, Kind::kCharacter) << static_cast<uint32_t>(c);
    ASSERT_EQ(head.length, text.size()) << static_cast<uint32_t>(c);
    ASSERT_EQ(head.code_point, c);
    size_t offset = 0;
    ASSERT_EQ(DecodeValid(text, &offset), c);
    ASSERT_EQ(offset, text.size());
    ASSERT_EQ(DecodeValidBefore("a" + text, 1 + text.size()), c);
  }
}

TEST(Utf8, IllFormedBytesAreInvalidOrIncomplete) {
  const auto kind = [](std::string_view bytes) { return DecodeHead(bytes).kind; };
  for (const std::string_view bytes : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xF5\x80\x80\x80", "\xFF",
                                       "\xC3"
                                       "a",
                                       "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80",
                                       "\xE4\xBD"
                                       "a",
                                       "\xF0\x9F\x98"
                                       "a"}) {
    EXPECT_EQ(kind(bytes), Kind::kInvalid) << testing::PrintToString(bytes);
  }
  for (const std::string_view bytes : {"\xC3", "\xE4", "\xE4\xBD", "\xF0", "\xF0\x9F", "\xF0\x9F\x98", "\xED\x9F"}) {
    EXPECT_EQ(kind(bytes), Kind::kIncomplete) << testing::PrintToString(bytes);
  }
}

// The table of the Unicode Standard, section 3.9, "U+FFFD Substitution of Maximal Subparts", and its neighbours.
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r(kReplacement);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},
      {"plain", "plain"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
       "A",
       r + r + r + r + r + r + r + r + "A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
       "A",
       r + r + r + r + r + r + r + r + "A"},
      {"\xF4\x91\x92\x93\xFF"
       "A\x80\xBF"
       "B",
       r + r + r + r + r + "A" + r + r + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
       "A",
       r + r + r + r + "A"},
      {"a\xF0\x9F\x98", "a" + r},
      {"\xC3\xA9\xC3", "\xC3\xA9" + r},
  };
  for (const auto& [bytes, want] : cases) EXPECT_EQ(ReplaceInvalidUtf8(bytes), want) << testing::PrintToString(bytes);
}

TEST(Utf8, ValidPrefixStopsAtTheFirstFlaw) {
  for (size_t at = 0; at < 40; ++at) {
    std::string text(40, 'x');
    text[at] = '\xFF';
    EXPECT_EQ(ValidUtf8Prefix(text), at);
    EXPECT_EQ(FindNonAscii(text), at);
  }
  EXPECT_TRUE(IsValidUtf8(std::string(100, 'x') + "\xC3\xA9"));
  EXPECT_FALSE(IsValidUtf8(std::string(100, 'x') + "\xC3"));
}

TEST(Unicode, NfcOfStretchesEqualsNfcOfTheWhole) {
  const auto nfc = [](std::string_view text) {
    std::string out;
    EXPECT_TRUE(AppendNormalized(NormalForm::kNfc, text, &out).ok());
    return out;
  };
  EXPECT_EQ(nfc("cafe\xCC\x81"), "caf\xC3\xA9");
  EXPECT_EQ(nfc("\xCC\x81"), "\xCC\x81");
  EXPECT_EQ(nfc("a\xCC\x81\xCC\xA3"), "\xE1\xBA\xA1\xCC\x81");                 // dot below goes first
  EXPECT_EQ(nfc("x\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8y"), "x\xEA\xB0\x81y");  // jamo
  EXPECT_EQ(nfc("\xEA\xB0\x80\xE1\x86\xA8"), "\xEA\xB0\x81");                  // LV + T
  EXPECT_EQ(nfc("\xE3\x81\x8B\xE3\x82\x99"), "\xE3\x81\x8C");                  // kana + voiced mark
  EXPECT_EQ(nfc("\xE2\x84\xAB"), "\xC3\x85");                                  // Angstrom sign
  EXPECT_EQ(nfc("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");                  // composition exclusion
  EXPECT_EQ(nfc("e\xCC\x81"
                "e\xCC\x81 e\xCC\x81"),
            "\xC3\xA9\xC3\xA9 \xC3\xA9");
  // U+1E4EC (Unicode 15) has a combining class that Hugging Face's normaliser does not know: nothing moves past it.
  EXPECT_EQ(nfc("a\xCC\x81\xF0\x9E\x93\xAC\xCC\xA3"), "\xC3\xA1\xF0\x9E\x93\xAC\xCC\xA3");
}

TEST(Unicode, OtherForms) {
  std::string out;
  ASSERT_TRUE(AppendNormalized(NormalForm::kNfd, "\xC3\xA9", &out).ok());
  EXPECT_EQ(out, "e\xCC\x81");
  out.clear();
  ASSERT_TRUE(AppendNormalized(NormalForm::kNfkc, "\xEF\xAC\x81\xC2\xB2", &out).ok());
  EXPECT_EQ(out, "fi2");
}

TEST(Unicode, Classes) {
  int spaces = 0, python_spaces = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    spaces += IsWhiteSpace(c);
    python_spaces += IsPythonSpace(c);
  }
  EXPECT_EQ(spaces, 25);
  EXPECT_EQ(python_spaces, 29);
  for (const char32_t c : {U'a', U'Z', U'0', U'_', U'\u00e9', U'\u4e2d', U'\u0301', U'\u200d', U'\u24b6', U'\ua7cb'}) {
    EXPECT_TRUE(IsWordCharacter(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U' ', U'-', U'.', U'\u00b2', U'\u2019', U'\U0001f600', U'\u200b'}) {
    EXPECT_FALSE(IsWordCharacter(c)) << static_cast<uint32_t>(c);
  }
}

TEST(ByteLevel, AlphabetIsOneToOne) {
  std::vector<int> seen(256, 0);
  for (char32_t c = 0; c < kAlphabetEnd; ++c) {
    std::string token, bytes;
    AppendUtf8(c, &token);
    if (AppendAlphabetBytes(token, &bytes)) {
      ASSERT_EQ(bytes.size(), 1u);
      ++seen[static_cast<uint8_t>(bytes[0])];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(256, 1));
  std::string bytes = "kept";
  EXPECT_FALSE(AppendAlphabetBytes("a b", &bytes));
  EXPECT_EQ(bytes, "kept");
  EXPECT_TRUE(
      AppendAlphabetBytes("\xC4\xA0"
                          "a\xC4\x8A",
                          &bytes));  // U+0120 is the blank, U+010A the newline
  EXPECT_EQ(bytes, "kept a\n");
}

}  // namespace
}  // namespace fluvial::text
