// SPDX-License-Identifier: Apache-2.0
#include "server/choice.h"

#include <gtest/gtest.h>

#include "server/server_testkit.h"
#include "text/utf8.h"

namespace fluvial::server {
namespace {

class ChoiceTest : public ::testing::Test {
 protected:
  ChoiceTest() : tokenizer_(*text::Tokenizer::Load(testing::DemoModel())) {}

  struct Got {
    std::string text, reason;
    Json stop_reason;
    size_t used = 0;    // tokens pushed
    size_t tokens = 0;  // tokens handed out
  };

  /// Pushes ids until the choice stops or `end` tokens; `stop_id`: as the engine would report it.
  Got Run(const std::vector<int32_t>& ids, const OutputOptions& options, bool stream) {
    Choice choice(tokenizer_, options);
    Got got;
    Completion completion;
    completion.finish_reason = FinishReason::kLength;
    for (const int32_t id : ids) {
      Token token;
      token.id = id;
      ++got.used;
      const Next next = choice.Push(token);
      if (stream) {
        const Choice::Delta delta = choice.Take();
        got.text += delta.text;
        got.tokens += delta.tokens.size();
      }
      const bool ends = std::count(options.model_stops.begin(), options.model_stops.end(), id) +
                            std::count(options.stop_ids.begin(), options.stop_ids.end(), id) >
                        0;
      if (ends) completion.stop_id = id;
      if (ends || next == Next::kStop) {
        completion.finish_reason = FinishReason::kStop;
        break;
      }
    }
    choice.Finish(completion);
    const Choice::Delta delta = choice.Take();
    got.text += delta.text;
    got.tokens += delta.tokens.size();
    got.reason = choice.reason();
    got.stop_reason = choice.stop_reason();
    EXPECT_EQ(static_cast<size_t>(choice.tokens()), got.used);
    EXPECT_EQ(got.tokens, got.used) << "every drawn token is handed out once";
    return got;
  }

  text::Tokenizer tokenizer_;
};

TEST_F(ChoiceTest, StopStringsAreFoundWhateverTokensCutThem) {
  const std::string whole = "abcDEFGHIJKlmno DEF GHI";
  const std::vector<int32_t> ids = *tokenizer_.Encode(whole);
  ASSERT_GT(ids.size(), 7u);
  for (size_t length = 1; length <= 9; ++length) {
    for (size_t at = 0; at + length <= whole.size(); ++at) {
      const std::string stop = whole.substr(at, length);
      for (const bool include : {false, true}) {
        for (const bool stream : {false, true}) {
          OutputOptions options;
          options.stop = {stop};
          options.include_stop = include;
          const Got got = Run(ids, options, stream);
          const size_t first = whole.find(stop);
          EXPECT_EQ(got.text, whole.substr(0, include ? first + length : first)) << stop;
          EXPECT_EQ(got.reason, "stop");
          EXPECT_EQ(got.stop_reason, Json(stop));
        }
      }
    }
  }
}

TEST_F(ChoiceTest, NearMissesComeOutWhole) {
  const std::string whole = "abcDEFGHI abcDEFGHIx";
  OutputOptions options;
  options.stop = {"DEFGHIJ", "DEFGHIy", "zzz"};
  const Got got = Run(*tokenizer_.Encode(whole), options, true);
  EXPECT_EQ(got.text, whole);
  EXPECT_EQ(got.reason, "length");
  EXPECT_TRUE(got.stop_reason.is_null());
}

TEST_F(ChoiceTest, OverlappingStopsEndAtTheOneCompleteFirst) {
  OutputOptions options;
  options.stop = {"cDEF", "DE", "bcDEFG"};
  const Got got = Run(*tokenizer_.Encode("abcDEFGH"), options, true);
  EXPECT_EQ(got.text, "abc");
  EXPECT_EQ(got.stop_reason, Json("DE"));
}

TEST_F(ChoiceTest, EndTokensAreNotText) {
  std::vector<int32_t> ids = *tokenizer_.Encode("ab");
  ids.push_back(testing::kEos);
  OutputOptions options;
  options.model_stops = {testing::kEos};
  options.skip_special_tokens = false;
  Got got = Run(ids, options, true);
  EXPECT_EQ(got.text, "ab");
  EXPECT_EQ(got.reason, "stop");
  EXPECT_TRUE(got.stop_reason.is_null());

  // The request's own stop ids are named, and shown only when asked for.
  OutputOptions own;
  own.stop_ids = {ids[0]};
  got = Run(ids, own, true);
  EXPECT_EQ(got.text, "");
  EXPECT_EQ(got.stop_reason, Json(ids[0]));
  own.include_stop = true;
  EXPECT_EQ(Run(ids, own, true).text, tokenizer_.Decode(std::vector<int32_t>{ids[0]}));
}

TEST_F(ChoiceTest, CharactersAreNeverCut) {
  const std::string whole = "\xE6\xB2\xB3\xF0\x9F\x8C\x8A\xC3\xA9";
  const std::vector<int32_t> ids = *tokenizer_.Encode(whole);
  const OutputOptions options;
  Choice choice(tokenizer_, options);
  std::string text;
  for (const int32_t id : ids) {
    Token token;
    token.id = id;
    choice.Push(token);
    const std::string piece = choice.Take().text;
    EXPECT_FALSE(Json::parse(Dump(Json(piece))).is_discarded());
    EXPECT_EQ(text::ReplaceInvalidUtf8(piece), piece);
    text += piece;
  }
  EXPECT_EQ(text, whole);
}

}  // namespace
}  // namespace fluvial::server
