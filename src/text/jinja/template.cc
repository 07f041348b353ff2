// SPDX-License-Identifier: Apache-2.0
// The surface: JSON in, text or Status out. The only file of the engine that sees nlohmann/json; exceptions stop here.
#include "text/jinja/template.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/jinja/interpreter.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value FromJson(const Json& json, int depth) {
  if (depth >= kMaxDepth) Fail(ErrorKind::kLimit, "the variables are nested deeper than 200 levels");
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::OfInt(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value::OfInt(static_cast<Int>(json.get<uint64_t>()));
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!IsValidUtf8(text)) FailRuntime("a string among the variables is not valid UTF-8");
      return Value::String(text);
    }
    case Json::value_t::array: {
      Items items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(FromJson(item, depth + 1));
      return Value::List(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<DictObject>();
      for (const auto& [key, value] : json.items()) {
        if (!IsValidUtf8(key)) FailRuntime("a key among the variables is not valid UTF-8");
        dict->Set(Value::String(key), FromJson(value, depth + 1));
      }
      return Value::Dict(std::move(dict));
    }
    case Json::value_t::null:
      return Value::None();
    default:
      FailRuntime("binary values have no place among the variables of a template");
  }
}

Status ToStatus(const JinjaError& error) {
  std::string message = error.message;
  if (error.line > 0) {
    message += " (chat template, line " + std::to_string(error.line) + ", column " + std::to_string(error.column) + ")";
  }
  switch (error.kind) {
    case ErrorKind::kRuntime:
      return Status::InvalidArgument(std::move(message));
    case ErrorKind::kLimit:
      return Status::Resource(std::move(message));
    default:
      return Status::UnusableModel(std::move(message));
  }
}

// Runs `body` and turns what it throws into a Status.
template <class T, class Body>
Result<T> Guarded(Body body) {
  try {
    return body();
  } catch (const JinjaError& error) {
    return ToStatus(error);
  } catch (const std::bad_alloc&) {
    return Status::Resource("out of memory while rendering a chat template; shorten the conversation");
  } catch (const std::exception& error) {
    return Status::Failed(std::string("rendering a chat template failed: ") + error.what());
  }
}

}  // namespace

Result<Template> Template::Parse(std::string_view source) {
  return Guarded<Template>([&]() -> Result<Template> {
    if (!IsValidUtf8(source)) return Status::UnusableModel("the chat template is not valid UTF-8");
    if (source.size() > (size_t{16} << 20)) return Status::UnusableModel("the chat template is larger than 16 MiB");
    Template result;
    result.program_ = std::make_shared<const Program>(jinja::Parse(source));
    return result;
  });
}

Result<std::string> Template::Render(const Json& variables, const RenderOptions& options) const {
  return Guarded<std::string>([&]() -> Result<std::string> {
    if (program_ == nullptr) return Status::InvalidArgument("this Template was not made by Template::Parse");
    if (!variables.is_object()) return Status::InvalidArgument("the variables of a template must be a JSON object");
    Value values = FromJson(variables, 0);
    return Interpreter(*program_, options).Run(values.Mapping());
  });
}

Result<std::string> Render(std::string_view source, const Json& variables, const RenderOptions& options) {
  FLUVIAL_ASSIGN_OR_RETURN(Template parsed, Template::Parse(source));
  return parsed.Render(variables, options);
}

}  // namespace fluvial::jinja
