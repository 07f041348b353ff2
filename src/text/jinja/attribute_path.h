// SPDX-License-Identifier: Apache-2.0
// How filters find the attribute of an item that they sort, group, map or select by.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {

/// make_attrgetter: "a.b.0" follows attributes and indices.
class AttributePath {
 public:
  explicit AttributePath(const Value& path) {
    if (path.none()) return;
    if (!path.string()) {
      parts_.push_back(path);
      return;
    }
    std::string_view rest = path.Text();
    while (true) {
      size_t dot = rest.find('.');
      std::string part(rest.substr(0, dot));
      bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
      parts_.push_back(digits ? Value::OfInt(*ParseInt(part, 10)) : Value::String(part));
      if (dot == std::string_view::npos) return;
      rest.remove_prefix(dot + 1);
    }
  }

  Value Get(Interpreter& interpreter, Value v, const Value* fallback = nullptr) const {
    for (const Value& part : parts_) {
      v = GetItem(interpreter, v, part);
      if (fallback != nullptr && v.undefined()) v = *fallback;
    }
    return v;
  }

 private:
  Items parts_;
};

/// The keys items are ordered or grouped by.
class KeyOf {
 public:
  KeyOf(const Value& attribute, bool case_sensitive) : path_(attribute), case_sensitive_(case_sensitive) {}
  Value operator()(Interpreter& interpreter, const Value& item, const Value* fallback = nullptr) const {
    Value key = path_.Get(interpreter, item, fallback);
    return case_sensitive_ || !key.string() ? key : Value::String(Lower(key.Text()));
  }

 private:
  AttributePath path_;
  bool case_sensitive_;
};

}  // namespace fluvial::jinja
