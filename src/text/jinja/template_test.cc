// SPDX-License-Identifier: Apache-2.0
// What goldens cannot hold: positions and codes of errors, bounds, refusals, sharing between threads.
#include "text/jinja/template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace fluvial::jinja {
namespace {

using Json = nlohmann::ordered_json;

Status Error(const std::string& source, const Json& variables = Json::object(), const RenderOptions& options = {}) {
  Result<std::string> result = Render(source, variables, options);
  EXPECT_FALSE(result.ok()) << source << " gave " << (result.ok() ? *result : "");
  return result.status();
}

std::string Text(const std::string& source, const Json& variables = Json::object(), const RenderOptions& options = {}) {
  Result<std::string> result = Render(source, variables, options);
  EXPECT_TRUE(result.ok()) << source << ": " << result.status().message();
  return result.ok() ? *result : std::string();
}

bool Mentions(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

TEST(JinjaTemplate, SyntaxErrorsNameLineAndColumn) {
  Status status = Error("ab\n  {% if x %}\n\xc3\xa9{{ 1 + }}");
  EXPECT_EQ(status.code(), Code::kUnusableModel);
  EXPECT_TRUE(Mentions(status, "(chat template, line 3, column 9)")) << status.message();
  EXPECT_TRUE(Mentions(Error("{% nosuch %}"), "unknown tag 'nosuch' (chat template, line 1, column 4)"));
  EXPECT_TRUE(Mentions(Error("{{ x|nosuch }}"), "line 1, column 6"));
  EXPECT_TRUE(Mentions(Error("a\n{# open"), "line 2, column 1"));
}

TEST(JinjaTemplate, RuntimeErrorsNameLineAndColumn) {
  Status status = Error("\n\n  {{ x.y.z }}", Json{{"x", Json::object()}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(Mentions(status, "'dict object' has no attribute 'y' (chat template, line 3, column 9)"))
      << status.message();
}

TEST(JinjaTemplate, RaiseExceptionKeepsItsMessage) {
  Status status = Error("{{ raise_exception('Only user and assistant!') }}");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(status.message().starts_with("Only user and assistant! (")) << status.message();
}

TEST(JinjaTemplate, WhatIsLeftOutIsAnErrorNotOtherText) {
  for (const char* source :
       {"{% include 'x' %}", "{% import 'x' as y %}", "{% from 'x' import y %}", "{% extends 'x' %}",
        "{% block b %}{% endblock %}", "{% autoescape true %}{% endautoescape %}", "{{ 'x'|urlize }}",
        "{{ [1]|pprint }}", "{{ 'x'|xmlattr }}", "{{ 'a'.encode() }}", "{{ lipsum() }}", "{{ '\\N{DASH}' }}",
        "{{ 'a'.upper }}", "{{ [1]|map('string') }}", "{{ (-1)**0.5 }}", "{{ '%a' % 'x' }}", "{{ 10**100 }}",
        "{{ 340282366920938463463374607431768211456 }}"}) {
    Status status = Error(source);
    EXPECT_EQ(status.code(), Code::kUnusableModel) << source << ": " << status.message();
    EXPECT_TRUE(Mentions(status, "line 1, column")) << source << ": " << status.message();
  }
}

TEST(JinjaTemplate, UnknownFilterBehindConditionFailsOnlyWhenReached) {
  EXPECT_EQ(Text("{% if false %}{{ 1|nosuch }}{% endif %}{{ 1|nosuch if false else 2 }}"), "2");
  EXPECT_EQ(Error("{% if true %}{{ 1|nosuch }}{% endif %}").code(), Code::kInvalidArgument);
}

TEST(JinjaTemplate, StepsAreBounded) {
  RenderOptions options;
  options.max_steps = 10000;
  for (const char* source : {"{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}",
                             "{{ range(90000)|map('string')|join }}", "{{ (range(9000)|list) == (range(9000)|list) }}",
                             "{{ 5000 in range(90000)|list }}", "{{ range(90000)|sort|first }}"}) {
    EXPECT_EQ(Error(source, Json::object(), options).code(), Code::kResource) << source;
  }
}

TEST(JinjaTemplate, SizesAreBounded) {
  for (const char* source :
       {"{{ 'x' * 10**12 }}", "{{ [0] * 10**12 }}", "{{ 'x'.center(10**15) }}", "{{ '%1000000000000d' % 1 }}",
        "{{ '{:1000000000000}'.format(1) }}", "{{ 'x'|indent(10**12) }}", "{{ [1]|tojson(indent=10**12) }}",
        "{% set ns = namespace(s='0123456789') %}{% for i in range(90) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(90) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(90) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}", "{{ ('a' * 1000000).join(range(900)|map('string')) }}",
        "{{ [1]|batch(10**9, 0)|list }}", "{{ [1]|slice(10**12)|list }}", "{{ 'a\\tb'.expandtabs(10**12) }}",
        "{% for i in range(99999) %}{% set x = range(99999)|list %}{% endfor %}"}) {
    EXPECT_EQ(Error(source).code(), Code::kResource) << source;
  }
  RenderOptions options;
  options.max_output_bytes = 100;
  EXPECT_EQ(Error("{% for i in range(101) %}x{% endfor %}", Json::object(), options).code(), Code::kResource);
  EXPECT_EQ(Text("{% for i in range(100) %}x{% endfor %}", Json::object(), options), std::string(100, 'x'));
}

TEST(JinjaTemplate, RecursionIsBounded) {
  EXPECT_EQ(Error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").code(), Code::kResource);
  EXPECT_EQ(Error("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}").code(), Code::kResource);
  EXPECT_EQ(Error("{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}").code(),
            Code::kResource);
  EXPECT_EQ(Error("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}").code(), Code::kResource);
  EXPECT_EQ(Error("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}").code(), Code::kResource);
  EXPECT_EQ(Error("{{ " + std::string(5000, '-') + "1 }}").code(), Code::kResource);
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  EXPECT_EQ(Error(sum + " }}").code(), Code::kResource);
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if x %}";
  EXPECT_EQ(Error(blocks).code(), Code::kResource);
  // A depth that templates of tool schemas can reach.
  EXPECT_EQ(Text("{% macro m(n) %}{% if n %}{{ m(n-1) }}{% else %}end{% endif %}{% endmacro %}{{ m(150) }}"), "end");
}

TEST(JinjaTemplate, LongChainsAreReleasedWithoutRecursion) {
  EXPECT_EQ(
      Text("{% set ns = namespace(head=none) %}{% for i in range(50000) %}{% set ns.head = namespace(next=ns.head) %}"
           "{% endfor %}{{ ns.head.next is defined }}"),
      "True");
  EXPECT_EQ(Text("{% set ns = namespace(f=none) %}{% for i in range(50000) %}{% set prev = ns.f %}{% macro m() %}"
                 "{{ prev }}{% endmacro %}{% set ns.f = m %}{% endfor %}{% set ns.f = none %}done"),
            "done");
}

TEST(JinjaTemplate, DeepVariablesAreRefused) {
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_EQ(Error("{{ x }}", Json{{"x", deep}}).code(), Code::kResource);
}

TEST(JinjaTemplate, BadInputIsAStatus) {
  EXPECT_EQ(Error("\xff").code(), Code::kUnusableModel);
  EXPECT_EQ(Error("{{ x }}", Json{{"x", "\xc3"}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(Error("{{ x }}", Json::array()).code(), Code::kInvalidArgument);
  EXPECT_EQ(Template().Render(Json::object()).status().code(), Code::kInvalidArgument);
}

TEST(JinjaTemplate, KeepsKeyOrderAndBigIntegers) {
  Json variables = Json::parse(R"({"x": {"z": 18446744073709551615, "a": -9223372036854775808, "m": 1.0}})");
  EXPECT_EQ(Text("{{ x|tojson }}", variables), R"({"z": 18446744073709551615, "a": -9223372036854775808, "m": 1.0})");
}

TEST(JinjaTemplate, StrftimeNowReadsTheGivenClock) {
  RenderOptions options;
  options.now = [] {
    std::tm now{};
    now.tm_year = 99;
    now.tm_mon = 11;
    now.tm_mday = 31;
    return now;
  };
  EXPECT_EQ(Text("{{ strftime_now('%d.%m.%Y') }}", Json::object(), options), "31.12.1999");
  EXPECT_EQ(Text("{{ strftime_now('%Y')|length }}"), "4");
}

TEST(JinjaTemplate, OneTemplateServesThreads) {
  Result<Template> parsed = Template::Parse(
      "{% macro m(x) %}<{{ x }}>{% endmacro %}{% set ns = namespace(n=0) %}{% for i in range(k) %}{% set ns.n = ns.n + "
      "i %}"
      "{{ m(i) }}{% endfor %}{{ ns.n }}");
  ASSERT_TRUE(parsed.ok());
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        Result<std::string> text = parsed->Render(Json{{"k", t + 2}});
        texts[static_cast<size_t>(t)] = text.ok() ? *text : text.status().message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts[0], "<0><1>1");
  EXPECT_EQ(texts[3], "<0><1><2><3><4>10");
}

}  // namespace
}  // namespace fluvial::jinja
