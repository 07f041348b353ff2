// SPDX-License-Identifier: Apache-2.0
// Byte equality with Python's jinja2 in the chat template environment; files written by tools/golden/make_jinja.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/template.h"

namespace fluvial::jinja {
namespace {

using Json = nlohmann::ordered_json;

Json ReadGolden(const std::string& name) {
  std::ifstream file(std::string(FLUVIAL_SOURCE_DIR) + "/tests/golden/jinja/" + name);
  return Json::parse(file, nullptr, false);
}

// The clock of the goldens: Tuesday 2025-03-04 05:06:07.
RenderOptions GoldenOptions() {
  RenderOptions options;
  options.now = [] {
    std::tm now{};
    now.tm_year = 125;
    now.tm_mon = 2;
    now.tm_mday = 4;
    now.tm_hour = 5;
    now.tm_min = 6;
    now.tm_sec = 7;
    now.tm_wday = 2;
    now.tm_yday = 62;
    return now;
  };
  return options;
}

// Compares one rendering with {"output": text} or {"error": Python's message}.
void Expect(const std::string& source, const Json& variables, const Json& want) {
  Result<std::string> got = Render(source, variables, GoldenOptions());
  if (want.contains("output")) {
    ASSERT_TRUE(got.ok()) << got.status().message() << "\ntemplate: " << source;
    EXPECT_EQ(*got, want["output"].get<std::string>()) << "template: " << source;
  } else {
    EXPECT_FALSE(got.ok()) << "expected " << want["error"] << "\ntemplate: " << source << "\ngot: " << *got;
  }
}

TEST(JinjaGolden, MicroTemplates) {
  Json golden = ReadGolden("micro.json");
  ASSERT_TRUE(golden.is_object());
  size_t outputs = 0, errors = 0;
  for (const auto& [group, cases] : golden["groups"].items()) {
    SCOPED_TRACE(group);
    for (const Json& entry : cases) {
      Expect(entry["template"].get<std::string>(), golden["variables"], entry);
      ++(entry.contains("output") ? outputs : errors);
    }
  }
  EXPECT_GE(outputs, 150u);
  EXPECT_GE(errors, 90u);
}

TEST(JinjaGolden, ModelShapes) {
  Json golden = ReadGolden("models.json");
  ASSERT_TRUE(golden.is_object());
  size_t count = 0;
  for (const auto& [model, source] : golden["templates"].items()) {
    Result<Template> parsed = Template::Parse(source.get<std::string>());
    ASSERT_TRUE(parsed.ok()) << model << ": " << parsed.status().message();
    for (const auto& [name, want] : golden["outputs"][model].items()) {
      SCOPED_TRACE(model + " / " + name);
      Result<std::string> got = parsed->Render(golden["conversations"][name], GoldenOptions());
      if (want.contains("output")) {
        ASSERT_TRUE(got.ok()) << got.status().message();
        EXPECT_EQ(*got, want["output"].get<std::string>());
      } else {
        EXPECT_FALSE(got.ok()) << "expected " << want["error"] << ", got " << *got;
      }
      ++count;
    }
  }
  EXPECT_GE(count, 200u);
}

// A template raises with its own words; Python prints "TemplateError: " before them.
TEST(JinjaGolden, RaisedMessagesArriveUnchanged) {
  Json golden = ReadGolden("models.json");
  size_t raised = 0;
  for (const auto& [model, source] : golden["templates"].items()) {
    for (const auto& [name, want] : golden["outputs"][model].items()) {
      std::string error = want.value("error", "");
      if (!error.starts_with("TemplateError: ")) continue;
      Result<std::string> got = Render(source.get<std::string>(), golden["conversations"][name]);
      ASSERT_FALSE(got.ok());
      EXPECT_TRUE(got.status().message().starts_with(error.substr(15) + " (chat template, line "))
          << got.status().message();
      EXPECT_EQ(got.status().code(), Code::kInvalidArgument);
      ++raised;
    }
  }
  EXPECT_GE(raised, 4u);
}

}  // namespace
}  // namespace fluvial::jinja
