// SPDX-License-Identifier: Apache-2.0
#include "measure/gsm8k.h"

#include <gtest/gtest.h>

#include <fstream>

namespace fluvial::measure {
namespace {

TEST(Gsm8k, TakesTheLastNumber) {
  EXPECT_EQ(LastNumber("3 and 4, so 1,234 apples."), "1234");
  EXPECT_EQ(LastNumber("-7"), "7");  // no sign and no decimals, as the method has it
  EXPECT_EQ(LastNumber("2.50"), "50");
  EXPECT_EQ(LastNumber("007"), "7");
  EXPECT_EQ(LastNumber("0"), "0");
  EXPECT_EQ(LastNumber("none"), "");
  EXPECT_EQ(LastNumber(""), "");
}

TEST(Gsm8k, WordsAreTakenBehindTheMark) {
  EXPECT_EQ(AnswerValue("S T A R\n#### STAR\n", "STAR"), "STAR");
  EXPECT_EQ(AnswerValue("#### no\nS\n#### STAR", "STAR"), "STAR");
  EXPECT_EQ(AnswerValue("STAR", "STAR"), "");
  EXPECT_EQ(AnswerValue("it is 12", "12"), "12");
}

std::string Write(const std::string& text) {
  const std::string path = ::testing::TempDir() + "gsm8k_items.jsonl";
  std::ofstream(path) << text;
  return path;
}

TEST(Gsm8k, ReadsItemsAndNamesBadLines) {
  const auto items = ReadEvalItems(Write("{\"question\": \"q\", \"answer\": \"1+1=2\\n#### 1,002\"}\n\n"), 0);
  ASSERT_TRUE(items.ok()) << items.status().message();
  EXPECT_EQ(items->at(0).value, "1002");
  EXPECT_NE(ReadEvalItems(Write("{\"question\": \"q\", \"answer\": \"2\"}"), 0).status().message().find("line 1"),
            std::string::npos);
  EXPECT_EQ(ReadEvalItems(Write("[]"), 0).status().code(), Code::kUnusableModel);
  EXPECT_EQ(ReadEvalItems(Write(""), 0).status().code(), Code::kUnusableModel);
  EXPECT_FALSE(
      ReadEvalItems(Write("{\"question\": \"q\", \"answer\": \"#### 2\", \"images\": [\"none.png\"]}"), 0).ok());
}

TEST(Gsm8k, BundledSetsAreReadable) {
  for (const char* file : {"demo-gdn-vl/eval/arithmetic", "demo-gdn-vl/eval/recall", "demo-gdn-vl/eval/images",
                           "demo-kda/eval/arithmetic", "demo-kda/eval/recall"}) {
    const auto items = ReadEvalItems(std::string(FLUVIAL_SOURCE_DIR) + "/models/" + file + ".jsonl", 0);
    ASSERT_TRUE(items.ok()) << items.status().message();
    EXPECT_EQ(items->size(), 300u) << file;
    // The expected answer, given as the answer, is right.
    LoadResult load;
    for (const EvalItem& item : *items) {
      RequestRecord r;
      r.ok = true;
      r.text = item.answer;
      load.records.push_back(r);
    }
    EXPECT_EQ(ScoreEval(*items, load).json["correct"], 300) << file;
  }
}

TEST(Gsm8k, PromptsHaveShots) {
  const std::vector<EvalItem> items = {{"q1", "a #### 1", "1", {}}};
  const std::vector<EvalItem> shots = {{"s1", "t #### 2", "2", {}}};
  EXPECT_EQ(EvalPrompts(items, shots, false, 9)[0].text, "Question: s1\nAnswer: t #### 2\n\nQuestion: q1\nAnswer:");
  EXPECT_EQ(EvalPrompts(items, shots, true, 9)[0].text, "q1");
}

TEST(Gsm8k, CountsWrongInvalidAndFailed) {
  const std::vector<EvalItem> items(4, EvalItem{"q", "#### 5", "5", {}});
  LoadResult load;
  load.records.resize(4);
  const char* texts[] = {"It is 05.", "6", "none", "5"};
  for (size_t i = 0; i < 4; ++i) {
    load.records[i].text = texts[i];
    load.records[i].ok = i != 3;
  }
  const EvalResult result = ScoreEval(items, load);
  EXPECT_EQ(result.right, (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(result.json["accuracy"], 0.25);
  EXPECT_EQ(result.json["invalid_rate"], 0.5);
  EXPECT_EQ(result.json["failed"], 1);
  EXPECT_EQ(result.json["items"].size(), 4u);
  EXPECT_LT(result.json["accuracy_interval"][0], 0.25);
}

}  // namespace
}  // namespace fluvial::measure
