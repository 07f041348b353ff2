// SPDX-License-Identifier: Apache-2.0
// The bundled trained models answer: sums worked line by line, a code looked up in a list, and saying so when they do
// not know. The expected texts are the test sets' own answers (models/*/eval), which transformers writes too.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_testkit.h"

namespace fluvial::tools {
namespace {

using Json = nlohmann::json;

struct Case {
  std::string model;
  std::string dtype;
};

class DemoModelTest : public CliTest, public ::testing::WithParamInterface<Case> {
 protected:
  std::string Ask(const std::string& question) {
    WriteText(folder() / "chat.json",
              Json{{"messages", {{{"role", "user"}, {"content", question}}}}, {"add_generation_prompt", true}}.dump());
    const Ran r = Run("run " + Source("models/" + GetParam().model).string() + " --device cpu --dtype " +
                      GetParam().dtype + " --max-tokens 96 --messages " + (folder() / "chat.json").string());
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out;
  }

  /// Every n-th item of a test set whose question has at most `longest` bytes.
  std::vector<Json> Items(const std::string& set, size_t n, size_t longest) {
    std::ifstream in(Source("models/" + GetParam().model + "/eval/" + set + ".jsonl"));
    std::vector<Json> out;
    std::string line;
    for (size_t i = 0; std::getline(in, line); ++i) {
      const Json item = Json::parse(line);
      if (i % n == 0 && item["question"].get<std::string>().size() <= longest) out.push_back(item);
    }
    return out;
  }
};

TEST_P(DemoModelTest, WorksOutSums) {
  const std::vector<Json> items = Items("arithmetic", 60, 1000);
  ASSERT_EQ(items.size(), 5u);
  for (const Json& item : items) {
    EXPECT_EQ(Ask(item["question"]), item["answer"].get<std::string>() + "\n") << item["question"];
  }
}

TEST_P(DemoModelTest, LooksUpCodesInShortLists) {
  const std::vector<Json> items = Items("recall", 15, 400);  // about 130 tokens
  ASSERT_GE(items.size(), 3u);
  for (const Json& item : items) {
    EXPECT_EQ(Ask(item["question"]), item["answer"].get<std::string>() + "\n") << item["question"];
  }
}

TEST_P(DemoModelTest, SaysWhatItIsAndWhatItDoesNotKnow) {
  EXPECT_TRUE(Ask("Who are you?").starts_with("I am a small demo model of the Fluvial engine.")) << Ask("Who are you?");
  EXPECT_EQ(Ask("What is a river?"), "I do not know that. I am a very small demo model: ask me a short sum.\n");
}

class DemoPictureTest : public DemoModelTest {};

TEST_P(DemoPictureTest, AnswersAboutPictures) {
  const std::string model = Source("models/" + GetParam().model).string();
  const std::vector<Json> items = Items("images", 30, 1000);
  ASSERT_EQ(items.size(), 10u);
  for (const Json& item : items) {
    std::string images;
    for (const Json& name : item["images"]) images += " --image " + model + "/" + name.get<std::string>();
    const Ran r = Run("run " + model + " --device cpu --max-tokens 128 --dtype " + GetParam().dtype + images +
                      " --chat --prompt '" + item["question"].get<std::string>() + "'");
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.out, item["answer"].get<std::string>() + "\n") << item["question"] << images;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DemoPictureTest,
                         ::testing::Values(Case{"demo-gdn-vl", "float32"}, Case{"demo-gdn-vl", "bfloat16"}),
                         [](const auto& test) { return test.param.dtype; });

INSTANTIATE_TEST_SUITE_P(Models, DemoModelTest,
                         ::testing::Values(Case{"demo-gdn-vl", "float32"}, Case{"demo-gdn-vl", "bfloat16"},
                                           Case{"demo-kda", "float32"}, Case{"demo-kda", "bfloat16"}),
                         [](const auto& test) {
                           std::string name = test.param.model + "_" + test.param.dtype;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace fluvial::tools
