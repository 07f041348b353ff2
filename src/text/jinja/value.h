// SPDX-License-Identifier: Apache-2.0
// Values of the template language: Python's data model as far as Jinja shows it. Integers are not floats, None is not
// undefined, tuples are not lists, text is counted in code points.
//
// Values are immutable except namespaces, iterators and cyclers, so copies share. Every container knows its nesting
// depth and its total weight: depth bounds recursion (and destructors), weight is what an operation that walks the
// whole value costs. Inside the engine failures are thrown as JinjaError and caught at its surface (template.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fluvial::jinja {

/// 128 bits, so that every 64-bit number of a JSON schema keeps its digits; overflow is an error.
__extension__ typedef __int128 Int;

/// What stopped a template; decides the Code at the surface.
enum class ErrorKind {
  kSyntax,       ///< the template text is wrong
  kUnsupported,  ///< Jinja knows it, this engine does not
  kRuntime,      ///< the template failed on this conversation (raise_exception, type errors, undefined)
  kLimit,        ///< steps, output, size or recursion
};

struct JinjaError {
  ErrorKind kind;
  std::string message;
  int line = 0;    ///< 0: not known yet
  int column = 0;  ///< in code points, from 1
};

[[noreturn]] void Fail(ErrorKind kind, std::string message);
[[noreturn]] inline void FailRuntime(std::string message) { Fail(ErrorKind::kRuntime, std::move(message)); }

/// Bounds on one value; bounds on a whole rendering are in template.h.
inline constexpr int kMaxDepth = 200;
inline constexpr int64_t kMaxStringBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxItems = int64_t{1} << 22;
void CheckStringSize(Int bytes);
void CheckItemCount(Int count);

class Value;
class Interpreter;
struct Args;
using Items = std::vector<Value>;

enum class Type : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,      ///< dict.keys(), .values(), .items()
  kIterator,  ///< generator or iterator: consumed once
  kNamespace,
  kFunction,  ///< macro, bound method or builtin
  kLoop,
  kCycler,
};

struct Object {
  virtual ~Object() = default;
  int depth = 0;
  int64_t weight = 1;  ///< saturates at kMaxWeight
};
inline constexpr int64_t kMaxWeight = int64_t{1} << 50;

struct StringObject;
struct SequenceObject;
struct DictObject;
struct RangeObject;
struct ViewObject;
struct IteratorObject;
struct NamespaceObject;
struct FunctionObject;
struct LoopObject;
struct CyclerObject;

class Value {
 public:
  Value() = default;  ///< undefined without a hint

  static Value None();
  static Value Bool(bool b);
  static Value OfInt(Int i);
  static Value Float(double d);
  static Value String(std::string text, bool markup = false);
  static Value List(Items items);
  static Value Tuple(Items items);
  static Value Dict(std::shared_ptr<DictObject> dict);
  static Value Range(Int start, Int stop, Int step);
  /// `source_depth`: depth of what the iterator holds on to.
  static Value Iterator(std::function<bool(Value*)> next, int source_depth);
  static Value View(const Value& dict, int part);
  /// `hint` is the message of the error that any use but print, test, iterate and truth raises.
  static Value Undefined(std::string hint);
  static Value Of(Type type, std::shared_ptr<Object> object);

  Type type() const { return type_; }
  bool Is(Type type) const { return type_ == type; }
  bool undefined() const { return type_ == Type::kUndefined; }
  bool none() const { return type_ == Type::kNone; }
  bool string() const { return type_ == Type::kString; }
  bool numeric() const { return type_ == Type::kBool || type_ == Type::kInt || type_ == Type::kFloat; }
  bool integral() const { return type_ == Type::kBool || type_ == Type::kInt; }
  bool markup() const { return string() && flag_; }

  bool AsBool() const { return i_ != 0; }
  Int AsInt() const { return i_; }       ///< bool and int
  double AsDouble() const;               ///< bool, int and float
  const std::string& Text() const;       ///< string
  int64_t TextLength() const;            ///< string: code points
  const Items& Seq() const;              ///< list and tuple
  const DictObject& Mapping() const;     ///< dict
  std::string UndefinedMessage() const;  ///< undefined

  template <class T>
  T& As() const {
    return *static_cast<T*>(object_.get());
  }
  const std::shared_ptr<Object>& object() const { return object_; }
  int depth() const { return object_ ? object_->depth : 0; }
  int64_t weight() const { return object_ ? object_->weight : 1; }

 private:
  Type type_ = Type::kUndefined;
  bool flag_ = false;
  union {
    Int i_ = 0;
    double d_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject : Object {
  std::string text;
  int64_t length = 0;
};

struct SequenceObject : Object {
  Items items;
  bool group = false;  ///< groupby's tuple: .grouper and .list
};

struct DictObject : Object {
  std::vector<std::pair<Value, Value>> items;  ///< insertion order

  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
  /// Replaces the value of an equal key (and keeps the first key object, as Python does).
  void Set(Value key, Value value);

 private:
  void Index();
  std::unordered_map<std::string, size_t> index_;  ///< by HashKey; built above a few entries
};

struct RangeObject : Object {
  Int start, stop, step, count;
};

struct ViewObject : Object {
  Value dict;
  int part;  ///< 0 keys, 1 values, 2 items
};

struct IteratorObject : Object {
  std::function<bool(Value*)> next;
};

struct NamespaceObject : Object {
  DictObject attributes;
};

struct FunctionObject : Object {
  std::string name;
  std::string repr;  ///< empty: has no stable text
  std::function<Value(Interpreter&, Args&)> call;
};

/// State of a running `for`, read as `loop.*`. Pulls items lazily, one ahead when `last` or `nextitem` asks.
struct LoopObject : Object {
  std::function<bool(Value*)> source;
  Int known_length = -1;
  Items pending;  ///< items pulled ahead, oldest first
  Int index0 = -1;
  Value current, before, last_changed;
  bool has_changed = false;
  int depth0 = 0;
  std::function<Value(Interpreter&, const Value&)> recurse;

  bool Next(Value* out);
  const Value* Peek();
  Int Length();
};

struct CyclerObject : Object {
  Items items;
  size_t position = 0;
};

/// Python's type name, as in its error messages ("str", "dict", ...).
std::string TypeName(const Value& v);

bool Truth(const Value& v);
bool Equal(const Value& a, const Value& b);
/// a < b; type error where Python raises one. `symbol` only words the message.
bool Less(const Value& a, const Value& b, const char* symbol = "<");
/// Equal keys have equal text (1, 1.0 and True are one key); unhashable types fail.
std::string HashKey(const Value& v);

/// len(); -1 where Python raises TypeError.
Int Length(const Value& v);
bool Iterable(const Value& v);
/// iter(): each call of the result writes the next item or returns false.
std::function<bool(Value*)> Iterate(const Value& v);
Items ToItems(const Value& v);
int MaxDepth(const Items& items);

/// Fails when `v` is undefined: every operation undefined does not allow goes through here.
void RequireDefined(const Value& v);

std::string IntText(Int i);

}  // namespace fluvial::jinja
