// SPDX-License-Identifier: Apache-2.0
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace fluvial::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kTools[] = R"([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
  "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
                 "tags": {"type": "array"}, "note": {"type": ["string", "null"]}, "zip": {"anyOf": [{"type": "integer"},
                 {"type": "null"}]}, "unit": {"enum": ["C", "F"]}}}}}])";

// All deltas joined; calls as "id|name|arguments".
struct Joined {
  std::string reasoning, content;
  std::vector<std::string> calls;
  bool operator==(const Joined&) const = default;
};

void Add(const OutputDelta& delta, Joined* to) {
  to->reasoning += delta.reasoning;
  to->content += delta.content;
  for (const ToolCall& call : delta.tool_calls) to->calls.push_back(call.id + "|" + call.name + "|" + call.arguments);
}

std::ostream& operator<<(std::ostream& out, const Joined& joined) {
  out << "reasoning " << testing::PrintToString(joined.reasoning) << " content "
      << testing::PrintToString(joined.content);
  for (const auto& call : joined.calls) out << " call " << call;
  return out;
}

Joined Parse(const OutputFormat& format, std::string_view text, size_t piece = 0) {
  auto schemas = ToolSchemas::Parse(kTools);
  EXPECT_TRUE(schemas.ok()) << schemas.status().message();
  OutputParser parser(format, *schemas);
  Joined joined;
  if (piece == 0) piece = text.size() + 1;
  for (size_t i = 0; i < text.size(); i += piece) Add(parser.Push(text.substr(i, piece)), &joined);
  Add(parser.Finish(), &joined);
  return joined;
}

constexpr OutputFormat kHermes{.tools = ToolFormat::kHermes, .reasoning = true};
constexpr OutputFormat kXml{.tools = ToolFormat::kQwenXml, .reasoning = true, .starts_in_reasoning = true};
constexpr OutputFormat kGlm{.tools = ToolFormat::kGlm, .reasoning = true};
constexpr OutputFormat kKimi{.tools = ToolFormat::kKimi};
constexpr OutputFormat kPlain{};

struct Case {
  const char* what;
  OutputFormat format;
  std::string text;
  Joined want;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"plain text",
       kPlain,
       "\nHello <think>x</think> <tool_call>\n\n",
       {"", "\nHello <think>x</think> <tool_call>\n\n", {}}},
      {"reasoning, then content",
       kHermes,
       "<think>\nLet me see.\n\nYes.\n</think>\n\nThe answer.\n",
       {"Let me see.\n\nYes.", "The answer.\n", {}}},
      {"empty reasoning", kHermes, "<think>\n\n</think>\n\nHi", {"", "Hi", {}}},
      {"no reasoning", kHermes, "Hi <think>no</think>", {"", "Hi <think>no</think>", {}}},
      {"reasoning opened by the prompt", kXml, "\nHm.\n</think>\n\nHi", {"Hm.", "Hi", {}}},
      {"cut off while reasoning", kXml, "Hm, <tool_call> is\n\n", {"Hm, <tool_call> is", "", {}}},
      {"almost a mark", kXml, "a </thin b </think>c </tool <tool_cal", {"a </thin b ", "c </tool <tool_cal", {}}},
      {"hermes",
       kHermes,
       "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.0, \"a\": [true, \"</x>\"]}}\n</tool_call>",
       {"", "I look.", {"|f|{\"b\": 1.0, \"a\": [true, \"</x>\"]}"}}},
      {"hermes, two calls and text behind",
       kHermes,
       "<think>x</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>{\"name\": "
       "\"g\"}</tool_call>\nDone",
       {"x", "Done", {"|f|{}", "|g|{}"}}},
      {"hermes, arguments as a string",
       kHermes,
       "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call>",
       {"", "", {"|f|{\"a\": 1}"}}},
      {"hermes, not JSON",
       kHermes,
       "a\n<tool_call>{\"name\": oops}</tool_call> b",
       {"", "a\n<tool_call>{\"name\": oops}</tool_call> b", {}}},
      {"hermes, arguments no object",
       kHermes,
       "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
       {"", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", {}}},
      {"hermes, no name",
       kHermes,
       "<tool_call>{\"arguments\": {}}</tool_call>",
       {"", "<tool_call>{\"arguments\": {}}</tool_call>", {}}},
      {"hermes, cut off",
       kHermes,
       "a\n\n<tool_call>{\"name\": \"f\", \"argu",
       {"", "a\n\n<tool_call>{\"name\": \"f\", \"argu", {}}},
      {"xml with types",
       kXml,
       "x</think>\n\nOk.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew "
       "\"York\"\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
       "<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n[\"a\", "
       "1]\n</parameter>\n<parameter=note>\n7\n</parameter>\n"
       "<parameter=zip>\nNone\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=other>\n5\n</parameter>\n</"
       "function>\n</tool_call>",
       {"x",
        "Ok.",
        {"|get_weather|{\"city\": \"New \\\"York\\\"\\n\", \"days\": 3, \"metric\": true, \"tags\": [\"a\", 1], "
         "\"note\": \"7\", "
         "\"zip\": null, \"unit\": \"C\", \"other\": \"5\"}"}}},
      {"xml, a number that is none",
       kXml,
       "</think><tool_call><function=get_weather><parameter=days>soon</parameter></function></tool_call>",
       {"", "", {"|get_weather|{\"days\": \"soon\"}"}}},
      {"xml, no parameters",
       kXml,
       "</think><tool_call>\n<function=now>\n</function>\n</tool_call>",
       {"", "", {"|now|{}"}}},
      {"xml, closing marks forgotten",
       kXml,
       "</think><tool_call>\n<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</tool_call>",
       {"", "", {"|f|{\"a\": \"1\", \"b\": \"2\"}"}}},
      {"xml, value with tags",
       kXml,
       "</think><tool_call>\n<function=f>\n<parameter=a>\n<b>x</b>\nif a < b:\n  "
       "pass\n</parameter>\n</function>\n</tool_call>",
       {"", "", {"|f|{\"a\": \"<b>x</b>\\nif a < b:\\n  pass\"}"}}},
      {"xml, a call while thinking",
       kXml,
       "I ask.\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nDone.",
       {"I ask.", "Done.", {"|now|{}"}}},
      {"xml, a thought about calls",
       kXml,
       "A <tool_call> is like <tool_call>what</tool_call>.\n</think>\nHi",
       {"A <tool_call> is like <tool_call>what</tool_call>.", "Hi", {}}},
      {"xml, the thought ends inside a call",
       kXml,
       "x <tool_call>\n<function=f>\n</think>\nHi",
       {"x <tool_call>\n<function=f>", "Hi", {}}},
      {"xml, not a call", kXml, "</think><tool_call>what</tool_call>", {"", "<tool_call>what</tool_call>", {}}},
      {"glm",
       kGlm,
       "<think>a</think>\nSure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Beijing</"
       "arg_value>\n<arg_key>days</arg_key>\n"
       "<arg_value>2</arg_value>\n<arg_key>x</arg_key>\n<arg_value>{\"k\": 1}</arg_value>\n</tool_call>",
       {"a", "Sure.", {"|get_weather|{\"city\": \"Beijing\", \"days\": 2, \"x\": {\"k\": 1}}"}}},
      {"glm, no arguments", kGlm, "<tool_call>now\n</tool_call>", {"", "", {"|now|{}"}}},
      {"glm, broken",
       kGlm,
       "<tool_call>f<arg_key>a</arg_key></tool_call>",
       {"", "<tool_call>f<arg_key>a</arg_key></tool_call>", {}}},
      {"kimi",
       kKimi,
       "Looking.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"
       "\"city\": \"Bonn\"}<|tool_call_end|>"
       "<|tool_call_begin|>functions.a.b:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
       {"", "Looking.", {"functions.get_weather:0|get_weather|{\"city\": \"Bonn\"}", "functions.a.b:1|a.b|{}"}}},
      {"kimi, broken JSON",
       kKimi,
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{<|tool_call_end|><|"
       "tool_calls_section_end|>",
       {"", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{<|tool_call_end|>", {}}},
      {"nothing", kHermes, "", {"", "", {}}},
      {"only newlines", kHermes, "\n\n", {"", "\n\n", {}}},
  };
  return cases;
}

TEST(OutputParser, SplitsReasoningContentAndCalls) {
  for (const Case& c : Cases()) EXPECT_EQ(Parse(c.format, c.text), c.want) << c.what;
}

TEST(OutputParser, PiecesDoNotMatter) {
  for (const Case& c : Cases()) {
    for (size_t piece = 1; piece < 40; ++piece)
      EXPECT_EQ(Parse(c.format, c.text, piece), c.want) << c.what << " " << piece;
  }
}

TEST(OutputParser, PiecesDoNotMatterForAnyText) {
  const std::string_view atoms[] = {"<tool_call>{\"name\": \"f\"}</tool_call>",
                                    "<tool_call><function=f></function></tool_call>",
                                    "<tool_call>f\n</tool_call>",
                                    "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
                                    "<think>",
                                    "</think>",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "<function=f>",
                                    "<parameter=a>",
                                    "</parameter>",
                                    "</function>",
                                    "{\"name\": \"f\", \"arguments\": {}}",
                                    "\n",
                                    "\n\n",
                                    " ",
                                    "text",
                                    "<",
                                    "</",
                                    "<arg_key>k</arg_key>",
                                    "<arg_value>1</arg_value>",
                                    "<|tool_calls_section_begin|>",
                                    "<|tool_calls_section_end|>",
                                    "<|tool_call_begin|>",
                                    "<|tool_call_argument_begin|>",
                                    "<|tool_call_end|>",
                                    "functions.f:0",
                                    "{}"};
  std::mt19937 random(20261130);
  int calls = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (size_t k = 0, n = random() % 14; k < n; ++k) text += atoms[random() % std::size(atoms)];
    for (const OutputFormat& format : {kHermes, kXml, kGlm, kKimi, kPlain}) {
      const Joined whole = Parse(format, text);
      calls += static_cast<int>(whole.calls.size());
      ASSERT_EQ(Parse(format, text, 1), whole) << text;
      ASSERT_EQ(Parse(format, text, 1 + random() % 9), whole) << text;
    }
  }
  EXPECT_GT(calls, 100);
}

TEST(OutputParser, ArgumentsAreJson) {
  for (const Case& c : Cases()) {
    for (const std::string& call : Parse(c.format, c.text).calls) {
      EXPECT_TRUE(Json::parse(call.substr(call.rfind('|') + 1)).is_object()) << call;
    }
  }
}

TEST(OutputParser, TextIsNotHeldLongerThanNeeded) {
  OutputParser parser(kXml);
  EXPECT_EQ(parser.Push("abc <").reasoning, "abc ");
  EXPECT_EQ(parser.Push("x").reasoning, "<x");
  EXPECT_EQ(parser.Push("\n").reasoning, "");
  EXPECT_EQ(parser.Push("y").reasoning, "\ny");
  EXPECT_EQ(parser.Push("</think>\n").content, "");
  EXPECT_EQ(parser.Push("Hi").content, "Hi");
}

TEST(OutputParser, DetectsFormats) {
  EXPECT_EQ(DetectOutputFormat("{{ x }}").tools, ToolFormat::kNone);
  EXPECT_FALSE(DetectOutputFormat("{{ x }}").reasoning);
  EXPECT_EQ(DetectOutputFormat("<tool_call>\\n{\"name\": ... </think>").tools, ToolFormat::kHermes);
  EXPECT_TRUE(DetectOutputFormat("<tool_call> </think>").reasoning);
  EXPECT_EQ(DetectOutputFormat("<tool_call>\\n<function=x>").tools, ToolFormat::kQwenXml);
  EXPECT_EQ(DetectOutputFormat("<tool_call>{name}<arg_key>").tools, ToolFormat::kGlm);
  EXPECT_EQ(DetectOutputFormat("<|tool_calls_section_begin|>").tools, ToolFormat::kKimi);
  EXPECT_TRUE(PromptOpensReasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(PromptOpensReasoning("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(PromptOpensReasoning(""));
}

TEST(ToolSchemas, BadListsAreRefused) {
  for (const char* bad : {"{}", "[1]", "[{}]", "[{\"function\": {\"name\": 3}}]", "[", "null"}) {
    const auto result = ToolSchemas::Parse(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(ToolSchemas::Parse("").ok());
  EXPECT_TRUE(ToolSchemas::Parse("[{\"name\": \"f\", \"parameters\": []}]").ok());
}

}  // namespace
}  // namespace fluvial::text
