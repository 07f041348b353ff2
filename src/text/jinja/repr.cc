// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/repr.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/stable_order.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

// Namespaces can hold themselves, so nesting is counted here too.
class ReprWriter {
 public:
  std::string Take() { return std::move(out_); }

  void Write(const Value& v, int depth) {
    if (depth > 2 * kMaxDepth) Fail(ErrorKind::kLimit, "values nested too deep to print");
    switch (v.type()) {
      case Type::kUndefined:
        out_ += "Undefined";
        break;
      case Type::kNone:
        out_ += "None";
        break;
      case Type::kBool:
        out_ += v.AsBool() ? "True" : "False";
        break;
      case Type::kInt:
        out_ += IntText(v.AsInt());
        break;
      case Type::kFloat:
        out_ += FloatText(v.AsDouble());
        break;
      case Type::kString:
        out_ += v.markup() ? "Markup(" + ReprString(v.Text()) + ")" : ReprString(v.Text());
        break;
      case Type::kList:
        WriteSequence(v.Seq(), "[", "]", depth);
        break;
      case Type::kTuple:
        WriteSequence(v.Seq(), "(", v.Seq().size() == 1 ? ",)" : ")", depth);
        break;
      case Type::kDict:
        WriteDict(v.Mapping(), depth);
        break;
      case Type::kRange:
        WriteRange(v.As<RangeObject>());
        break;
      case Type::kView:
        out_ += TypeName(v);
        WriteSequence(ToItems(v), "([", "])", depth);
        break;
      case Type::kNamespace:
        out_ += "<Namespace ";
        WriteDict(v.As<NamespaceObject>().attributes, depth);
        out_ += ">";
        break;
      case Type::kLoop: {
        auto& loop = v.As<LoopObject>();
        Int length = loop.Length();
        out_ += "<LoopContext " + IntText(loop.index0 + 1) + "/" + IntText(length) + ">";
        break;
      }
      case Type::kFunction:
        if (!v.As<FunctionObject>().repr.empty()) {
          out_ += v.As<FunctionObject>().repr;
          break;
        }
        [[fallthrough]];
      default:
        Fail(ErrorKind::kUnsupported,
             "printing a " + TypeName(v) + " is not supported, it has no stable text; make it a list or call it");
    }
    CheckStringSize(static_cast<Int>(out_.size()));
  }

 private:
  void WriteSequence(const Items& items, const char* open, const char* close, int depth) {
    out_ += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += ", ";
      Write(items[i], depth + 1);
    }
    out_ += close;
  }

  void WriteDict(const DictObject& dict, int depth) {
    out_ += "{";
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i != 0) out_ += ", ";
      Write(dict.items[i].first, depth + 1);
      out_ += ": ";
      Write(dict.items[i].second, depth + 1);
    }
    out_ += "}";
  }

  void WriteRange(const RangeObject& range) {
    out_ += "range(" + IntText(range.start) + ", " + IntText(range.stop);
    if (range.step != 1) out_ += ", " + IntText(range.step);
    out_ += ")";
  }

  std::string out_;
};

void AppendHex(std::string* out, const char* prefix, char32_t c, int digits) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%s%0*x", prefix, digits, static_cast<unsigned>(c));
  *out += buffer;
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}
  std::string Take() { return std::move(out_); }

  void Write(const Value& v, int level) {
    switch (v.type()) {
      case Type::kNone:
        out_ += "null";
        break;
      case Type::kBool:
        out_ += v.AsBool() ? "true" : "false";
        break;
      case Type::kInt:
        out_ += IntText(v.AsInt());
        break;
      case Type::kFloat:
        out_ += JsonFloat(v.AsDouble());
        break;
      case Type::kString:
        WriteString(v.Text());
        break;
      case Type::kList:
      case Type::kTuple:
        WriteList(v.Seq(), level);
        break;
      case Type::kDict:
        WriteDict(v.Mapping(), level);
        break;
      default:
        FailRuntime("Object of type " + TypeName(v) + " is not JSON serializable");
    }
    CheckStringSize(static_cast<Int>(out_.size()));
  }

 private:
  static std::string JsonFloat(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return FloatText(d);
  }

  void NewLine(int level) {
    if (!style_.pretty) return;
    CheckStringSize(static_cast<Int>(style_.indent.size()) * level);
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += style_.indent;
  }

  void WriteList(const Items& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) out_ += style_.item_separator;
      NewLine(level + 1);
      Write(items[i], level + 1);
    }
    NewLine(level);
    out_ += ']';
  }

  void WriteDict(const DictObject& dict, int level) {
    if (dict.items.empty()) {
      out_ += "{}";
      return;
    }
    auto less = [&](size_t a, size_t b) { return style_.sort_keys && Less(dict.items[a].first, dict.items[b].first); };
    std::vector<size_t> order = StableOrder(dict.items.size(), less);
    out_ += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      if (i != 0) out_ += style_.item_separator;
      NewLine(level + 1);
      WriteKey(dict.items[order[i]].first);
      out_ += style_.key_separator;
      Write(dict.items[order[i]].second, level + 1);
    }
    NewLine(level);
    out_ += '}';
  }

  void WriteKey(const Value& key) {
    switch (key.type()) {
      case Type::kString:
        return WriteString(key.Text());
      case Type::kNone:
        return WriteString("null");
      case Type::kBool:
        return WriteString(key.AsBool() ? "true" : "false");
      case Type::kInt:
        return WriteString(IntText(key.AsInt()));
      case Type::kFloat:
        return WriteString(JsonFloat(key.AsDouble()));
      default:
        FailRuntime("keys must be str, int, float, bool or None, not " + TypeName(key));
    }
  }

  void WriteString(std::string_view text) {
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      char32_t c = DecodeAt(text, &i);
      static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      size_t at = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (at != std::string_view::npos) {
        out_ += '\\';
        out_ += kLetters[at];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f && c < 0x10000)) {
        AppendHex(&out_, "\\u", c, 4);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        AppendHex(&out_, "\\u", 0xd800 + ((c - 0x10000) >> 10), 4);
        AppendHex(&out_, "\\u", 0xdc00 + ((c - 0x10000) & 0x3ff), 4);
      } else {
        AppendUtf8(&out_, c);
      }
    }
    out_ += '"';
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string Str(const Value& v) {
  if (v.string()) return v.Text();
  if (v.undefined()) return "";
  return Repr(v);
}

std::string Repr(const Value& v) {
  ReprWriter writer;
  writer.Write(v, 0);
  return writer.Take();
}

std::string ReprString(std::string_view text) {
  bool double_quotes = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  char32_t quote = double_quotes ? '"' : '\'';
  std::string out(1, static_cast<char>(quote));
  for (size_t i = 0; i < text.size();) {
    char32_t c = DecodeAt(text, &i);
    static constexpr std::string_view kEscaped = "\\\n\r\t", kLetters = "\\nrt";
    size_t at = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
    if (at != std::string_view::npos) {
      out += '\\';
      out += kLetters[at];
    } else if (c == quote) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (IsPrintable(c)) {
      AppendUtf8(&out, c);
    } else if (c < 0x100) {
      AppendHex(&out, "\\x", c, 2);
    } else if (c < 0x10000) {
      AppendHex(&out, "\\u", c, 4);
    } else {
      AppendHex(&out, "\\U", c, 8);
    }
  }
  out += static_cast<char>(quote);
  return out;
}

std::string FloatText(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[64];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  size_t e = text.find('e');
  std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "");
    char tail[16];
    std::snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return sign + mantissa + tail;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::string JsonDumps(const Value& v, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.Write(v, 0);
  return writer.Take();
}

}  // namespace fluvial::jinja
