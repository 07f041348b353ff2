// SPDX-License-Identifier: Apache-2.0
// Arithmetic, containment and slices with Python's rules.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/repr.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

[[noreturn]] void Overflow() { Fail(ErrorKind::kUnsupported, "an integer of more than 127 bits"); }

[[noreturn]] void BadOperands(const char* op, const Value& a, const Value& b) {
  FailRuntime(std::string("unsupported operand type(s) for ") + op + ": '" + TypeName(a) + "' and '" + TypeName(b) +
              "'");
}

bool Integers(const Value& a, const Value& b) { return a.integral() && b.integral(); }
bool Numbers(const Value& a, const Value& b) { return a.numeric() && b.numeric(); }
bool IsSequence(const Value& v) { return v.Is(Type::kList) || v.Is(Type::kTuple); }

Value Repeat(const Value& v, Int times) {
  times = std::max<Int>(times, 0);
  if (v.string()) {
    const std::string& text = v.Text();
    Int total = 0;
    if (__builtin_mul_overflow(times, static_cast<Int>(text.size()), &total)) total = kMaxStringBytes + 1;
    CheckStringSize(total);
    std::string out;
    out.reserve(static_cast<size_t>(total));
    if (!text.empty()) {
      for (Int i = 0; i < times; ++i) out += text;
    }
    return Value::String(std::move(out), v.markup());
  }
  Int total = 0;
  if (__builtin_mul_overflow(times, static_cast<Int>(v.Seq().size()), &total)) total = kMaxItems + 1;
  CheckItemCount(total);
  Items out;
  out.reserve(static_cast<size_t>(total));
  if (!v.Seq().empty()) {
    for (Int i = 0; i < times; ++i) out.insert(out.end(), v.Seq().begin(), v.Seq().end());
  }
  return v.Is(Type::kList) ? Value::List(std::move(out)) : Value::Tuple(std::move(out));
}

Int FloorDivideInt(Int a, Int b) {
  if (b == 0) FailRuntime("integer division or modulo by zero");
  if (b == -1) {
    Int result = 0;
    if (__builtin_sub_overflow(Int{0}, a, &result)) Overflow();
    return result;
  }
  Int q = a / b;
  return (a % b != 0 && (a % b < 0) != (b < 0)) ? q - 1 : q;
}

// float.__mod__ and __floordiv__: the remainder has the divisor's sign.
double ModuloDouble(double a, double b) {
  if (b == 0) FailRuntime("float modulo");
  double r = std::fmod(a, b);
  if (r != 0) {
    if ((b < 0) != (r < 0)) r += b;
  } else {
    r = std::copysign(0.0, b);
  }
  return r;
}

double FloorDivideDouble(double a, double b) {
  if (b == 0) FailRuntime("float floor division by zero");
  double r = std::fmod(a, b);
  double q = (a - r) / b;
  if (r != 0 && (b < 0) != (r < 0)) q -= 1;
  if (q == 0) return std::copysign(0.0, a / b);
  double whole = std::floor(q);
  return q - whole > 0.5 ? whole + 1 : whole;
}

Value PowerInt(Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) Overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) Overflow();
  }
  return Value::OfInt(result);
}

std::string MarkupText(const Value& v) { return v.markup() ? v.Text() : EscapeHtml(v.Text()); }

}  // namespace

Value Add(const Value& a, const Value& b) {
  if (Integers(a, b)) {
    Int sum = 0;
    if (__builtin_add_overflow(a.AsInt(), b.AsInt(), &sum)) Overflow();
    return Value::OfInt(sum);
  }
  if (Numbers(a, b)) return Value::Float(a.AsDouble() + b.AsDouble());
  if (a.string() && b.string()) {
    CheckStringSize(static_cast<Int>(a.Text().size()) + static_cast<Int>(b.Text().size()));
    if (a.markup() || b.markup()) return Value::String(MarkupText(a) + MarkupText(b), true);
    return Value::String(a.Text() + b.Text());
  }
  RequireDefined(a);
  RequireDefined(b);
  if (IsSequence(a) && a.type() == b.type()) {
    Items items = a.Seq();
    CheckItemCount(static_cast<Int>(items.size()) + static_cast<Int>(b.Seq().size()));
    items.insert(items.end(), b.Seq().begin(), b.Seq().end());
    return a.Is(Type::kList) ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
  }
  if (a.string()) FailRuntime("can only concatenate str (not \"" + TypeName(b) + "\") to str");
  BadOperands("+", a, b);
}

Value Subtract(const Value& a, const Value& b) {
  if (Integers(a, b)) {
    Int difference = 0;
    if (__builtin_sub_overflow(a.AsInt(), b.AsInt(), &difference)) Overflow();
    return Value::OfInt(difference);
  }
  if (Numbers(a, b)) return Value::Float(a.AsDouble() - b.AsDouble());
  RequireDefined(a);
  RequireDefined(b);
  if (a.Is(Type::kView) && b.Is(Type::kView)) Fail(ErrorKind::kUnsupported, "set operations are not supported");
  BadOperands("-", a, b);
}

Value Multiply(const Value& a, const Value& b) {
  if (Integers(a, b)) {
    Int product = 0;
    if (__builtin_mul_overflow(a.AsInt(), b.AsInt(), &product)) Overflow();
    return Value::OfInt(product);
  }
  if (Numbers(a, b)) return Value::Float(a.AsDouble() * b.AsDouble());
  if ((a.string() || IsSequence(a)) && b.integral()) return Repeat(a, b.AsInt());
  if ((b.string() || IsSequence(b)) && a.integral()) return Repeat(b, a.AsInt());
  RequireDefined(a);
  RequireDefined(b);
  BadOperands("*", a, b);
}

Value Divide(const Value& a, const Value& b) {
  if (Numbers(a, b)) {
    if (b.AsDouble() == 0) FailRuntime("division by zero");
    return Value::Float(a.AsDouble() / b.AsDouble());
  }
  RequireDefined(a);
  RequireDefined(b);
  BadOperands("/", a, b);
}

Value FloorDivide(const Value& a, const Value& b) {
  if (Integers(a, b)) return Value::OfInt(FloorDivideInt(a.AsInt(), b.AsInt()));
  if (Numbers(a, b)) return Value::Float(FloorDivideDouble(a.AsDouble(), b.AsDouble()));
  RequireDefined(a);
  RequireDefined(b);
  BadOperands("//", a, b);
}

Value Modulo(Interpreter& interpreter, const Value& a, const Value& b) {
  if (a.string()) return PercentFormat(interpreter, a, b);
  if (Integers(a, b)) {
    if (b.AsInt() == -1) return Value::OfInt(0);
    return Value::OfInt(a.AsInt() - FloorDivideInt(a.AsInt(), b.AsInt()) * b.AsInt());
  }
  if (Numbers(a, b)) return Value::Float(ModuloDouble(a.AsDouble(), b.AsDouble()));
  RequireDefined(a);
  RequireDefined(b);
  BadOperands("%", a, b);
}

Value Power(const Value& a, const Value& b) {
  RequireDefined(a);
  RequireDefined(b);
  if (!Numbers(a, b)) BadOperands("** or pow()", a, b);
  if (Integers(a, b) && b.AsInt() >= 0) return PowerInt(a.AsInt(), b.AsInt());
  double base = a.AsDouble(), exponent = b.AsDouble();
  if (base == 0 && exponent < 0) FailRuntime("0.0 cannot be raised to a negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::floor(exponent)) {
    Fail(ErrorKind::kUnsupported, "complex numbers are not supported");
  }
  double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
    FailRuntime("numerical result out of range");
  return Value::Float(result);
}

Value Negate(const Value& v) {
  if (v.integral()) return Subtract(Value::OfInt(0), v);
  if (v.Is(Type::kFloat)) return Value::Float(-v.AsDouble());
  RequireDefined(v);
  FailRuntime("bad operand type for unary -: '" + TypeName(v) + "'");
}

Value Plus(const Value& v) {
  if (v.integral()) return Value::OfInt(v.AsInt());
  if (v.Is(Type::kFloat)) return v;
  RequireDefined(v);
  FailRuntime("bad operand type for unary +: '" + TypeName(v) + "'");
}

bool Contains(const Value& container, const Value& item) {
  switch (container.type()) {
    case Type::kString:
      if (!item.string()) FailRuntime("'in <string>' requires string as left operand, not " + TypeName(item));
      return container.Text().find(item.Text()) != std::string::npos;
    case Type::kDict:
      return container.Mapping().Find(item) != nullptr;
    case Type::kView: {
      const auto& view = container.As<ViewObject>();
      if (view.part == 0) return view.dict.Mapping().Find(item) != nullptr;
      break;
    }
    default:
      break;
  }
  if (!Iterable(container)) FailRuntime("argument of type '" + TypeName(container) + "' is not iterable");
  auto next = Iterate(container);
  Value candidate;
  while (next(&candidate)) {
    bool same = item.object() != nullptr && item.object() == candidate.object() && item.type() == candidate.type();
    if (same || Equal(candidate, item)) return true;
  }
  return false;
}

void SliceIndices(const Value& start, const Value& stop, const Value& step, Int length, Int* first, Int* stride,
                  Int* count, Int* end) {
  auto index = [](const Value& v) {
    if (!v.integral()) FailRuntime("slice indices must be integers or None");
    return v.AsInt();
  };
  Int by = step.none() ? 1 : index(step);
  if (by == 0) FailRuntime("slice step cannot be zero");
  Int low = by < 0 ? -1 : 0, high = by < 0 ? length - 1 : length;
  auto clamp = [&](const Value& v, Int absent) {
    if (v.none()) return absent;
    Int i = index(v);
    if (i < 0) i = i < -length ? low : i + length;
    return std::clamp(i, low, high);
  };
  Int from = clamp(start, by < 0 ? high : low);
  Int to = clamp(stop, by < 0 ? low : high);
  *first = from;
  *stride = by;
  if (end != nullptr) *end = to;
  if (by > 0) {
    *count = to > from ? (to - from - 1) / by + 1 : 0;
  } else {
    *count = from > to ? (from - to - 1) / -std::max<Int>(by, -(Int{1} << 100)) + 1 : 0;
  }
}

Value GetSlice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  RequireDefined(object);
  bool sliceable = object.string() || IsSequence(object) || object.Is(Type::kRange);
  if (!sliceable) FailRuntime("'" + TypeName(object) + "' object is not subscriptable");
  Int first, stride, count, end;
  SliceIndices(start, stop, step, Length(object), &first, &stride, &count, &end);
  if (object.Is(Type::kRange)) {
    const auto& range = object.As<RangeObject>();
    return Value::Range(range.start + first * range.step, range.start + end * range.step, range.step * stride);
  }
  if (IsSequence(object)) {
    Items items;
    for (Int i = 0; i < count; ++i) items.push_back(object.Seq()[static_cast<size_t>(first + i * stride)]);
    return object.Is(Type::kList) ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
  }
  const std::string& text = object.Text();
  bool ascii = object.TextLength() == static_cast<int64_t>(text.size());
  if (stride == 1) {
    size_t begin = ascii ? static_cast<size_t>(first) : OffsetOfCodePoint(text, static_cast<int64_t>(first));
    if (count == 0) return Value::String("", object.markup());
    std::string_view rest = std::string_view(text).substr(begin);
    size_t size = ascii ? static_cast<size_t>(count) : OffsetOfCodePoint(rest, static_cast<int64_t>(count));
    return Value::String(std::string(rest.substr(0, size)), object.markup());
  }
  std::u32string points = ToCodePoints(text);
  std::string out;
  for (Int i = 0; i < count; ++i) AppendUtf8(&out, points[static_cast<size_t>(first + i * stride)]);
  return Value::String(std::move(out), object.markup());
}

}  // namespace fluvial::jinja
