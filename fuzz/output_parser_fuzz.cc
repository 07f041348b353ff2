// SPDX-License-Identifier: Apache-2.0
// Any text as a model's output, in every format: pieces of any length give what the whole gives. The first byte chooses
// the pieces.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/output_parser.h"

using fluvial::text::OutputDelta;
using fluvial::text::OutputFormat;
using fluvial::text::OutputParser;
using fluvial::text::ToolFormat;

namespace {

std::string Parse(const OutputFormat& format, std::string_view text, size_t piece) {
  OutputParser parser(format);
  std::string reasoning, content, calls;
  const auto add = [&](const OutputDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const auto& call : delta.tool_calls) calls += call.id + '\0' + call.name + '\0' + call.arguments + '\0';
  };
  for (size_t i = 0; i < text.size(); i += piece) add(parser.Push(text.substr(i, piece)));
  add(parser.Finish());
  return reasoning + '\1' + content + '\1' + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = 1 + data[0] % 16;
  for (const ToolFormat tools :
       {ToolFormat::kNone, ToolFormat::kHermes, ToolFormat::kQwenXml, ToolFormat::kGlm, ToolFormat::kKimi}) {
    for (const bool reasoning : {false, true}) {
      const OutputFormat format{.tools = tools, .reasoning = reasoning, .starts_in_reasoning = data[0] >= 128};
      FLUVIAL_CHECK(Parse(format, text, piece) == Parse(format, text, size));
    }
  }
  return 0;
}
