// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fluvial::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

class ChatTemplateTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::temp_directory_path() / ("fluvial_chat_template_" + std::to_string(getpid()) + "_" + info->name());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  Result<ChatTemplate> Load() { return ChatTemplate::Load(dir_.string()); }
  std::string Apply(const ChatRequest& request) {
    Result<ChatTemplate> loaded = Load();
    if (!loaded.ok()) return "load: " + loaded.status().message();
    Result<std::string> text = loaded->Apply(request);
    return text.ok() ? *text : "apply: " + text.status().message();
  }

  fs::path dir_;
};

ChatRequest Hello() {
  ChatRequest request;
  request.messages = Json::parse(R"([{"role": "user", "content": "hi"}])");
  return request;
}

TEST_F(ChatTemplateTest, LooksInTheDocumentedOrder) {
  Write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(Apply(Hello()), "config");
  Write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(Apply(Hello()), "json");
  Write("chat_template.jinja", "jinja\n");
  EXPECT_EQ(Apply(Hello()), "jinja");
  EXPECT_TRUE(Load()->origin().ends_with("chat_template.jinja"));
}

TEST_F(ChatTemplateTest, ChoosesToolUseWhenToolsAreGiven) {
  Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t{{ tools|length }}"}]})");
  EXPECT_EQ(Apply(Hello()), "d");
  ChatRequest request = Hello();
  request.tools = Json::array({Json::object()});
  EXPECT_EQ(Apply(request), "t1");
}

TEST_F(ChatTemplateTest, AdditionalTemplatesAreNamedByTheirFile) {
  Write("chat_template.jinja", "d");
  Write("additional_chat_templates/tool_use.jinja", "t");
  Write("additional_chat_templates/notes.txt", "{% broken");
  ChatRequest request = Hello();
  EXPECT_EQ(Apply(request), "d");
  request.tools = Json::array();
  EXPECT_EQ(Apply(request), "t");
}

TEST_F(ChatTemplateTest, TheTemplateSeesWhatTransformersGivesIt) {
  Write("chat_template.jinja",
        "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}|{{ tools is none }}{{ documents is none }}|"
        "{{ add_generation_prompt }}|{{ enable_thinking }}|{{ messages[0].content }}");
  Write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null})");
  Write("special_tokens_map.json", R"({"eos_token": "ignored", "unk_token": "<unk>"})");
  ChatRequest request = Hello();
  request.kwargs = Json{{"enable_thinking", false}};
  EXPECT_EQ(Apply(request), "<s></s>False|TrueTrue|True|False|hi");
  request.special_tokens = {{"bos_token", "<B>"}};
  request.add_generation_prompt = false;
  request.kwargs = Json{{"add_generation_prompt", 7}};
  EXPECT_EQ(Apply(request), "<B></s>False|TrueTrue|7||hi");
}

TEST_F(ChatTemplateTest, ReasoningIsReadableUnderAllItsNames) {
  Write("chat_template.jinja",
        "{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }}/{{ m|list|join(',') }};{% endfor %}");
  ChatRequest request;
  request.messages = Json::parse(R"([{"role": "assistant", "reasoning": "r"}, {"role": "user", "reasoning": null},
                                     {"role": "assistant", "reasoning_content": "c", "thinking": "t"}])");
  EXPECT_EQ(Apply(request),
            "r/r/thinking,role,reasoning,reasoning_content;//role,reasoning;c/t/thinking,role,reasoning_content;");
}

TEST_F(ChatTemplateTest, ToolArgumentsStayTextUnlessAsked) {
  Write("chat_template.jinja", "{{ messages[0].tool_calls|map(attribute='function.arguments')|list|tojson }}");
  ChatRequest request;
  request.messages = Json::parse(
      R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
          {"function": {"name": "g", "arguments": "not json"}}, {"function": {"name": "h", "arguments": ""}}]}])");
  EXPECT_EQ(Apply(request), R"(["{\"b\": 1, \"a\": 2}", "not json", ""])");
  request.parse_tool_arguments = true;
  EXPECT_EQ(Apply(request), R"([{"b": 1, "a": 2}, "not json", {}])");
}

TEST_F(ChatTemplateTest, UnusableFoldersSayWhatIsWrong) {
  EXPECT_EQ(ChatTemplate::Load((dir_ / "nowhere").string()).status().code(), Code::kUnusableModel);
  Result<ChatTemplate> none = Load();
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("has no chat template"), std::string::npos);
  Write("tokenizer_config.json", "[1]");
  EXPECT_EQ(Load().status().code(), Code::kUnusableModel);
  Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(Load().status().code(), Code::kUnusableModel);
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "x"}]})");
  EXPECT_EQ(Load().status().code(), Code::kUnusableModel);
  Write("chat_template.jinja", "{{ broken");
  Result<ChatTemplate> broken = Load();
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.status().message().find("chat_template.jinja"), std::string::npos) << broken.status().message();
  EXPECT_NE(broken.status().message().find("line 1, column"), std::string::npos) << broken.status().message();
}

TEST_F(ChatTemplateTest, RequestsOfTheWrongShapeAreRefused) {
  Write("chat_template.jinja", "x");
  Result<ChatTemplate> loaded = Load();
  ASSERT_TRUE(loaded.ok());
  ChatRequest request;
  EXPECT_EQ(loaded->Apply(request).status().code(), Code::kInvalidArgument);  // no messages
  request.messages = Json::array({1});
  EXPECT_EQ(loaded->Apply(request).status().code(), Code::kInvalidArgument);
  request = Hello();
  request.tools = Json::object();
  EXPECT_EQ(loaded->Apply(request).status().code(), Code::kInvalidArgument);
  request = Hello();
  request.kwargs = 3;
  EXPECT_EQ(loaded->Apply(request).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace fluvial::text
