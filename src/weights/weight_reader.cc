// SPDX-License-Identifier: Apache-2.0
#include "weights/weight_reader.h"

#include <algorithm>
#include <cstring>
#include <span>

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

void AppendList(std::string& out, const char* title, const std::vector<std::string>& items) {
  constexpr size_t kShown = 20;
  if (items.empty()) return;
  out += (out.empty() ? "" : "; ") + std::to_string(items.size()) + " " + title + ": ";
  for (size_t i = 0; i < std::min(items.size(), kShown); ++i) out += (i ? ", " : "") + items[i];
  if (items.size() > kShown) out += ", ...";
}

}  // namespace

TensorView WeightReader::Take(std::string_view name, std::initializer_list<int64_t> shape) {
  return TakeAny({name}, shape);
}

TensorView WeightReader::TakeAny(std::initializer_list<std::string_view> names, std::initializer_list<int64_t> shape) {
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
