// SPDX-License-Identifier: Apache-2.0
// Filters on sequences and mappings; map and select are in filters_select.cc. Those that are generators in Jinja are
// lazy iterators here.
#include <algorithm>

#include "text/jinja/attribute_path.h"
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"
#include "text/jinja/stable_order.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

Value FoldCase(const Value& v) { return v.string() ? Value::String(Lower(v.Text())) : v; }

// Stable sort of `items` by `keys`; descending keeps equal items in order too, as Python's sorted does.
Items SortBy(Interpreter& interpreter, Items items, const Items& keys, bool reverse) {
  int64_t weight = 1;
  for (const Value& key : keys) weight += key.weight();
  for (size_t n = items.size(); n > 0; n /= 2) interpreter.Charge(weight);
  auto less = [&](size_t a, size_t b) { return reverse ? Less(keys[b], keys[a]) : Less(keys[a], keys[b]); };
  Items sorted;
  sorted.reserve(items.size());
  for (size_t i : StableOrder(items.size(), less)) sorted.push_back(items[i]);
  return sorted;
}

Value Sort(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  bool case_sensitive = bound.Bool(1, false);
  std::vector<KeyOf> getters;
  if (bound.Has(2) && bound[2]->string()) {
    std::string_view rest = bound[2]->Text();
    for (bool more = true; more;) {
      size_t comma = rest.find(',');
      more = comma != std::string_view::npos;
      getters.emplace_back(Value::String(std::string(rest.substr(0, comma))), case_sensitive);
      if (more) rest.remove_prefix(comma + 1);
    }
  } else {
    getters.emplace_back(bound[2].value_or(Value::None()), case_sensitive);
  }
  Items items = ToItems(input), keys;
  for (const Value& item : items) {
    Items key;
    for (const KeyOf& getter : getters) key.push_back(getter(interpreter, item));
    keys.push_back(Value::List(std::move(key)));
  }
  return Value::List(SortBy(interpreter, std::move(items), keys, bound.Bool(0, false)));
}

Value DictSort(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  std::string by = bound.Text(1, "key");
  if (by != "key" && by != "value") FailRuntime("dictsort: by must be 'key' or 'value'");
  RequireDefined(input);
  if (!input.Is(Type::kDict)) FailRuntime("dictsort needs a mapping, got '" + TypeName(input) + "'");
  Items items, keys;
  for (const auto& [key, value] : input.Mapping().items) {
    const Value& chosen = by == "key" ? key : value;
    keys.push_back(bound.Bool(0, false) ? chosen : FoldCase(chosen));
    items.push_back(Value::Tuple({key, value}));
  }
  return Value::List(SortBy(interpreter, std::move(items), keys, bound.Bool(2, false)));
}

Value GroupBy(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  bool case_sensitive = bound.Bool(2, false);
  const Value* fallback = bound.NoneOrAbsent(1) ? nullptr : &*bound[1];
  KeyOf key_of(*bound[0], case_sensitive), real_key_of(*bound[0], true);
  Items items = ToItems(input), keys;
  for (const Value& item : items) keys.push_back(key_of(interpreter, item, fallback));
  items = SortBy(interpreter, std::move(items), keys, false);
  Items groups;
  for (size_t i = 0; i < items.size();) {
    Value key = key_of(interpreter, items[i], fallback);
    Items members;
    Value grouper = real_key_of(interpreter, items[i], fallback);
    for (; i < items.size(); ++i) {
      if (!members.empty() && !Equal(key_of(interpreter, items[i], fallback), key)) break;
      members.push_back(items[i]);
    }
    Value group = Value::Tuple({case_sensitive ? key : grouper, Value::List(std::move(members))});
    group.As<SequenceObject>().group = true;
    groups.push_back(std::move(group));
  }
  return Value::List(std::move(groups));
}

Value Unique(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("unique", args, {"case_sensitive", "attribute"});
  KeyOf key_of(bound[1].value_or(Value::None()), bound.Bool(0, false));
  auto seen = std::make_shared<std::unordered_map<std::string, bool>>();
  return Value::Iterator(
      [&interpreter, key_of, seen, next = Iterate(input)](Value* out) {
        Value item;
        while (next(&item)) {
          Value key = key_of(interpreter, item);
          interpreter.ChargeWalk(key);
          if (!seen->emplace(HashKey(key), true).second) continue;
          *out = std::move(item);
          return true;
        }
        return false;
      },
      input.depth());
}

template <bool kMax>
Value Extreme(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("min", args, {"case_sensitive", "attribute"});
  KeyOf key_of(bound[1].value_or(Value::None()), bound.Bool(0, false));
  auto next = Iterate(input);
  Value best, item;
  if (!next(&best)) return Value::Undefined("No aggregated item, sequence was empty.");
  Value best_key = key_of(interpreter, best);
  while (next(&item)) {
    Value key = key_of(interpreter, item);
    interpreter.ChargeWalk(key);
    if (kMax ? Less(best_key, key) : Less(key, best_key)) {
      best = item;
      best_key = key;
    }
  }
  return best;
}

Value Sum(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("sum", args, {"attribute", "start"});
  AttributePath path(bound[0].value_or(Value::None()));
  Value total = bound[1].value_or(Value::OfInt(0));
  if (total.string()) FailRuntime("sum() can't sum strings");
  auto next = Iterate(input);
  Value item;
  while (next(&item)) {
    interpreter.Charge(1);
    total = interpreter.Made(Add(total, path.Get(interpreter, item)));
  }
  return total;
}

Value JoinFilter(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("join", args, {"d", "attribute"});
  std::string separator = bound.Has(0) ? Str(*bound[0]) : "";
  AttributePath path(bound[1].value_or(Value::None()));
  std::string out;
  auto next = Iterate(input);
  Value item;
  for (bool first = true; next(&item); first = false) {
    if (!bound.NoneOrAbsent(1)) item = path.Get(interpreter, item);
    interpreter.ChargeWalk(item);
    if (!first) out += separator;
    out += Str(item);
    CheckStringSize(static_cast<Int>(out.size()));
  }
  return Value::String(std::move(out));
}

Value LengthFilter(Interpreter&, const Value& input, const Args& args) {
  Bound bound("length", args, {});
  Int length = Length(input);
  if (length < 0) FailRuntime("object of type '" + TypeName(input) + "' has no len()");
  return Value::OfInt(length);
}

Value First(Interpreter&, const Value& input, const Args& args) {
  Bound bound("first", args, {});
  Value item;
  return Iterate(input)(&item) ? item : Value::Undefined("No first item, sequence was empty.");
}

// reversed(): nullopt for what Python cannot walk backwards.
std::optional<Items> Reversed(const Value& v) {
  bool can = v.string() || v.Is(Type::kList) || v.Is(Type::kTuple) || v.Is(Type::kDict) || v.Is(Type::kRange) ||
             v.Is(Type::kView);
  if (v.undefined()) FailRuntime(v.UndefinedMessage());
  if (!can) return std::nullopt;
  Items items = ToItems(v);
  std::reverse(items.begin(), items.end());
  return items;
}

Value Last(Interpreter&, const Value& input, const Args& args) {
  Bound bound("last", args, {});
  if (input.undefined()) return Value::Undefined("No last item, sequence was empty.");
  if (input.Is(Type::kList) || input.Is(Type::kTuple)) {
    return input.Seq().empty() ? Value::Undefined("No last item, sequence was empty.") : input.Seq().back();
  }
  std::optional<Items> items = Reversed(input);
  if (!items) FailRuntime("'" + TypeName(input) + "' object is not reversible");
  return items->empty() ? Value::Undefined("No last item, sequence was empty.") : items->front();
}

Value Reverse(Interpreter&, const Value& input, const Args& args) {
  Bound bound("reverse", args, {});
  if (input.string()) return GetSlice(input, Value::None(), Value::None(), Value::OfInt(-1));
  if (input.undefined()) return IteratorOver({});
  if (std::optional<Items> items = Reversed(input)) return IteratorOver(std::move(*items));
  Items items = ToItems(input);
  std::reverse(items.begin(), items.end());
  return Value::List(std::move(items));
}

Value ListFilter(Interpreter&, const Value& input, const Args& args) {
  Bound bound("list", args, {});
  return Value::List(ToItems(input));
}

Value ItemsFilter(Interpreter&, const Value& input, const Args& args) {
  Bound bound("items", args, {});
  if (input.undefined()) return IteratorOver({});
  if (!input.Is(Type::kDict)) {
    // A generator in Jinja: the error comes when it is read.
    return Value::Iterator([](Value*) -> bool { FailRuntime("can only get item pairs from a mapping"); },
                           input.depth());
  }
  return Value::Iterator(Iterate(Value::View(input, 2)), input.depth());
}

Value Batch(Interpreter&, const Value& input, const Args& args) {
  Bound bound("batch", args, {"linecount", "fill_with"}, 1);
  RequireDefined(*bound[0]);
  Int size = RequireInt(*bound[0], "batch");
  Value fill = bound[1].value_or(Value::None());
  return Value::Iterator(
      [size, fill, next = Iterate(input), held = Items{}, ended = false](Value* out) mutable {
        Value item;
        while (!ended && next(&item)) {
          bool full = static_cast<Int>(held.size()) == size;
          if (full) {
            *out = Value::List(std::move(held));
            held = Items{};
          }
          held.push_back(item);
          CheckItemCount(static_cast<Int>(held.size()));
          if (full) return true;
        }
        ended = true;
        if (held.empty()) return false;
        if (!fill.none()) {
          CheckItemCount(size);
          while (static_cast<Int>(held.size()) < size) held.push_back(fill);
        }
        *out = Value::List(std::move(held));
        held = Items{};
        return true;
      },
      std::max(input.depth(), fill.depth()) + 1);
}

Value Slice(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("slice", args, {"slices", "fill_with"}, 1);
  Int slices = RequireInt(*bound[0], "slice");
  Value fill = bound[1].value_or(Value::None());
  if (slices == 0) FailRuntime("integer division or modulo by zero");
  Items items = ToItems(input);
  int depth = std::max(MaxDepth(items), fill.depth()) + 1;
  Int length = static_cast<Int>(items.size());
  Int each = slices > 0 ? length / slices : 0, extra = slices > 0 ? length % slices : 0;
  return Value::Iterator(
      [&interpreter, items = std::move(items), slices, fill, each, extra, at = Int{0},
       begin = Int{0}](Value* out) mutable {
        if (at >= slices) return false;
        interpreter.Charge(1);
        Int size = each + (at < extra ? 1 : 0);
        Items part(items.begin() + static_cast<std::ptrdiff_t>(begin),
                   items.begin() + static_cast<std::ptrdiff_t>(begin + size));
        if (!fill.none() && at >= extra) part.push_back(fill);
        begin += size;
        ++at;
        *out = Value::List(std::move(part));
        return true;
      },
      depth);
}

Value Default(Interpreter&, const Value& input, const Args& args) {
  Bound bound("default", args, {"default_value", "boolean"});
  bool replace = input.undefined() || (bound.Bool(1, false) && !Truth(input));
  return replace ? bound[0].value_or(Value::String("")) : input;
}

Value Attr(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("attr", args, {"name"}, 1);
  const std::string& name = RequireText(*bound[0], "attr");
  RequireDefined(input);
  if (std::optional<Value> value = TypeAttribute(interpreter, input, name)) return *value;
  return Value::Undefined("'" + TypeName(input) + " object' has no attribute '" + name + "'");
}

struct Entry {
  std::string_view name;
  FilterFn call;
};
constexpr Entry kFilters[] = {
    {"attr", Attr},       {"batch", Batch},       {"count", LengthFilter},
    {"d", Default},       {"default", Default},   {"dictsort", DictSort},
    {"first", First},     {"groupby", GroupBy},   {"items", ItemsFilter},
    {"join", JoinFilter}, {"last", Last},         {"length", LengthFilter},
    {"list", ListFilter}, {"max", Extreme<true>}, {"min", Extreme<false>},
    {"reverse", Reverse}, {"slice", Slice},       {"sort", Sort},
    {"sum", Sum},         {"unique", Unique},
};
constexpr std::string_view kUnsupported[] = {"filesizeformat", "pprint", "random",   "striptags",
                                             "urlencode",      "urlize", "wordwrap", "xmlattr"};

}  // namespace

Value IteratorOver(Items items) {
  int depth = MaxDepth(items);
  return Value::Iterator(
      [items = std::move(items), at = size_t{0}](Value* out) mutable {
        if (at >= items.size()) return false;
        *out = items[at++];
        return true;
      },
      depth);
}

FilterFn FindFilter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.call;
  }
  FilterFn select = FindSelectFilter(name);
  return select != nullptr ? select : FindTextFilter(name);
}

Known FilterKnown(std::string_view name) {
  if (FindFilter(name) != nullptr) return Known::kYes;
  bool known = std::find(std::begin(kUnsupported), std::end(kUnsupported), name) != std::end(kUnsupported);
  return known ? Known::kUnsupported : Known::kNo;
}

}  // namespace fluvial::jinja
