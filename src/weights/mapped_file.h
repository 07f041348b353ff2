// SPDX-License-Identifier: Apache-2.0
// MappedFile: a whole file mapped read-only. The only place of the project that calls mmap for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "fluvial/status.h"

namespace fluvial::weights {

/// Danger: a file that another process truncates while it is mapped faults on access; checkpoints must not be
/// changed in place while they are in use.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// kUnusableModel naming the path and the system's reason. An empty file maps to zero bytes.
  static Result<MappedFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  /// Gives back the resident pages that lie wholly inside [data, data + bytes); they are read again from disk
  /// when touched. Called after a weight was packed elsewhere, so that it is not held twice.
  static void DropPages(const void* data, size_t bytes);

 private:
  std::string path_;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Reads a small text file whole; larger than `limit` bytes is refused. kUnusableModel naming the path.
Result<std::string> ReadTextFile(const std::string& path, size_t limit);

}  // namespace fluvial::weights
