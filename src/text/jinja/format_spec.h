// SPDX-License-Identifier: Apache-2.0
// One field of Python's two text formats, `text % values` and `text.format(...)`.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace fluvial::jinja {

inline constexpr Int kMaxPrecision = 400;

/// What both formats say about one field.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0: the type's own
  char sign = 0;   // + or blank
  bool alternate = false;
  bool zero = false;
  char group = 0;  // , or _
  Int width = 0;
  Int precision = -1;
  char type = 0;
};

/// `value` in the base of spec.type (d b o x X), with sign, prefix and padding.
std::string FormatInteger(Int value, const FormatSpec& spec);
/// spec.type e E f F g G %, or 0 for repr.
std::string FormatDouble(double value, const FormatSpec& spec);
/// Text cut to spec.precision and padded; `own_align` holds when the format names no alignment.
std::string FormatText(std::string_view text, const FormatSpec& spec, char own_align);

}  // namespace fluvial::jinja
