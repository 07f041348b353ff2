// SPDX-License-Identifier: Apache-2.0
// Checkpoint: the tensors of a Hugging Face model directory, in one file or in shards, mapped and not copied.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/tensor_view.h"
#include "fluvial/status.h"
#include "weights/safetensors.h"

namespace fluvial::weights {

/// Where a tensor lies.
struct CheckpointTensor {
  TensorEntry entry;
  int shard = 0;
};

class Checkpoint {
 public:
  /// Opens `directory`: `model.safetensors.index.json` and its shards when present, else `model.safetensors`.
  /// Tensors may be spread over the shards in any way. Errors: no such file, a damaged file, a shard or tensor
  /// that the index names and is not there, a tensor in two shards - one sentence each.
  static Result<Checkpoint> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  size_t shards() const { return files_.size(); }
  /// Sum of the files' sizes.
  uint64_t bytes() const;

  /// In file order, shard after shard.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  /// nullptr when absent.
  const CheckpointTensor* Find(std::string_view name) const;

  /// Pointer into the mapping. Danger: read-only memory, and not aligned to the element size when the file was
  /// written by a tool that did not pad its header (legal); use memcpy or WeightReader, which aligns.
  const uint8_t* Data(const CheckpointTensor& tensor) const {
    return files_[static_cast<size_t>(tensor.shard)].Data(tensor.entry);
  }
  const std::string& FileOf(const CheckpointTensor& tensor) const {
    return files_[static_cast<size_t>(tensor.shard)].path();
  }

 private:
  Status AddFile(const std::string& path);

  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace fluvial::weights
