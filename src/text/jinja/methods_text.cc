// SPDX-License-Identifier: Apache-2.0
// Methods of str. Positions and widths are in code points.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

using MethodFn = Value (*)(Interpreter&, const Value& self, const Args& args);

Value Same(const Value& self, std::string text) { return Value::String(std::move(text), self.markup()); }

// A markup string escapes plain text that it takes in.
std::string Absorb(const Value& self, const Value& text) {
  return self.markup() && !text.markup() ? EscapeHtml(text.Text()) : text.Text();
}

template <std::string (*kMap)(std::string_view)>
Value Mapped(Interpreter&, const Value& self, const Args& args) {
  Bound bound("method", args, {});
  return Same(self, kMap(self.Text()));
}

template <Side kSide>
Value Strip(Interpreter&, const Value& self, const Args& args) {
  Bound bound("strip", args, {"chars"}, 0, 1);
  if (bound.NoneOrAbsent(0)) return Same(self, std::string(StripSpace(self.Text(), kSide)));
  return Same(self, std::string(StripChars(self.Text(), RequireText(*bound[0], "strip()"), kSide)));
}

Value ListOf(const Value& self, const std::vector<std::string_view>& parts) {
  Items items;
  CheckItemCount(static_cast<Int>(parts.size()));
  for (std::string_view part : parts) items.push_back(Same(self, std::string(part)));
  return Value::List(std::move(items));
}

// split() and rsplit() without separator: runs of whitespace, none at the ends.
std::vector<std::string_view> SplitSpace(std::string_view text, Int limit, bool from_right) {
  std::vector<std::string_view> parts;
  std::string_view rest = StripSpace(text, from_right ? Side::kRight : Side::kLeft);
  while (!rest.empty()) {
    if (limit >= 0 && static_cast<Int>(parts.size()) >= limit) {
      parts.push_back(StripSpace(rest, from_right ? Side::kRight : Side::kLeft));
      break;
    }
    size_t cut = from_right ? 0 : rest.size();
    for (size_t i = 0; i < rest.size();) {
      size_t begin = i;
      if (!IsSpace(DecodeAt(rest, &i))) continue;
      if (from_right) {
        cut = i;
      } else {
        cut = begin;
        break;
      }
    }
    parts.push_back(from_right ? rest.substr(cut) : rest.substr(0, cut));
    rest = from_right ? rest.substr(0, cut) : rest.substr(cut);
    rest = StripSpace(rest, from_right ? Side::kRight : Side::kLeft);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool kFromRight>
Value Split(Interpreter& interpreter, const Value& self, const Args& args) {
  Bound bound("split", args, {"sep", "maxsplit"});
  Int limit = bound.Integer(1, -1);
  std::string_view text = self.Text();
  if (bound.NoneOrAbsent(0)) {
    // Walking to the last blank from the left makes rsplit quadratic in the number of parts; pay for it.
    if (kFromRight) interpreter.Charge(static_cast<int64_t>(text.size()));
    if (kFromRight && limit < 0) return ListOf(self, SplitSpace(text, limit, false));
    if (kFromRight && limit > 0)
      interpreter.Charge(static_cast<int64_t>(std::min<Int>(limit, 1 << 20)) * self.weight());
    return ListOf(self, SplitSpace(text, limit, kFromRight));
  }
  const std::string& separator = RequireText(*bound[0], "split()");
  if (separator.empty()) FailRuntime("empty separator");
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<Int>(parts.size()) < limit) {
    size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(kFromRight ? text.substr(at + separator.size()) : text.substr(0, at));
    text = kFromRight ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (kFromRight) std::reverse(parts.begin(), parts.end());
  return ListOf(self, parts);
}

Value SplitLinesMethod(Interpreter&, const Value& self, const Args& args) {
  Bound bound("splitlines", args, {"keepends"});
  return ListOf(self, SplitLines(self.Text(), bound.Bool(0, false)));
}

template <bool kFromRight>
Value Partition(Interpreter&, const Value& self, const Args& args) {
  Bound bound("partition", args, {"sep"}, 1, 1);
  const std::string &text = self.Text(), &separator = RequireText(*bound[0], "partition()");
  if (separator.empty()) FailRuntime("empty separator");
  size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) {
    Value whole = Same(self, text), none = Same(self, "");
    return kFromRight ? Value::Tuple({none, none, whole}) : Value::Tuple({whole, none, none});
  }
  return Value::Tuple(
      {Same(self, text.substr(0, at)), Same(self, separator), Same(self, text.substr(at + separator.size()))});
}

// The part [start, end) of the text that find, count, startswith and the like look at; not inside when start is beyond
// it.
struct Window {
  std::string_view text;
  Int first = 0;  // code point where it begins
  bool inside = true;
};

Window WindowOf(const Value& self, const Bound& bound, size_t start_slot) {
  Window window;
  Value start = bound[start_slot].value_or(Value::None()), end = bound[start_slot + 1].value_or(Value::None());
  Int length = self.TextLength(), first, stride, count;
  SliceIndices(start, end, Value::None(), length, &first, &stride, &count);
  window.inside = !(start.integral() && start.AsInt() > length);
  // An end before the start is no window at all, not an empty one.
  Int stop, ignored[3];
  SliceIndices(Value::None(), end, Value::None(), length, &ignored[0], &ignored[1], &ignored[2], &stop);
  if (stop < first) window.inside = false;
  window.first = first;
  size_t begin = OffsetOfCodePoint(self.Text(), static_cast<int64_t>(first));
  window.text = std::string_view(self.Text()).substr(begin);
  window.text = window.text.substr(0, OffsetOfCodePoint(window.text, static_cast<int64_t>(count)));
  return window;
}

template <bool kFromRight, bool kFail>
Value FindIn(Interpreter&, const Value& self, const Args& args) {
  Bound bound("find", args, {"sub", "start", "end"}, 1, 3);
  Window window = WindowOf(self, bound, 1);
  const std::string& wanted = RequireText(*bound[0], "find()");
  size_t at = !window.inside ? std::string_view::npos
              : kFromRight   ? window.text.rfind(wanted)
                             : window.text.find(wanted);
  if (at != std::string_view::npos) return Value::OfInt(window.first + CountCodePoints(window.text.substr(0, at)));
  if (kFail) FailRuntime("substring not found");
  return Value::OfInt(-1);
}

Value Count(Interpreter&, const Value& self, const Args& args) {
  Bound bound("count", args, {"sub", "start", "end"}, 1, 3);
  Window window = WindowOf(self, bound, 1);
  const std::string& wanted = RequireText(*bound[0], "count()");
  if (!window.inside) return Value::OfInt(0);
  if (wanted.empty()) return Value::OfInt(CountCodePoints(window.text) + 1);
  Int count = 0;
  for (size_t at = window.text.find(wanted); at != std::string_view::npos; ++count) {
    at = window.text.find(wanted, at + wanted.size());
  }
  return Value::OfInt(count);
}

template <bool kStart>
Value Affix(Interpreter& interpreter, const Value& self, const Args& args) {
  Bound bound("startswith", args, {"prefix", "start", "end"}, 1, 3);
  Window window = WindowOf(self, bound, 1);
  auto matches = [&](const Value& affix) {
    const std::string& text = RequireText(affix, kStart ? "startswith()" : "endswith()");
    return window.inside && (kStart ? window.text.starts_with(text) : window.text.ends_with(text));
  };
  if (!bound[0]->Is(Type::kTuple)) return Value::Bool(matches(*bound[0]));
  interpreter.ChargeWalk(*bound[0]);
  for (const Value& affix : bound[0]->Seq()) {
    if (matches(affix)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <bool kStart>
Value RemoveAffix(Interpreter&, const Value& self, const Args& args) {
  Bound bound("removeprefix", args, {"prefix"}, 1, 1);
  std::string_view text = self.Text();
  const std::string& affix = RequireText(*bound[0], "removeprefix()");
  if (kStart && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kStart && text.ends_with(affix)) text.remove_suffix(affix.size());
  return Same(self, std::string(text));
}

Value Replace(Interpreter&, const Value& self, const Args& args) {
  Bound bound("replace", args, {"old", "new", "count"}, 2, 3);
  const std::string& from = RequireText(*bound[0], "replace()");
  RequireText(*bound[1], "replace()");
  return Same(self, ReplaceText(self.Text(), from, Absorb(self, *bound[1]), bound.Integer(2, -1)));
}

Value Join(Interpreter& interpreter, const Value& self, const Args& args) {
  Bound bound("join", args, {"iterable"}, 1, 1);
  interpreter.ChargeWalk(*bound[0]);
  std::string out;
  auto next = Iterate(*bound[0]);
  Value item;
  for (bool first = true; next(&item); first = false) {
    if (!item.string() && !self.markup()) {
      RequireText(item, "join()");
    }
    if (!first) out += self.Text();
    out += item.string() ? Absorb(self, item) : EscapeHtml(Str(item));
    CheckStringSize(static_cast<Int>(out.size()));
  }
  return Same(self, std::move(out));
}

// Padding on the left and right to `width` code points.
Value Pad(const Value& self, const Value& fill, Int left, Int right) {
  std::string unit = Absorb(self, fill);
  if (fill.TextLength() != 1) FailRuntime("the fill character must be exactly one character long");
  CheckStringSize((left + right) * static_cast<Int>(unit.size()) + static_cast<Int>(self.Text().size()));
  std::string out;
  for (Int i = 0; i < left; ++i) out += unit;
  out += self.Text();
  for (Int i = 0; i < right; ++i) out += unit;
  return Same(self, std::move(out));
}

template <int kWhere>  // -1: text left, 0: centred, 1: text right
Value Justify(Interpreter&, const Value& self, const Args& args) {
  Bound bound("ljust", args, {"width", "fillchar"}, 1, 2);
  Int width = bound.Integer(0, 0);
  Value fill = bound[1].value_or(Value::String(" "));
  RequireText(fill, "ljust()");
  CheckStringSize(width);
  Int pad = std::max<Int>(0, width - self.TextLength());
  // str.center puts the odd blank on the left when the width is odd.
  Int left = kWhere == 1 ? pad : kWhere == 0 ? pad / 2 + (pad & width & 1) : 0;
  return Pad(self, fill, left, pad - left);
}

Value ZeroFill(Interpreter&, const Value& self, const Args& args) {
  Bound bound("zfill", args, {"width"}, 1, 1);
  Int width = bound.Integer(0, 0);
  CheckStringSize(width);
  Int pad = std::max<Int>(0, width - self.TextLength());
  const std::string& text = self.Text();
  size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return Same(self, text.substr(0, sign) + std::string(static_cast<size_t>(pad), '0') + text.substr(sign));
}

Value ExpandTabs(Interpreter&, const Value& self, const Args& args) {
  Bound bound("expandtabs", args, {"tabsize"});
  Int size = bound.Integer(0, 8);
  CheckStringSize(size);
  std::string out;
  Int column = 0;
  for (size_t i = 0; i < self.Text().size();) {
    char32_t c = DecodeAt(self.Text(), &i);
    if (c == '\t') {
      Int blanks = size > 0 ? size - column % size : 0;
      out.append(static_cast<size_t>(blanks), ' ');
      column += blanks;
    } else {
      AppendUtf8(&out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    CheckStringSize(static_cast<Int>(out.size()));
  }
  return Same(self, std::move(out));
}

template <bool (*kPredicate)(char32_t)>
Value AllAre(Interpreter&, const Value& self, const Args& args) {
  Bound bound("method", args, {});
  const std::string& text = self.Text();
  for (size_t i = 0; i < text.size();) {
    if (!kPredicate(DecodeAt(text, &i))) return Value::Bool(false);
  }
  return Value::Bool(!text.empty());
}

bool AlphaNumeric(char32_t c) { return IsAlpha(c) || IsNumericLetter(c); }
bool Ascii(char32_t c) { return c < 0x80; }

template <bool kUpper>
Value CaseIs(Interpreter&, const Value& self, const Args& args) {
  Bound bound("method", args, {});
  bool any = false;
  for (size_t i = 0; i < self.Text().size();) {
    char32_t c = DecodeAt(self.Text(), &i);
    if (IsTitle(c) || (kUpper ? IsLower(c) : IsUpper(c))) return Value::Bool(false);
    any = any || (kUpper ? IsUpper(c) : IsLower(c));
  }
  return Value::Bool(any);
}

Value Format(Interpreter& interpreter, const Value& self, const Args& args) {
  if (self.markup()) Fail(ErrorKind::kUnsupported, "format() of a safe string is not supported");
  return Value::String(BraceFormat(interpreter, self.Text(), args));
}

struct Entry {
  std::string_view name;
  MethodFn call;
};
constexpr Entry kMethods[] = {
    {"capitalize", Mapped<Capitalize>},
    {"casefold", Mapped<CaseFold>},
    {"center", Justify<0>},
    {"count", Count},
    {"endswith", Affix<false>},
    {"expandtabs", ExpandTabs},
    {"find", FindIn<false, false>},
    {"format", Format},
    {"index", FindIn<false, true>},
    {"isalnum", AllAre<AlphaNumeric>},
    {"isalpha", AllAre<IsAlpha>},
    {"isdecimal", AllAre<IsDecimal>},
    {"islower", CaseIs<false>},
    {"isspace", AllAre<IsSpace>},
    {"isupper", CaseIs<true>},
    {"join", Join},
    {"ljust", Justify<-1>},
    {"lower", Mapped<Lower>},
    {"lstrip", Strip<Side::kLeft>},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<true>},
    {"removesuffix", RemoveAffix<false>},
    {"replace", Replace},
    {"rfind", FindIn<true, false>},
    {"rindex", FindIn<true, true>},
    {"rjust", Justify<1>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<Side::kRight>},
    {"split", Split<false>},
    {"splitlines", SplitLinesMethod},
    {"startswith", Affix<true>},
    {"strip", Strip<Side::kBoth>},
    {"swapcase", Mapped<SwapCase>},
    {"title", Mapped<Title>},
    {"upper", Mapped<Upper>},
    {"zfill", ZeroFill},
};
constexpr std::string_view kUnsupported[] = {"encode",  "translate", "maketrans",    "format_map", "isascii",
                                             "isdigit", "isnumeric", "isidentifier", "istitle",    "isprintable"};

}  // namespace

std::optional<Value> StringMethod(const Value& object, const std::string& name) {
  for (const Entry& entry : kMethods) {
    if (entry.name != name) continue;
    return Function(name, [object, call = entry.call](Interpreter& interpreter, Args& args) {
      interpreter.Charge(object.weight());
      return call(interpreter, object, args);
    });
  }
  // The three tests of digits differ outside decimal digits only; ASCII text answers for all.
  if (name == "isdigit" || name == "isnumeric") {
    bool ascii = object.TextLength() == static_cast<int64_t>(object.Text().size());
    if (ascii) return StringMethod(object, "isdecimal");
  }
  if (name == "isascii") {
    bool ascii = std::all_of(object.Text().begin(), object.Text().end(),
                             [](char c) { return Ascii(static_cast<unsigned char>(c)); });
    return Function(name, [ascii](Interpreter&, Args&) { return Value::Bool(ascii); });
  }
  if (std::find(std::begin(kUnsupported), std::end(kUnsupported), name) != std::end(kUnsupported)) {
    Fail(ErrorKind::kUnsupported, "the method str." + name + "() is not supported here");
  }
  return std::nullopt;
}

}  // namespace fluvial::jinja
