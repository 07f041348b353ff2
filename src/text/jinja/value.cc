// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

constexpr size_t kLinearSearch = 8;  // dicts up to this size are searched without an index

void Adopt(Object* parent, const Value& child) {
  parent->depth = std::max(parent->depth, child.depth() + 1);
  parent->weight = std::min(kMaxWeight, parent->weight + child.weight());
  if (parent->depth > kMaxDepth) {
    Fail(ErrorKind::kLimit, "values nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
}

std::shared_ptr<SequenceObject> MakeSequence(Items items) {
  CheckItemCount(static_cast<Int>(items.size()));
  auto object = std::make_shared<SequenceObject>();
  object->depth = 1;
  for (const Value& item : items) Adopt(object.get(), item);
  object->items = std::move(items);
  return object;
}

}  // namespace

void Fail(ErrorKind kind, std::string message) { throw JinjaError{kind, std::move(message), 0, 0}; }

void CheckStringSize(Int bytes) {
  if (bytes > kMaxStringBytes) Fail(ErrorKind::kLimit, "a string of more than 64 MiB");
}

void CheckItemCount(Int count) {
  if (count > kMaxItems) Fail(ErrorKind::kLimit, "a sequence of more than 4194304 items");
}

Value Value::None() {
  Value v;
  v.type_ = Type::kNone;
  return v;
}

Value Value::Bool(bool b) {
  Value v;
  v.type_ = Type::kBool;
  v.i_ = b ? 1 : 0;
  return v;
}

Value Value::OfInt(Int i) {
  Value v;
  v.type_ = Type::kInt;
  v.i_ = i;
  return v;
}

Value Value::Float(double d) {
  Value v;
  v.type_ = Type::kFloat;
  v.d_ = d;
  return v;
}

Value Value::String(std::string text, bool markup) {
  CheckStringSize(static_cast<Int>(text.size()));
  auto object = std::make_shared<StringObject>();
  object->length = CountCodePoints(text);
  object->weight = 1 + static_cast<int64_t>(text.size()) / 16;
  object->text = std::move(text);
  Value v = Of(Type::kString, std::move(object));
  v.flag_ = markup;
  return v;
}

Value Value::List(Items items) { return Of(Type::kList, MakeSequence(std::move(items))); }
Value Value::Tuple(Items items) { return Of(Type::kTuple, MakeSequence(std::move(items))); }

Value Value::Dict(std::shared_ptr<DictObject> dict) {
  dict->depth = 1;
  dict->weight = 1;
  for (const auto& [key, value] : dict->items) {
    Adopt(dict.get(), key);
    Adopt(dict.get(), value);
  }
  return Of(Type::kDict, std::move(dict));
}

Value Value::Range(Int start, Int stop, Int step) {
  if (step == 0) FailRuntime("range() arg 3 must not be zero");
  auto object = std::make_shared<RangeObject>();
  Int count = step > 0 ? (stop > start ? (stop - start - 1) / step + 1 : 0)
                       : (start > stop ? (start - stop - 1) / -step + 1 : 0);
  object->start = start;
  object->stop = stop;
  object->step = step;
  object->count = count;
  object->weight = static_cast<int64_t>(std::min<Int>(count, kMaxWeight)) + 1;
  return Of(Type::kRange, std::move(object));
}

Value Value::Iterator(std::function<bool(Value*)> next, int source_depth) {
  auto object = std::make_shared<IteratorObject>();
  object->depth = source_depth + 1;
  if (object->depth > kMaxDepth) Fail(ErrorKind::kLimit, "iterators chained too deep");
  object->next = std::move(next);
  return Of(Type::kIterator, std::move(object));
}

Value Value::View(const Value& dict, int part) {
  auto object = std::make_shared<ViewObject>();
  object->depth = dict.depth();
  object->weight = dict.weight();
  object->dict = dict;
  object->part = part;
  return Of(Type::kView, std::move(object));
}

Value Value::Undefined(std::string hint) {
  auto object = std::make_shared<StringObject>();
  object->text = std::move(hint);
  return Of(Type::kUndefined, std::move(object));
}

Value Value::Of(Type type, std::shared_ptr<Object> object) {
  Value v;
  v.type_ = type;
  v.object_ = std::move(object);
  return v;
}

double Value::AsDouble() const { return type_ == Type::kFloat ? d_ : static_cast<double>(i_); }
const std::string& Value::Text() const { return As<StringObject>().text; }
int64_t Value::TextLength() const { return As<StringObject>().length; }
const Items& Value::Seq() const { return As<SequenceObject>().items; }
const DictObject& Value::Mapping() const { return As<DictObject>(); }
std::string Value::UndefinedMessage() const {
  return object_ ? As<StringObject>().text : std::string("an undefined value was used");
}

const Value* DictObject::Find(std::string_view key) const {
  if (items.size() > kLinearSearch && !index_.empty()) {
    auto it = index_.find("s" + std::string(key));
    return it == index_.end() ? nullptr : &items[it->second].second;
  }
  for (const auto& [k, v] : items) {
    if (k.string() && k.Text() == key) return &v;
  }
  return nullptr;
}

const Value* DictObject::Find(const Value& key) const {
  if (key.string()) return Find(std::string_view(key.Text()));
  std::string hash = HashKey(key);
  if (!index_.empty()) {
    auto it = index_.find(hash);
    return it == index_.end() ? nullptr : &items[it->second].second;
  }
  for (const auto& [k, v] : items) {
    if (!k.string() && HashKey(k) == hash) return &v;
  }
  return nullptr;
}

void DictObject::Set(Value key, Value value) {
  if (const Value* found = Find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  CheckItemCount(static_cast<Int>(items.size()) + 1);
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() > kLinearSearch) Index();
}

void DictObject::Index() {
  size_t from = index_.empty() ? 0 : items.size() - 1;
  for (size_t i = from; i < items.size(); ++i) index_[HashKey(items[i].first)] = i;
}

bool LoopObject::Next(Value* out) {
  if (!pending.empty()) {
    *out = pending.front();
    pending.erase(pending.begin());
  } else if (!source(out)) {
    return false;
  }
  ++index0;
  before = current;
  current = *out;
  return true;
}

const Value* LoopObject::Peek() {
  if (pending.empty()) {
    Value next;
    if (!source(&next)) return nullptr;
    pending.push_back(std::move(next));
  }
  return &pending.front();
}

Int LoopObject::Length() {
  if (known_length >= 0) return known_length;
  Value next;
  while (source(&next)) {
    pending.push_back(next);
    CheckItemCount(static_cast<Int>(pending.size()));
  }
  source = [rest = pending, at = size_t{0}](Value* out) mutable {
    if (at == rest.size()) return false;
    *out = rest[at++];
    return true;
  };
  known_length = static_cast<Int>(pending.size()) + index0 + 1;
  pending.clear();
  return known_length;
}

std::string TypeName(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return v.markup() ? "Markup" : "str";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return "tuple";
    case Type::kDict:
      return "dict";
    case Type::kRange:
      return "range";
    case Type::kView: {
      static constexpr const char* kNames[] = {"dict_keys", "dict_values", "dict_items"};
      return kNames[v.As<ViewObject>().part];
    }
    case Type::kIterator:
      return "generator";
    case Type::kNamespace:
      return "Namespace";
    case Type::kFunction:
      return "function";
    case Type::kLoop:
      return "LoopContext";
    case Type::kCycler:
      return "Cycler";
  }
  return "object";
}

bool Truth(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return v.AsInt() != 0;
    case Type::kFloat:
      return v.AsDouble() != 0;
    case Type::kString:
      return !v.Text().empty();
    case Type::kList:
    case Type::kTuple:
      return !v.Seq().empty();
    case Type::kDict:
    case Type::kRange:
    case Type::kView:
    case Type::kLoop:
      return Length(v) != 0;
    default:
      return true;
  }
}

Int Length(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      return v.TextLength();
    case Type::kList:
    case Type::kTuple:
      return static_cast<Int>(v.Seq().size());
    case Type::kDict:
      return static_cast<Int>(v.Mapping().items.size());
    case Type::kRange:
      return v.As<RangeObject>().count;
    case Type::kView:
      return static_cast<Int>(v.As<ViewObject>().dict.Mapping().items.size());
    case Type::kLoop:
      return v.As<LoopObject>().Length();
    default:
      return -1;
  }
}

int MaxDepth(const Items& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth;
}

void RequireDefined(const Value& v) {
  if (v.undefined()) FailRuntime(v.UndefinedMessage());
}

std::string IntText(Int i) {
  if (i == 0) return "0";
  bool negative = i < 0;
  std::string digits;
  for (; i != 0; i /= 10) {
    int digit = static_cast<int>(i % 10);
    digits.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

}  // namespace fluvial::jinja
