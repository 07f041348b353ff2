// SPDX-License-Identifier: Apache-2.0
#include "text/tool_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "text/json_reader.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// Moves `*text` behind the next `mark` and gives what stood before it; nothing when there is no such mark.
std::optional<std::string_view> TakeUntil(std::string_view mark, std::string_view* text) {
  const size_t at = text->find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text->substr(0, at);
  text->remove_prefix(at + mark.size());
  return before;
}

bool IsJson(std::string_view text) { return Json::accept(text); }

bool IsJsonObject(std::string_view text) { return text.starts_with('{') && IsJson(text); }

std::string Quoted(std::string_view text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

// The value of a parameter as JSON text. Python's spellings occur because templates print values that way.
std::string ValueText(std::string_view value, ToolSchemas::Kind kind, bool guess) {
  if (kind == ToolSchemas::Kind::kString || (kind == ToolSchemas::Kind::kUnknown && !guess)) return Quoted(value);
  const std::string_view trimmed = Trim(value);
  if (!trimmed.empty() && IsJson(trimmed)) return std::string(trimmed);
  if (trimmed == "True") return "true";
  if (trimmed == "False") return "false";
  if (trimmed == "None") return "null";
  return Quoted(value);
}

// An object's text from its members; a key given again takes its new value.
class ObjectText {
 public:
  void Put(std::string_view key, std::string value) {
    for (auto& [name, old] : members_) {
      if (name != key) continue;
      old = std::move(value);
      return;
    }
    members_.emplace_back(key, std::move(value));
  }
  std::string Text() const {
    std::string out = "{";
    for (const auto& [key, value] : members_) {
      if (out.size() > 1) out += ", ";
      out += Quoted(key);
      out += ": ";
      out += value;
    }
    return out + "}";
  }

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

std::optional<ToolCall> ParseHermes(std::string_view body) {
  // Arguments are handed on as written: numbers keep their digits and members their order.
  body = Trim(body);
  if (!IsJsonObject(body)) return std::nullopt;
  JsonReader reader(body, "tool call");
  ToolCall call;
  call.arguments = "{}";
  std::string_view key, text;
  if (!reader.EnterObject()) return std::nullopt;
  while (reader.NextMember(&key)) {
    if (key == "name" && reader.Peek() == JsonReader::Kind::kString) {
      if (!reader.String(&text)) return std::nullopt;
      call.name = text;
    } else if (key == "arguments" || key == "parameters") {
      if (reader.Peek() == JsonReader::Kind::kString) {
        if (!reader.String(&text)) return std::nullopt;
      } else if (!reader.Skip(&text)) {
        return std::nullopt;
      }
      if (!IsJsonObject(Trim(text))) return std::nullopt;
      call.arguments = Trim(text);
    } else if (!reader.Skip()) {
      return std::nullopt;
    }
  }
  if (!reader.ok() || call.name.empty()) return std::nullopt;
  return call;
}

std::optional<ToolCall> ParseQwenXml(std::string_view body, const ToolSchemas& schemas) {
  const auto before = TakeUntil("<function=", &body);
  if (!before || !Trim(*before).empty()) return std::nullopt;
  const auto name = TakeUntil(">", &body);
  if (!name || Trim(*name).empty()) return std::nullopt;
  ToolCall call;
  call.name = Trim(*name);
  if (const size_t end = body.rfind("</function>"); end != std::string_view::npos) body = body.substr(0, end);
  ObjectText arguments;
  constexpr std::string_view kOpen = "<parameter=", kClose = "</parameter>";
  while (TakeUntil(kOpen, &body)) {
    const auto key = TakeUntil(">", &body);
    if (!key) return std::nullopt;
    // A value ends at its closing mark; one that lacks it ends where the next parameter begins, or at the end.
    const size_t close = body.find(kClose), next = body.find(kOpen);
    const size_t end = std::min({close, next, body.size()});
    std::string_view value = body.substr(0, end);
    body.remove_prefix(end == close ? end + kClose.size() : end);
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    const std::string_view parameter = Trim(*key);
    arguments.Put(parameter, ValueText(value, schemas.KindOf(call.name, parameter), false));
  }
  call.arguments = arguments.Text();
  return call;
}

std::optional<ToolCall> ParseGlm(std::string_view body, const ToolSchemas& schemas) {
  ToolCall call;
  const std::string_view head = body.substr(0, body.find("<arg_key>"));
  call.name = Trim(head);
  if (call.name.empty() || call.name.find_first_of(kSpaces) != std::string::npos) return std::nullopt;
  body.remove_prefix(head.size());
  ObjectText arguments;
  while (TakeUntil("<arg_key>", &body)) {
    const auto key = TakeUntil("</arg_key>", &body);
    if (!key || !TakeUntil("<arg_value>", &body)) return std::nullopt;
    const auto value = TakeUntil("</arg_value>", &body);
    if (!value) return std::nullopt;
    const std::string_view parameter = Trim(*key);
    arguments.Put(parameter, ValueText(*value, schemas.KindOf(call.name, parameter), true));
  }
  call.arguments = arguments.Text();
  return call;
}

std::optional<ToolCall> ParseKimi(std::string_view body) {
  const auto head = TakeUntil("<|tool_call_argument_begin|>", &body);
  if (!head) return std::nullopt;
  ToolCall call;
  call.id = Trim(*head);
  std::string_view name = call.id;
  if (const size_t colon = name.rfind(':'); colon != std::string_view::npos) name = name.substr(0, colon);
  if (name.starts_with("functions.")) name.remove_prefix(std::string_view("functions.").size());
  call.name = name;
  const std::string_view arguments = Trim(body);
  call.arguments = arguments.empty() ? "{}" : arguments;
  if (call.name.empty() || !IsJsonObject(call.arguments)) return std::nullopt;
  return call;
}

// Whether a parameter's schema lets a string pass, as far as `type`, `enum`, `anyOf` and `oneOf` tell.
ToolSchemas::Kind KindOfSchema(const Json& schema, int depth = 0) {
  using Kind = ToolSchemas::Kind;
  if (!schema.is_object() || depth > 8) return Kind::kUnknown;
  const auto kind_of_type = [](const Json& type) { return type == "string" ? Kind::kString : Kind::kOther; };
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (type->is_string()) return kind_of_type(*type);
    if (type->is_array()) {
      for (const Json& one : *type) {
        if (kind_of_type(one) == Kind::kString) return Kind::kString;
      }
      return Kind::kOther;
    }
  }
  Kind kind = Kind::kUnknown;
  for (const char* name : {"anyOf", "oneOf"}) {
    const auto list = schema.find(name);
    if (list == schema.end() || !list->is_array()) continue;
    for (const Json& one : *list) {
      const Kind k = KindOfSchema(one, depth + 1);
      if (k == Kind::kString) return k;
      if (k == Kind::kOther) kind = k;
    }
  }
  if (const auto list = schema.find("enum"); list != schema.end() && list->is_array()) {
    for (const Json& one : *list) {
      if (one.is_string()) return Kind::kString;
      kind = Kind::kOther;
    }
  }
  return kind;
}

}  // namespace

Result<ToolSchemas> ToolSchemas::Parse(std::string_view tools) {
  ToolSchemas schemas;
  if (Trim(tools).empty()) return schemas;
  const Json json = Json::parse(tools, nullptr, false);
  if (!json.is_array()) return Status::InvalidArgument("tools must be a JSON list of function tools");
  for (const Json& tool : json) {
    const auto nested = tool.is_object() ? tool.find("function") : tool.end();
    const Json& function = nested != tool.end() ? *nested : tool;
    const auto name = function.is_object() ? function.find("name") : function.end();
    if (name == function.end() || !name->is_string()) {
      return Status::InvalidArgument("every tool must be an object with function.name");
    }
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) {
      schemas.kinds_[{name->get<std::string>(), key}] = KindOfSchema(schema);
    }
  }
  return schemas;
}

ToolSchemas::Kind ToolSchemas::KindOf(std::string_view function, std::string_view parameter) const {
  const auto it = kinds_.find(std::pair<std::string, std::string>(function, parameter));
  return it == kinds_.end() ? Kind::kUnknown : it->second;
}

std::optional<ToolCall> ParseToolCall(ToolFormat format, std::string_view body, const ToolSchemas& schemas) {
  if (!IsValidUtf8(body)) return std::nullopt;
  switch (format) {
    case ToolFormat::kHermes:
      return ParseHermes(body);
    case ToolFormat::kQwenXml:
      return ParseQwenXml(body, schemas);
    case ToolFormat::kGlm:
      return ParseGlm(body, schemas);
    case ToolFormat::kKimi:
      return ParseKimi(body);
    case ToolFormat::kNone:
      break;
  }
  return std::nullopt;
}

}  // namespace fluvial::text
