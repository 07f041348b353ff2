// SPDX-License-Identifier: Apache-2.0
// JsonReader: a pull reader over JSON text in memory, for the few big arrays of tokenizer.json (hundreds of
// thousands of strings). Values of no interest are skipped without building anything; small values are handed
// out as raw text, to be parsed by nlohmann/json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fluvial/status.h"

namespace fluvial::text {

/// Use: the kind of the value ahead is asked with Peek(); containers are walked with
///   if (r.EnterObject()) while (r.NextMember(&key)) { ...exactly one value read or skipped... }
///   if (r.EnterArray()) while (r.NextElement()) { ...exactly one value read or skipped... }
/// The first error sticks: every later call fails or answers false, and status() tells what and where.
class JsonReader {
 public:
  /// `text` must be valid UTF-8 and outlive the reader. `name` is the file's name for messages.
  JsonReader(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}

  enum class Kind : uint8_t { kObject, kArray, kString, kNumber, kTrue, kFalse, kNull, kNothing };
  Kind Peek();

  bool EnterObject();
  /// The view is valid until the next call; false at the closing brace, which is then consumed.
  bool NextMember(std::string_view* key);
  bool EnterArray();
  bool NextElement();

  /// The view points into the text, or, when the string has escapes, into a buffer valid until the next call.
  bool String(std::string_view* value);
  /// A number without sign, fraction and exponent, at most 2^32 - 1.
  bool Unsigned(uint32_t* value);
  /// Any value; its text goes to `*raw` when not null. Checks nesting (at most 200 deep) and strings.
  bool Skip(std::string_view* raw = nullptr);

  /// Nothing but white space is left.
  bool AtEnd();

  bool ok() const { return error_.empty(); }
  Status status() const;
  /// Records an error of the caller's at the present position.
  bool Fail(std::string_view what);

 private:
  void SkipSpace();
  bool Expect(char c, std::string_view what);
  bool ReadString(std::string_view* value, std::string* buffer);
  bool SkipString();
  bool SkipLiteral();

  std::string_view text_;
  std::string name_;
  size_t pos_ = 0;
  bool first_ = false;  // just after an opening bracket
  std::string buffer_, key_buffer_;
  std::string error_;
  size_t error_pos_ = 0;
};

}  // namespace fluvial::text
