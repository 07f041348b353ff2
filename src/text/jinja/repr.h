// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str() and repr(), and json.dumps.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace fluvial::jinja {

/// str(v): what `{{ v }}` prints.
std::string Str(const Value& v);
std::string Repr(const Value& v);
std::string ReprString(std::string_view text);

/// repr of a float: shortest digits that read back, exponent form outside 1e-4 .. 1e16.
std::string FloatText(double d);

struct JsonStyle {
  bool ensure_ascii = false;  ///< the chat template environment's default, not json.dumps's
  bool pretty = false;        ///< one item per line, `indent` per level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

std::string JsonDumps(const Value& v, const JsonStyle& style);

}  // namespace fluvial::jinja
