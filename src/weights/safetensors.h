// SPDX-License-Identifier: Apache-2.0
// The safetensors container: 8 bytes little-endian header length, a JSON header, then the tensors' bytes.
//
// Format: github.com/huggingface/safetensors README ("Format"): at most 100 MB of header, offsets relative to
// the first byte after it, little-endian row-major data, no holes and no overlap. Files come from strangers, so
// everything is checked before a pointer into the mapping is made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "fluvial/status.h"
#include "weights/mapped_file.h"

namespace fluvial::weights {

/// One tensor of a file. `begin` and `end` are absolute byte offsets in the file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Largest header the format allows.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Checks and reads the header of the file whose bytes are `file`. Entries come back in the order of their
/// data. Errors are kUnusableModel sentences that begin with `file_name`.
Result<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const uint8_t> file, std::string_view file_name);

/// One mapped .safetensors file.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  size_t bytes() const { return file_.bytes(); }
  const std::vector<TensorEntry>& entries() const { return entries_; }
  const uint8_t* Data(const TensorEntry& entry) const { return file_.data() + entry.begin; }

 private:
  MappedFile file_;
  std::vector<TensorEntry> entries_;
};

}  // namespace fluvial::weights
