// SPDX-License-Identifier: Apache-2.0
// fluvial tokenize, and conversations as prompts.
#include <nlohmann/json.hpp>

#include "cli_testkit.h"

namespace fluvial::tools {
namespace {

using Json = nlohmann::json;

class TokenizeTest : public CliTest {
 protected:
  const std::string model_ = Source("models/demo-random-gdn");

  Json Tokenize(const std::string& options) {
    const Ran r = Run("tokenize " + model_ + " --json " + options);
    EXPECT_EQ(r.status, 0) << options << "\n" << r.err;
    return Json::parse(r.out, nullptr, false);
  }
  std::string Messages(const std::string& json) {
    WriteText(folder() / "chat.json", json);
    return "--messages " + (folder() / "chat.json").string();
  }
};

TEST_F(TokenizeTest, TextGoesThereAndBack) {
  const Json j = Tokenize("--prompt 'What is a river? \xc3\xa9'");
  EXPECT_EQ(j["text"], "What is a river? \xc3\xa9");
  ASSERT_GT(j["token_ids"].size(), 3u);
  EXPECT_EQ(j["tokens"].size(), j["token_ids"].size());
  std::string ids;
  for (int id : j["token_ids"]) ids += (ids.empty() ? "" : ",") + std::to_string(id);
  EXPECT_EQ(Tokenize("--ids " + ids)["text"], j["text"]);
  Ran r = Run("tokenize " + model_ + " --ids " + ids);
  EXPECT_EQ(r.out, "What is a river? \xc3\xa9\n");
  r = Run("tokenize " + model_ + " --prompt 'What is a river? \xc3\xa9'");
  EXPECT_EQ(r.out, "What is a river? \xc3\xa9\n" + ids + "\n");
}

TEST_F(TokenizeTest, ConversationsAreRendered) {
  const std::string want = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const Json list = Tokenize(Messages(R"([{"role": "user", "content": "hi"}])"));
  EXPECT_EQ(list["text"], want);
  const Json object = Tokenize(Messages(R"({"messages": [{"role": "user", "content": "hi"}]})"));
  EXPECT_EQ(object, list);
  EXPECT_EQ(Tokenize("--chat --prompt hi"), list);
  const Json parts = Tokenize(Messages(R"([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])"));
  EXPECT_EQ(parts, list);
  const Json open =
      Tokenize(Messages(R"({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false})"));
  EXPECT_EQ(open["text"], "<|im_start|>user\nhi<|im_end|>\n");
}

TEST_F(TokenizeTest, MarkersOfATemplateAreSingleTokens) {
  const Json j = Tokenize("--chat --prompt hi");
  EXPECT_EQ(j["tokens"][0], "<|im_start|>");
  EXPECT_EQ(Tokenize("--ids " + std::to_string(j["token_ids"][0].get<int>()))["text"], "<|im_start|>");
  EXPECT_EQ(Tokenize("--skip-special-tokens --ids " + std::to_string(j["token_ids"][0].get<int>()))["text"], "");
}

TEST_F(TokenizeTest, RunTakesConversationsToo) {
  const Json rendered = Tokenize("--chat --prompt hi");
  const std::string run = "run " + model_ + " --json --max-tokens 2 --temperature 0 ";
  const Ran chat = Run(run + "--chat --prompt hi"), file = Run(run + Messages(R"([{"role":"user","content":"hi"}])"));
  ASSERT_EQ(chat.status, 0) << chat.err;
  ASSERT_EQ(file.status, 0) << file.err;
  EXPECT_EQ(Json::parse(chat.out)["prompt_token_ids"], rendered["token_ids"]);
  EXPECT_EQ(Json::parse(file.out)["prompt_token_ids"], rendered["token_ids"]);
}

TEST_F(TokenizeTest, WrongInput) {
  const std::string t = "tokenize " + model_ + " ";
  ExpectError(t, 2, "there is no prompt");
  ExpectError(t + "--prompt a --ids 1", 2, "there are several prompts");
  ExpectError(t + "--chat --ids 1", 2, "--chat goes with --prompt");
  ExpectError(t + "--ids 1,1024", 2, "1024 is not in the vocabulary");
  ExpectError(t + "--ids ''", 2, "not a token id");
  ExpectError("tokenize /nowhere --prompt a", 3, "/nowhere");
  ExpectError(t + "--messages /nowhere/chat.json", 3, "'/nowhere/chat.json' cannot be read");
  ExpectError(t + "--messages " + folder().string(), 3, "cannot be read");
  ExpectError(t + Messages("{"), 3, "is not JSON");
  ExpectError(t + Messages("7"), 3, "write a list of messages");
  ExpectError(t + Messages(R"({"messages": 3})"), 3, "`messages` is a list");
  ExpectError(t + Messages(R"({"messages": [], "tolls": []})"), 3, "unknown key 'tolls'");
  ExpectError(t + Messages(R"({"messages": [], "add_generation_prompt": 1})"), 3, "true or false");
  ExpectError(t + Messages(R"([{"role": "user", "content": [{"type": "image", "image": "x.png"}]}])"), 2,
              "this model reads text only");
  ExpectError("run " + model_ + " " + Messages(R"([{"role":"user","content":[{"type":"image_url"}]}])"), 2,
              "names no image");
}

}  // namespace
}  // namespace fluvial::tools
