// SPDX-License-Identifier: Apache-2.0
#include "base/text_form.h"

#include <algorithm>
#include <charconv>

namespace fluvial {
namespace {

constexpr int64_t kMaxLengths = int64_t{1} << 24;

bool ParseInt(std::string_view text, int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

std::string FormatFloat(float x) {
  char buffer[32];
  const auto r = std::to_chars(buffer, buffer + sizeof(buffer), x);
  return std::string(buffer, r.ptr);
}

Result<std::vector<int64_t>> ParseLengths(std::string_view text) {
  std::vector<int64_t> out;
  if (text.empty()) return out;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = text.find(',', begin);
    if (end == std::string_view::npos) end = text.size();
    std::string_view item = text.substr(begin, end - begin);
    int64_t count = 1, length = 0;
    const size_t x = item.find('x');
    const bool ok = x == std::string_view::npos
                        ? ParseInt(item, &length)
                        : ParseInt(item.substr(0, x), &count) && ParseInt(item.substr(x + 1), &length);
    if (!ok || count < 0 || length < 0 || length > (int64_t{1} << 40) ||
        count > kMaxLengths - static_cast<int64_t>(out.size())) {
      return Status::InvalidArgument("lens: '" + std::string(item) +
                                     "' is not a length or COUNTxLENGTH, e.g. lens=1300,547,8x1024");
    }
    out.insert(out.end(), static_cast<size_t>(count), length);
    begin = end + 1;
  }
  return out;
}

std::string FormatLengths(const std::vector<int64_t>& lengths) {
  std::string s;
  for (size_t i = 0; i < lengths.size();) {
    size_t j = i;
    while (j < lengths.size() && lengths[j] == lengths[i]) ++j;
    if (!s.empty()) s += ',';
    if (j - i > 1) s += std::to_string(j - i) + "x";
    s += std::to_string(lengths[i]);
    i = j;
  }
  return s;
}

Result<TextFields> TextFields::Parse(std::string_view line) {
  TextFields out;
  size_t pos = 0;
  while (pos < line.size()) {
    while (pos < line.size() && (line[pos] == ' ' || line[pos] == '\t')) ++pos;
    size_t end = pos;
    while (end < line.size() && line[end] != ' ' && line[end] != '\t') ++end;
    if (end == pos) break;
    std::string word(line.substr(pos, end - pos));
    pos = end;
    if (out.name_.empty()) {
      out.name_ = std::move(word);
      continue;
    }
    const size_t eq = word.find('=');
    if (eq == std::string::npos || eq == 0) {
      return Status::InvalidArgument("problem line: '" + word + "' is not key=value");
    }
    std::string key = word.substr(0, eq);
    if (out.Has(key)) return Status::InvalidArgument("problem line: '" + key + "' is given twice");
    out.fields_.emplace_back(std::move(key), word.substr(eq + 1));
  }
  if (out.name_.empty()) return Status::InvalidArgument("problem line is empty: start it with an operator name");
  return out;
}

bool TextFields::Has(std::string_view key) const {
  return std::any_of(fields_.begin(), fields_.end(), [&](const auto& f) { return f.first == key; });
}

std::string TextFields::Take(std::string_view key) {
  const auto it = std::find_if(fields_.begin(), fields_.end(), [&](const auto& f) { return f.first == key; });
  if (it == fields_.end()) return "";
  std::string value = std::move(it->second);
  fields_.erase(it);
  return value;
}

Result<int64_t> TextFields::TakeInt(std::string_view key, int64_t fallback) {
  if (!Has(key)) return fallback;
  const std::string text = Take(key);
  int64_t value = 0;
  if (!ParseInt(text, &value)) {
    return Status::InvalidArgument(std::string(key) + "=" + text + ": not a whole number");
  }
  return value;
}

Result<float> TextFields::TakeFloat(std::string_view key, float fallback) {
  if (!Has(key)) return fallback;
  const std::string text = Take(key);
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Status::InvalidArgument(std::string(key) + "=" + text + ": not a number");
  }
  return value;
}

Status TextFields::Finish() const {
  if (fields_.empty()) return Status::Ok();
  return Status::InvalidArgument("problem line: " + name_ + " has no field '" + fields_.front().first + "'");
}

}  // namespace fluvial
