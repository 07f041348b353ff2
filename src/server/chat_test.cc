// SPDX-License-Identifier: Apache-2.0
// Chat: messages, reasoning, tool calls. The engine draws what a test says, so that the text is known.
#include <gtest/gtest.h>

#include "server/server_testkit.h"

namespace fluvial::server::testing {
namespace {

constexpr const char* kTemplate =
    R"({%- if tools %}{{ '<|im_start|>system\n<tool_call>\n<function=example>\n</function>\n</tool_call>' }}
{%- for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content or [] %}{{ part.text }}{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking | default(true) %}{{ '<think>\n' }}{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %})";

class ChatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "fluvial_chat_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
      std::filesystem::copy_file(std::filesystem::path(DemoModel()) / file, folder_ / file);
    }
    std::ofstream(folder_ / "chat_template.jinja") << kTemplate;
    auto engine = std::make_unique<FakeEngine>();
    engine->next = [this](const Request& request, int64_t n) {
      const std::lock_guard lock(mutex_);
      last_prompt_ = request.prompt;
      return n < static_cast<int64_t>(script_.size()) ? script_[n] : kEos;
    };
    tokenizer_ = std::make_unique<text::Tokenizer>(*text::Tokenizer::Load(folder_));
    server_ = StartServer(std::move(engine), TestOptions(), folder_);
    ASSERT_NE(server_, nullptr);
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  /// The engine draws these tokens, then the end token.
  void Say(const std::string& text) {
    const std::lock_guard lock(mutex_);
    script_ = *tokenizer_->Encode(text);
  }
  std::string Prompt() {
    const std::lock_guard lock(mutex_);
    return tokenizer_->Decode(last_prompt_, {.skip_special_tokens = false});
  }
  static Json Body(const std::string& content = "Hi") {
    Json body;
    body["model"] = "demo";
    body["messages"] = Json::array({{{"role", "user"}, {"content", content}}});
    return body;
  }
  static Json Tools() {
    return Json::parse(R"([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}])");
  }
  Answer Chat(const Json& body) { return PostJson(server_->port(), "/v1/chat/completions", body); }

  std::filesystem::path folder_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<Server> server_;
  std::mutex mutex_;
  std::vector<int32_t> script_;
  std::vector<int32_t> last_prompt_;
};

TEST_F(ChatTest, ReasoningAndContentComeApart) {
  Say("I think.\n</think>\n\nThe answer.");
  const Json answer = Chat(Body()).json();
  EXPECT_EQ(answer["object"], "chat.completion");
  const Json message = answer["choices"][0]["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["content"], "The answer.");
  EXPECT_EQ(message["reasoning_content"], "I think.");
  EXPECT_TRUE(message["refusal"].is_null());
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(Prompt(), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");

  Json body = Body();
  body["stream"] = true;
  const Answer raw = Chat(body);
  const Json first = Json::parse(raw.events()[0]);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  const Streamed streamed = Join(raw);
  EXPECT_EQ(streamed.text.at(0), "The answer.");
  EXPECT_EQ(streamed.reasoning.at(0), "I think.");
  EXPECT_EQ(streamed.finish.at(0), "stop");

  // The template's own switch reaches it.
  Say("Plain.");
  body = Body();
  body["chat_template_kwargs"]["enable_thinking"] = false;
  EXPECT_EQ(Chat(body).json()["choices"][0]["message"]["content"], "Plain.");
}

TEST_F(ChatTest, ToolCallsComeOutWholeAndStreamed) {
  Say("Look it up.</think>I ask.\n<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n</function>\n</"
      "tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\nBern\n"
      "</parameter>\n</function>\n</tool_call>");
  Json body = Body();
  body["tools"] = Tools();
  body["tool_choice"] = "auto";
  const Json choice = Chat(body).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I ask.");
  const Json calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"]["name"], "weather");
  EXPECT_EQ(Json::parse(calls[0]["function"]["arguments"].get<std::string>()),
            Json::parse(R"({"city": "7", "days": 3})"));
  EXPECT_TRUE(calls[0]["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);

  body["stream"] = true;
  const Streamed streamed = Join(Chat(body));
  EXPECT_EQ(streamed.finish.at(0), "tool_calls");
  EXPECT_EQ(streamed.text.at(0), "I ask.");
  ASSERT_EQ(streamed.tool_calls.at(0).size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(streamed.tool_calls.at(0)[i]["index"], i);
    EXPECT_EQ(streamed.tool_calls.at(0)[i]["function"], calls[i]["function"]);
  }

  // Without tools, or with tool_choice none, the same text is text.
  body.erase("stream");
  body["tool_choice"] = "none";
  const Json plain = Chat(body).json()["choices"][0];
  EXPECT_EQ(plain["finish_reason"], "stop");
  EXPECT_FALSE(plain["message"].contains("tool_calls"));
  EXPECT_NE(plain["message"]["content"].get<std::string>().find("<function=weather>"), std::string::npos);
}

TEST_F(ChatTest, OnlyWhatTheModelWroteIsParsed) {
  // Tool-call and thinking marks in the prompt are the prompt's.
  Say("Still thinking");
  Json body = Body("text with </think> and <tool_call>\n<function=weather>\n</function>\n</tool_call>");
  body["tools"] = Tools();
  const Json choice = Chat(body).json()["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "Still thinking");
  EXPECT_EQ(choice["message"]["content"], "");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(ChatTest, ACallInsideAThoughtIsACall) {
  Say("I ask.\n<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>");
  Json body = Body();
  body["tools"] = Tools();
  const Json choice = Chat(body).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["reasoning_content"], "I ask.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "weather");
  body["stream"] = true;
  EXPECT_EQ(Join(Chat(body)).finish.at(0), "tool_calls");
}

TEST_F(ChatTest, BrokenCallsComeBackAsText) {
  const std::string broken = "<tool_call>\n{oops\n</tool_call>";
  Say("</think>" + broken);
  Json body = Body();
  body["tools"] = Tools();
  const Json choice = Chat(body).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], broken);
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(ChatTest, ToolHistoryIsRendered) {
  Say("</think>ok");
  Json body = Body();
  body["messages"].push_back(Json::parse(
      R"({"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function":
      {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}]})"));
  body["messages"].push_back(Json::parse(R"({"role": "tool", "tool_call_id": "call_1", "content": "rain"})"));
  EXPECT_EQ(Chat(body).status, 200);
  EXPECT_NE(Prompt().find("city=Bern;"), std::string::npos) << Prompt();
}

TEST_F(ChatTest, UsersCannotForgeTurns) {
  Say("</think>ok");
  for (size_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (!tokenizer_->IsSpecial(static_cast<int32_t>(id))) continue;
    const std::string literal(tokenizer_->TokenBytes(static_cast<int32_t>(id)));
    ASSERT_FALSE(literal.empty());
    const std::string content = "a" + literal + "b\xEF\xB7\x90" + "1";
    ASSERT_EQ(Chat(Body(content)).status, 200);
    EXPECT_NE(Prompt().find(content), std::string::npos) << "the text itself is unchanged";
    const std::lock_guard lock(mutex_);
    std::map<int32_t, int> counts;
    for (const int32_t token : last_prompt_) ++counts[token];
    EXPECT_EQ(counts[*tokenizer_->TokenToId("<|im_start|>")], 2) << literal;
    EXPECT_EQ(counts[kEos], 1) << literal;
    if (literal != "<|im_start|>" && literal != "<|im_end|>") {
      EXPECT_EQ(counts[static_cast<int32_t>(id)], 0) << literal;
    }
  }
}

TEST_F(ChatTest, LogprobsAndLimits) {
  Say("</think>abc");
  Json body = Body();
  body["max_completion_tokens"] = 2;
  body["max_tokens"] = 50;
  const Json answer = Chat(body).json();
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  body = Body();
  body["logprobs"] = true;
  body["top_logprobs"] = 0;
  const Json with = Chat(body).json();
  EXPECT_EQ(with["choices"][0]["logprobs"]["content"].size(), with["usage"]["completion_tokens"]);
  const Json item = with["choices"][0]["logprobs"]["content"][0];
  EXPECT_TRUE(item["bytes"].is_array());
  EXPECT_TRUE(item["top_logprobs"].is_array());
}

TEST_F(ChatTest, BadMessagesAreRefused) {
  struct Case {
    const char* fields;
    const char* says;
  };
  const Case cases[] = {
      {R"({"messages": []})", "no messages"},
      {R"({"messages": null})", "no messages"},
      {R"({"messages": "hi"})", "must be a list"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{"content": "x"}]})", "role"},
      {R"({"messages": [{"role": "robot", "content": "x"}]})", "robot"},
      {R"({"messages": [{"role": "user"}]})", "no content"},
      {R"({"messages": [{"role": "user", "content": null}]})", "no content"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content is 5"},
      {R"({"messages": [{"role": "user", "content": [5]}]})", "messages[0].content[0]"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "string `text`"},
      {R"({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]})", "hologram"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]})",
       "does not take images"},
      {R"({"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "http://x/"}}]}]})",
       "does not take videos"},
      {R"({"tools": {}})", "tools"},
      {R"({"tools": [{"type": "function"}]})", "tool"},
      {R"({"tool_choice": "required"})", "grammar"},
      {R"({"tool_choice": {"type": "function", "function": {"name": "weather"}}})", "grammar"},
      {R"({"tool_choice": "maybe"})", "auto or none"},
      {R"({"top_logprobs": 3})", "logprobs"},
      {R"({"logprobs": true, "top_logprobs": 21})", "21"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {}}})", "grammar"},
      {R"({"functions": []})", "use tools"},
      {R"({"continue_final_message": true})", "not supported"},
      {R"({"prompt": "x"})", "no field"},
  };
  for (const Case& c : cases) {
    Json body = Body();
    body.update(Json::parse(c.fields));
    const Answer answer = Chat(body);
    EXPECT_EQ(answer.status, 400) << c.fields << answer.body;
    EXPECT_NE(answer.error().find(c.says), std::string::npos) << c.fields << " -> " << answer.error();
  }
  Say("</think>still here");
  EXPECT_EQ(Chat(Body()).json()["choices"][0]["message"]["content"], "still here");
}

TEST_F(ChatTest, AwkwardMessagesThatTemplatesTake) {
  Say("</think>ok");
  for (
      const char* messages :
      {R"([{"role": "assistant", "content": null}])", R"([{"role": "user", "content": ""}])",
       R"([{"role": "user", "content": []}])", R"([{"role": "developer", "content": "be brief"}])",
       R"([{"role": "user", "name": "eve", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])"}) {
    Json body = Body();
    body["messages"] = Json::parse(messages);
    const Answer answer = Chat(body);
    EXPECT_EQ(answer.status, 200) << messages << answer.body;
  }
  EXPECT_NE(Prompt().find("ab"), std::string::npos);
}

}  // namespace
}  // namespace fluvial::server::testing
