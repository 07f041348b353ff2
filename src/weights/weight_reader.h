// SPDX-License-Identifier: Apache-2.0
// WeightReader: a model takes its tensors by name and shape, and everything that does not fit is reported in
// one error - missing, mis-shaped, of the wrong type, and left over. A checkpoint that loads is complete.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensor_view.h"
#include "fluvial/status.h"
#include "weights/checkpoint.h"

namespace fluvial::weights {

class WeightReader {
 public:
  explicit WeightReader(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}

  /// A reader of a checkpoint without tensors: nothing is found, and asked_elements() counts what a model wants.
  static WeightReader Counting();

  /// The tensor `name` in place (read-only memory of the mapping), aligned to its element size; an undefined
  /// view when it is missing or has another shape - Finish() then reports it. Any floating dtype is accepted.
  /// A dimension of -1 matches any size.
  TensorView Take(std::string_view name, std::initializer_list<int64_t> shape);

  /// The first of several spellings that exists; missing is reported under the first.
  TensorView TakeAny(std::initializer_list<std::string_view> names, std::initializer_list<int64_t> shape);

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  bool Has(std::string_view name) const { return checkpoint_->Find(name) != nullptr; }
  /// nullptr when there is no such tensor. Looking does not take it.
  const std::vector<int64_t>* ShapeOf(std::string_view name) const {
    const CheckpointTensor* t = checkpoint_->Find(name);
    return t == nullptr ? nullptr : &t->entry.shape;
  }

  /// Elements of all tensors that were asked for so far, found or not; a dimension of -1 counts as 1.
  int64_t asked_elements() const { return asked_elements_; }

  /// Tensors whose names start with `prefix` or end with `suffix` may be left over.
  void IgnorePrefix(std::string_view prefix) { ignored_prefixes_.emplace_back(prefix); }
  void IgnoreSuffix(std::string_view suffix) { ignored_suffixes_.emplace_back(suffix); }

  /// Ok when every tensor asked for was there with its shape and none is left over; else one kUnusableModel
  /// that lists them all; names alike but for their numbers are one entry ("layers.{0-47}.mlp.experts.{0-511}.x").
  Status Finish() const;

  /// Copies made for tensors that lie unaligned in their file; keep them as long as the views are used.
  std::vector<std::vector<uint64_t>> TakeAlignedCopies() { return std::move(copies_); }

 private:
  bool Ignored(const std::string& name) const;

  const Checkpoint* checkpoint_;
  int64_t asked_elements_ = 0;
  std::vector<std::string> taken_;
  std::vector<std::string> missing_;
  std::vector<std::string> misfits_;
  std::vector<std::string> ignored_prefixes_;
  std::vector<std::string> ignored_suffixes_;
  std::vector<std::vector<uint64_t>> copies_;
};

}  // namespace fluvial::weights
