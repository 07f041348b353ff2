// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

namespace fluvial::weights {
namespace {

template <class Shape>
std::string ShapeText(const Shape& shape) {
  std::string s(1, '[');
  bool first = true;
  for (const int64_t d : shape) {
    if (!first) s += ',';
    first = false;
    s += d < 0 ? std::string("any") : std::to_string(d);
  }
  s += ']';
  return s;
}

/// "0-7,9": the numbers of `values` (rising) as ranges.
std::string Ranges(const std::set<int64_t>& values) {
  std::string out;
  for (auto it = values.begin(); it != values.end();) {
    const int64_t first = *it;
    int64_t last = first;
    for (++it; it != values.end() && *it == last + 1; ++it) last = *it;
    out += (out.empty() ? "" : ",") + std::to_string(first);
    if (last > first) out += "-" + std::to_string(last);
  }
  return out;
}

/// Items that are alike but for the numbers between their dots. `numbers` has a set per number.
struct Alike {
  std::vector<std::string> items;
  std::vector<std::set<int64_t>> numbers;
};

/// "model.layers.3.x" -> "model.layers.{}.x" and 3. Only the name, up to the first blank, is looked at.
std::string Pattern(const std::string& item, std::vector<int64_t>& numbers) {
  const size_t end = std::min(item.find(' '), item.size());
  std::string out;
  for (size_t begin = 0; begin < end;) {
    const size_t dot = std::min(item.find('.', begin), end);
    const std::string part = item.substr(begin, dot - begin);
    // Nine digits fit an int64 with room to spare.
    const bool number = !part.empty() && part.size() <= 9 && part.find_first_not_of("0123456789") == std::string::npos;
    if (number) numbers.push_back(std::stoll(part));
    out += (begin ? "." : "") + (number ? std::string("{}") : part);
    begin = dot + 1;
  }
  return out + item.substr(end);
}

/// Every item is in the text: those alike as one entry with ranges where these name them and nothing else.
void AppendList(std::string& out, const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return;
  std::vector<std::string> order;
  std::map<std::string, Alike> groups;
  for (const std::string& item : items) {
    std::vector<int64_t> numbers;
    const std::string pattern = Pattern(item, numbers);
    const auto [it, fresh] = groups.try_emplace(pattern);
    if (fresh) order.push_back(pattern);
    Alike& group = it->second;
    group.items.push_back(item);
    group.numbers.resize(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) group.numbers[i].insert(numbers[i]);
  }
  out += (out.empty() ? "" : "; ") + std::to_string(items.size()) + " " + title + ": ";
  const char* comma = "";
  for (const std::string& pattern : order) {
    const Alike& group = groups[pattern];
    size_t product = 1;
    for (const auto& values : group.numbers) product *= values.size();
    if (group.items.size() < 3 || product != group.items.size()) {
      for (const std::string& item : group.items) out += std::exchange(comma, ", ") + item;
      continue;
    }
    std::string text = pattern;
    size_t at = 0;
    for (const auto& values : group.numbers) {
      at = text.find("{}", at);
      const std::string ranges = values.size() == 1 ? Ranges(values) : "{" + Ranges(values) + "}";
      text.replace(at, 2, ranges);
      at += ranges.size();
    }
    out += std::exchange(comma, ", ") + text + " (" + std::to_string(group.items.size()) + ")";
  }
}

}  // namespace

WeightReader WeightReader::Counting() {
  static const Checkpoint& none = *new Checkpoint;
  return WeightReader(none);
}

TensorView WeightReader::Take(std::string_view name, std::initializer_list<int64_t> shape) {
  return TakeAny({name}, shape);
}

TensorView WeightReader::TakeAny(std::initializer_list<std::string_view> names, std::initializer_list<int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t d : shape) elements *= std::max<int64_t>(d, 1);
  asked_elements_ += elements;
  const CheckpointTensor* found = nullptr;
  for (const std::string_view name : names) {
    found = checkpoint_->Find(name);
    if (found != nullptr) break;
  }
  if (found == nullptr) {
    missing_.push_back(std::string(*names.begin()) + " " + ShapeText(shape));
    return {};
  }
  const TensorEntry& entry = found->entry;
  taken_.push_back(entry.name);
  const bool fits = std::equal(entry.shape.begin(), entry.shape.end(), shape.begin(), shape.end(),
                               [](int64_t have, int64_t want) { return want < 0 || have == want; });
  if (!fits || !IsFloating(entry.dtype)) {
    misfits_.push_back(entry.name + " is " + std::string(Name(entry.dtype)) + ShapeText(entry.shape) +
                       " instead of floating " + ShapeText(shape));
    return {};
  }
  const uint8_t* data = checkpoint_->Data(*found);
  const size_t bytes = entry.end - entry.begin;
  if (reinterpret_cast<uintptr_t>(data) % SizeOf(entry.dtype) != 0) {
    copies_.emplace_back((bytes + 7) / 8);
    std::memcpy(copies_.back().data(), data, bytes);
    data = reinterpret_cast<const uint8_t*>(copies_.back().data());
  }
  // The mapping is read-only; views carry no const, and nobody writes weights.
  TensorView view(const_cast<uint8_t*>(data), entry.dtype, {});
  view.rank = static_cast<int>(entry.shape.size());
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.dims[static_cast<size_t>(i)] = entry.shape[static_cast<size_t>(i)];
    view.strides[static_cast<size_t>(i)] = stride;
    stride *= entry.shape[static_cast<size_t>(i)];
  }
  return view;
}

bool WeightReader::Ignored(const std::string& name) const {
  for (const std::string& p : ignored_prefixes_) {
    if (name.starts_with(p)) return true;
  }
  for (const std::string& s : ignored_suffixes_) {
    if (name.ends_with(s)) return true;
  }
  return false;
}

Status WeightReader::Finish() const {
  std::vector<std::string> taken = taken_;
  std::sort(taken.begin(), taken.end());
  std::vector<std::string> extra;
  for (const CheckpointTensor& t : checkpoint_->tensors()) {
    if (!std::binary_search(taken.begin(), taken.end(), t.entry.name) && !Ignored(t.entry.name)) {
      extra.push_back(t.entry.name);
    }
  }
  std::string what;
  AppendList(what, "missing", missing_);
  AppendList(what, "of another shape or type", misfits_);
  AppendList(what, "not known to this architecture", extra);
  if (what.empty()) return Status::Ok();
  return Status::UnusableModel(checkpoint_->directory() + ": the tensors do not fit config.json (" + what +
                               "); use config.json and weights of the same checkpoint");
}

}  // namespace fluvial::weights
