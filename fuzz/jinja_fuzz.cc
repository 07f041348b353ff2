// SPDX-License-Identifier: Apache-2.0
// libFuzzer target of the template engine: any bytes are a template. A NUL splits off JSON for the variables. Finds
// crashes, leaks, hangs and exceptions that leave the surface; equality with Python is tools/golden/fuzz_jinja.py's
// work.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  static const Json kVariables = Json::parse(R"({
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "h\u00e9"}]},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "s": "text", "x": 5, "l": [3, 1, 2]})");
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t nul = input.find('\0');
  Json variables = kVariables;
  if (nul != std::string_view::npos) {
    std::string_view text = input.substr(nul + 1);
    variables = Json::parse(text.begin(), text.end(), nullptr, false);
    if (variables.is_discarded()) variables = kVariables;
  }
  fluvial::jinja::RenderOptions options;
  options.max_steps = 200'000;
  options.max_bytes = 16 << 20;
  options.max_output_bytes = 1 << 20;
  options.max_recursion = 300;  // sanitized frames are several times larger
  auto result = fluvial::jinja::Render(input.substr(0, nul), variables, options);
  if (!result.ok() && result.status().message().empty()) std::abort();
  return 0;
}
