// SPDX-License-Identifier: Apache-2.0
#include "weights/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fluvial::weights {
namespace {

/// Closes a descriptor on every path out.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status SystemError(const std::string& path, const char* verb) {
  const int error = errno;
  return Status::UnusableModel("cannot " + std::string(verb) + " " + path + ": " + std::strerror(error) +
                               "; check the path and its permissions");
}

/// Opens a regular file and reports its size.
Result<size_t> RegularFileSize(int fd, const std::string& path) {
  struct stat info{};
  if (fstat(fd, &info) != 0) return SystemError(path, "read the size of");
  if (!S_ISREG(info.st_mode)) return Status::UnusableModel(path + " is not a regular file; give the path of a file");
  return static_cast<size_t>(info.st_size);
}

}  // namespace

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(path, "open");
  FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, RegularFileSize(fd.get(), path));
  MappedFile file;
  file.path_ = path;
  file.bytes_ = bytes;
  if (bytes == 0) return file;
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return SystemError(path, "map");
  file.data_ = static_cast<uint8_t*>(data);
  return file;
}

void MappedFile::DropPages(const void* data, size_t bytes) {
  static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  // A failure only means that the pages stay resident.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<std::string> ReadTextFile(const std::string& path, size_t limit) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(path, "open");
  FLUVIAL_ASSIGN_OR_RETURN(const size_t bytes, RegularFileSize(fd.get(), path));
  if (bytes > limit) {
    return Status::UnusableModel(path + " has " + std::to_string(bytes) + " bytes, more than the " +
                                 std::to_string(limit) + " allowed for such a file; download it again");
  }
  std::string text(bytes, '\0');
  size_t at = 0;
  while (at < bytes) {
    const ssize_t n = read(fd.get(), text.data() + at, bytes - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(path, "read");
    if (n == 0) break;
    at += static_cast<size_t>(n);
  }
  text.resize(at);
  return text;
}

}  // namespace fluvial::weights
