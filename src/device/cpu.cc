// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"
#include "device/device.h"

namespace fluvial {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// From here on a buffer asks for huge pages; below, rounding up would waste more than it gains.
constexpr size_t kLargeBuffer = size_t{8} << 20;

std::string CpuModelName() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("model name", 0) == 0) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
    }
  }
  return "CPU";
}

class CpuStream : public Stream {
 public:
  explicit CpuStream(int threads) : pool_(threads), info_(CpuDeviceInfo(pool_.threads())) {}
  const DeviceInfo& device() const override { return info_; }
  Status Synchronize() override { return Status::Ok(); }
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_;
  DeviceInfo info_;
};

class CpuEvent : public Event {
 public:
  Status Record(Stream&) override {
    at_ = std::chrono::steady_clock::now();
    return Status::Ok();
  }
  Status Synchronize() override { return Status::Ok(); }
  Result<double> MillisecondsSince(const Event& start) const override {
    const auto* s = dynamic_cast<const CpuEvent*>(&start);
    if (s == nullptr) return Status::InvalidArgument("events of two different devices cannot be compared");
    return std::chrono::duration<double, std::milli>(at_ - s->at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_{};
};

}  // namespace

std::string DeviceInfo::Arch() const {
  if (kind == DeviceKind::kCpu) return "cpu";
  return "sm_" + std::to_string(sm_major) + std::to_string(sm_minor);
}

DeviceInfo CpuDeviceInfo(int threads) {
  DeviceInfo info;
  info.kind = DeviceKind::kCpu;
  static const std::string& name = *new std::string(CpuModelName());
  info.name = name;
  info.multiprocessors = threads;
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  if (pages > 0 && page > 0) info.memory_bytes = static_cast<size_t>(pages) * static_cast<size_t>(page);
  const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (l2 > 0) info.l2_bytes = static_cast<size_t>(l2);
  return info;
}

Result<DeviceInfo> AssumedDevice(std::string_view arch) {
  struct Known {
    const char* arch;
    const char* name;
    int major, minor, sms;
    size_t gib, l2_mib, shared_kib;
  };
  // Public figures of one representative board per architecture.
  static constexpr Known kKnown[] = {
      {"sm_90", "H200 (assumed)", 9, 0, 132, 139, 50, 227},
      {"sm_100", "B200 (assumed)", 10, 0, 148, 180, 126, 227},
      {"sm_103", "B300 (assumed)", 10, 3, 148, 268, 126, 227},
      {"sm_120", "RTX PRO 6000 (assumed)", 12, 0, 188, 95, 128, 99},
  };
  if (arch == "cpu") {
    DeviceInfo info = CpuDeviceInfo(AvailableCpus());
    info.assumed = true;
    return info;
  }
  for (const Known& k : kKnown) {
    if (arch != k.arch) continue;
    DeviceInfo info;
    info.kind = DeviceKind::kCuda;
    info.name = k.name;
    info.sm_major = k.major;
    info.sm_minor = k.minor;
    info.multiprocessors = k.sms;
    info.memory_bytes = k.gib << 30;
    info.l2_bytes = k.l2_mib << 20;
    info.shared_memory_per_block = k.shared_kib << 10;
    info.cuda_runtime = info.cuda_driver = 13000;
    info.assumed = true;
    return info;
  }
  return Status::InvalidArgument("unknown device '" + std::string(arch) +
                                 "': use cpu, sm_90, sm_100, sm_103 or sm_120");
}

std::unique_ptr<Stream> MakeCpuStream(int threads) { return std::make_unique<CpuStream>(threads); }
std::unique_ptr<Event> MakeCpuEvent() { return std::make_unique<CpuEvent>(); }

Result<Buffer> Buffer::Allocate(DeviceKind kind, size_t bytes, int index) {
  Buffer b;
  b.kind_ = kind;
  b.index_ = index;
  b.bytes_ = bytes;
  if (bytes == 0) return b;
  if (kind == DeviceKind::kCuda) {
    FLUVIAL_ASSIGN_OR_RETURN(b.data_, internal::CudaAllocate(index, bytes));
    return b;
  }
  // Rows of one head lie a page or more apart: with 4 KiB pages nearly each is a miss of the address translation as
  // well.
  const bool large = bytes >= kLargeBuffer && bytes < std::numeric_limits<size_t>::max() - kHugePage;
  const size_t rounded = large ? (bytes + kHugePage - 1) / kHugePage * kHugePage : Arena::Aligned(bytes);
  b.data_ = std::aligned_alloc(large ? kHugePage : Arena::kAlignment, rounded);
  if (b.data_ == nullptr) {
    return Status::Resource("out of memory: " + std::to_string(bytes) + " bytes asked of the CPU");
  }
#if defined(MADV_HUGEPAGE)
  if (large) (void)madvise(b.data_, rounded, MADV_HUGEPAGE);  // a wish: small pages do as well
#endif
  return b;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
  std::swap(index_, other.index_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (kind_ == DeviceKind::kCuda)
    internal::CudaFree(data_);
  else
    std::free(data_);
}

Status Copy(Stream& stream, void* to, DeviceKind to_kind, const void* from, DeviceKind from_kind, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  if (to_kind == DeviceKind::kCpu && from_kind == DeviceKind::kCpu) {
    std::memcpy(to, from, bytes);
    return Status::Ok();
  }
  return internal::CudaCopy(stream, to, from, bytes);
}

}  // namespace fluvial
