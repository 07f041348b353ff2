// SPDX-License-Identifier: Apache-2.0
// Argument binding and the global functions of the chat template environment.
#include <algorithm>
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"

namespace fluvial::jinja {
namespace {

constexpr Int kMaxRange = 100000;  // the sandbox's MAX_RANGE
constexpr size_t kMaxTimeText = 4096;

Value CallRange(Interpreter&, Args& args) {
  Bound bound("range", args, {"start", "stop", "step"}, 1, 3);
  Int first = RequireInt(*bound[0], "range()");
  Int start = bound.Has(1) ? first : 0;
  Int stop = bound.Has(1) ? RequireInt(*bound[1], "range()") : first;
  Int step = bound.Has(2) ? RequireInt(*bound[2], "range()") : 1;
  constexpr Int kFar = Int{1} << 100;  // keeps start + step * i inside Int
  if (std::max({start, stop, step}) > kFar || std::min({start, stop, step}) < -kFar) {
    Fail(ErrorKind::kUnsupported, "range() beyond 100 bits");
  }
  Value range = Value::Range(start, stop, step);
  if (range.As<RangeObject>().count > kMaxRange) FailRuntime("range too big: the sandbox allows 100000 items");
  return range;
}

// dict(mapping_or_pairs, **kwargs) into `dict`.
void FillDict(DictObject* dict, const char* function, const Args& args) {
  if (args.positional.size() > 1) FailRuntime(std::string(function) + " expected at most 1 argument");
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.Is(Type::kDict)) {
      for (const auto& [key, value] : from.Mapping().items) dict->Set(key, value);
    } else {
      for (const Value& pair : ToItems(from)) {
        Items parts = ToItems(pair);
        if (parts.size() != 2) FailRuntime("dictionary update sequence element has a length other than 2");
        dict->Set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.keywords) dict->Set(Value::String(name), value);
}

Value CallDict(Interpreter&, Args& args) {
  auto dict = std::make_shared<DictObject>();
  FillDict(dict.get(), "dict", args);
  return Value::Dict(std::move(dict));
}

Value CallNamespace(Interpreter& interpreter, Args& args) {
  Value result = interpreter.NewNamespace();
  auto& attributes = result.As<NamespaceObject>().attributes;
  FillDict(&attributes, "namespace", args);
  for (const auto& [key, value] : attributes.items) {
    if (key.string() && key.Text().starts_with("_")) {
      FailRuntime("a namespace cannot hold '" + key.Text() + "': it starts with '_'");
    }
  }
  return result;
}

Value CallCycler(Interpreter&, Args& args) {
  if (!args.keywords.empty()) FailRuntime("cycler() takes no keyword arguments");
  if (args.positional.empty()) FailRuntime("at least one item has to be provided");
  auto cycler = std::make_shared<CyclerObject>();
  cycler->depth = MaxDepth(args.positional) + 1;
  if (cycler->depth > kMaxDepth) Fail(ErrorKind::kLimit, "cyclers nested too deep");
  cycler->items = args.positional;
  return Value::Of(Type::kCycler, std::move(cycler));
}

Value CallJoiner(Interpreter&, Args& args) {
  Bound bound("joiner", args, {"sep"});
  Value separator = bound[0].value_or(Value::String(", "));
  Value joiner = Function("joiner", [separator, used = std::make_shared<bool>(false)](Interpreter&, Args& call) {
    Bound none("joiner", call, {});
    if (*used) return separator;
    *used = true;
    return Value::String("");
  });
  joiner.object()->depth = separator.depth() + 1;
  if (joiner.depth() > kMaxDepth) Fail(ErrorKind::kLimit, "joiners nested too deep");
  return joiner;
}

Value CallRaise(Interpreter& interpreter, Args& args) {
  Bound bound("raise_exception", args, {"message"}, 1);
  interpreter.ChargeWalk(*bound[0]);
  FailRuntime(Str(*bound[0]));
}

Value CallStrftime(Interpreter& interpreter, Args& args) {
  Bound bound("strftime_now", args, {"format"}, 1);
  std::string format = RequireText(*bound[0], "strftime_now()");
  if (format.empty()) return Value::String("");
  if (format.size() > kMaxTimeText / 8 || format.find('\0') != std::string::npos) {
    FailRuntime("the format of strftime_now() is too long or holds NUL");
  }
  std::tm now{};
  if (interpreter.options().now) {
    now = interpreter.options().now();
  } else {
    std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  if (format.find("%f") != std::string::npos || format.find("%:z") != std::string::npos) {
    Fail(ErrorKind::kUnsupported, "strftime_now() without microseconds and %:z only");
  }
  // A blank in front tells an empty result from one that does not fit.
  format = " " + format;
  std::string text(kMaxTimeText, '\0');
  size_t size = std::strftime(text.data(), text.size(), format.c_str(), &now);
  if (size == 0) FailRuntime("the format of strftime_now() is not usable");
  text.resize(size);
  return Value::String(text.substr(1));
}

struct GlobalEntry {
  std::string_view name;
  Value (*call)(Interpreter&, Args&);
};
constexpr GlobalEntry kGlobals[] = {
    {"range", CallRange},           {"dict", CallDict},     {"namespace", CallNamespace},
    {"cycler", CallCycler},         {"joiner", CallJoiner}, {"raise_exception", CallRaise},
    {"strftime_now", CallStrftime},
};

}  // namespace

Bound::Bound(const char* function, const Args& args, std::initializer_list<const char*> names, size_t required,
             size_t positional_only)
    : function_(function), names_(names.begin(), names.end()), slots_(names.size()) {
  auto fail = [&](const std::string& what) { FailRuntime(std::string(function) + "() " + what); };
  if (args.positional.size() > names_.size()) {
    fail("takes at most " + std::to_string(names_.size()) + " arguments (" + std::to_string(args.positional.size()) +
         " given)");
  }
  for (size_t i = 0; i < args.positional.size(); ++i) slots_[i] = args.positional[i];
  for (const auto& [name, value] : args.keywords) {
    auto it = std::find(names_.begin() + static_cast<std::ptrdiff_t>(std::min(positional_only, names_.size())),
                        names_.end(), name);
    if (it == names_.end()) fail("got an unexpected keyword argument '" + name + "'");
    auto& slot = slots_[static_cast<size_t>(it - names_.begin())];
    if (slot) fail("got multiple values for argument '" + name + "'");
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!slots_[i]) fail("needs the argument '" + names_[i] + "'");
  }
}

bool Bound::Bool(size_t i, bool fallback) const { return slots_[i] ? Truth(*slots_[i]) : fallback; }

Int Bound::Integer(size_t i, Int fallback) const { return slots_[i] ? RequireInt(*slots_[i], function_) : fallback; }

std::string Bound::Text(size_t i, std::string fallback) const {
  return slots_[i] ? RequireText(*slots_[i], function_) : std::move(fallback);
}

Int RequireInt(const Value& v, const char* what) {
  RequireDefined(v);
  if (!v.integral()) FailRuntime(std::string(what) + ": an integer is needed, got '" + TypeName(v) + "'");
  return v.AsInt();
}

const std::string& RequireText(const Value& v, const char* what) {
  RequireDefined(v);
  if (!v.string()) FailRuntime(std::string(what) + ": a string is needed, got '" + TypeName(v) + "'");
  return v.Text();
}

Value Function(std::string name, std::function<Value(Interpreter&, Args&)> call) {
  auto function = std::make_shared<FunctionObject>();
  function->name = std::move(name);
  function->call = std::move(call);
  return Value::Of(Type::kFunction, std::move(function));
}

std::optional<Value> GlobalValue(Interpreter&, std::string_view name) {
  for (const GlobalEntry& entry : kGlobals) {
    if (entry.name == name) return Function(std::string(name), entry.call);
  }
  if (name == "lipsum") {
    return Function("lipsum", [](Interpreter&, Args&) -> Value {
      Fail(ErrorKind::kUnsupported, "the function 'lipsum' is not supported");
    });
  }
  return std::nullopt;
}

}  // namespace fluvial::jinja
