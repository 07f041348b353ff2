// SPDX-License-Identifier: Apache-2.0
// Tool calls as models write them, between their opening and closing marks.
//
// Formats, read off the chat templates that teach them:
//   hermes    {"name": NAME, "arguments": {...}}                                             Qwen2.5, Qwen3, Qwen3-VL
//   qwen_xml  <function=NAME><parameter=KEY>VALUE</parameter>...</function>                  Qwen3-Coder, Qwen3.5
//   glm       NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...                      GLM-4.5 and later
//   kimi      functions.NAME:INDEX<|tool_call_argument_begin|>{...}                          Kimi-K2, Kimi-Linear
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fluvial/status.h"

namespace fluvial::text {

enum class ToolFormat : uint8_t { kNone, kHermes, kQwenXml, kGlm, kKimi };

struct ToolCall {
  std::string id;  ///< as the model wrote it (kimi); empty otherwise, and the caller makes one up
  std::string name;
  std::string arguments;  ///< text of a JSON object
};

/// Parameter types of a request's tools. The XML-like formats write strings without quotes, so that only the schema
/// tells `true` from "true".
class ToolSchemas {
 public:
  /// `tools`: OpenAI's list, [{"type": "function", "function": {"name", "parameters": {...}}}, ...]; empty text for
  /// none. kInvalidArgument when it is not a list of objects with names.
  static Result<ToolSchemas> Parse(std::string_view tools);

  enum class Kind : uint8_t { kString, kOther, kUnknown };
  /// kString when the schema allows strings, kOther when it allows other types only.
  Kind KindOf(std::string_view function, std::string_view parameter) const;

 private:
  std::map<std::pair<std::string, std::string>, Kind, std::less<>> kinds_;
};

/// The call that `body` (what stands between the marks) writes, or nothing when it is not a call.
std::optional<ToolCall> ParseToolCall(ToolFormat format, std::string_view body, const ToolSchemas& schemas);

}  // namespace fluvial::text
