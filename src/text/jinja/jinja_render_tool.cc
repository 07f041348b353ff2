// SPDX-License-Identifier: Apache-2.0
// Test tool of the template engine: one JSON object per line on stdin, {"template": T, "variables": {...}}, one line of
// JSON out for each: {"output": TEXT} or {"error": MESSAGE, "code": NAME}. strftime_now sees 2025-03-04 05:06:07.
// tools/golden/fuzz_jinja.py compares it with Python.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/template.h"

int main() {
  using Json = nlohmann::ordered_json;
  fluvial::jinja::RenderOptions options;
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
  std::string line;
  while (std::getline(std::cin, line)) {
    Json request = Json::parse(line, nullptr, false);
    if (!request.is_object() || !request.contains("template") || !request["template"].is_string()) {
      std::cerr << "each line must be {\"template\": TEXT, \"variables\": {...}}\n";
      return 2;
    }
    auto result = fluvial::jinja::Render(request["template"].get_ref<const std::string&>(),
                                         request.value("variables", Json::object()), options);
    Json answer;
    if (result.ok()) {
      answer["output"] = *result;
    } else {
      answer["error"] = result.status().message();
      answer["code"] = std::string(fluvial::CodeName(result.status().code()));
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
