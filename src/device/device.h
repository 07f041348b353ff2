// SPDX-License-Identifier: Apache-2.0
// Device, Stream, Event, Buffer: the little that the rest needs to know about where memory and work live.
//
// Three bodies: cpu.cc (always), cuda.cc (built when nvcc is found) and no_cuda.cc (otherwise: the same
// functions, answering honestly that this build has no CUDA).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "fluvial/status.h"

namespace fluvial {

enum class DeviceKind : uint8_t { kCpu, kCuda };

/// What selection and refusals need to know of a device; a plain value, so that `explain --assume-device` can
/// make one up.
struct DeviceInfo {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  std::string name;  ///< "AMD EPYC ...", "NVIDIA H200"
  int sm_major = 0;  ///< CUDA compute capability; 0 on CPU
  int sm_minor = 0;
  int multiprocessors = 0;  ///< SMs, or CPU threads
  size_t memory_bytes = 0;
  size_t l2_bytes = 0;
  size_t shared_memory_per_block = 0;  ///< opt-in maximum
  int cuda_runtime = 0;                ///< 13000 for 13.0; 0 without CUDA
  int cuda_driver = 0;
  bool assumed = false;  ///< made up by --assume-device: nothing can run on it

  /// "cpu", "sm_90".
  std::string Arch() const;
};

/// The CPU this process runs on.
DeviceInfo CpuDeviceInfo(int threads);

/// Number of usable CUDA devices; 0 when there is none or this build has no CUDA. Never fails, never prints.
int CudaDeviceCount();

/// Why there is no CUDA here: "built without CUDA", "no NVIDIA driver found", ... Empty when there is.
std::string CudaUnavailableReason();

Result<DeviceInfo> CudaDeviceInfo(int index);

/// "sm_90", "sm_100", "sm_103", "sm_120", "cpu" -> a made-up device with that architecture's public figures.
Result<DeviceInfo> AssumedDevice(std::string_view arch);

/// Work queue of one device. On the CPU work happens in the calling thread and in `pool()`, and Synchronize
/// returns at once. Not thread-safe.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual const DeviceInfo& device() const = 0;
  virtual Status Synchronize() = 0;
  /// CPU threads; on CUDA a pool of the host side.
  virtual ThreadPool& pool() = 0;
  /// cudaStream_t on CUDA, nullptr on the CPU.
  virtual void* native() const { return nullptr; }
  /// True while the stream is being captured into a CUDA graph.
  virtual bool capturing() const { return false; }
};

/// A CPU stream with its own pool of `threads` threads (<= 0: all available).
std::unique_ptr<Stream> MakeCpuStream(int threads = 0);

/// A CUDA stream on device `index`, or why not.
Result<std::unique_ptr<Stream>> MakeCudaStream(int index);

/// Memory on one device, freed on destruction. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  /// 256-byte aligned, not initialised. Zero bytes give an empty buffer with a null pointer.
  static Result<Buffer> Allocate(DeviceKind kind, size_t bytes, int index = 0);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  DeviceKind kind() const { return kind_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  DeviceKind kind_ = DeviceKind::kCpu;
  int index_ = 0;
};

/// Copies between any two devices in stream order. Pageable host memory makes a CUDA copy synchronous with
/// the host.
Status Copy(Stream& stream, void* to, DeviceKind to_kind, const void* from, DeviceKind from_kind, size_t bytes);

/// A point in a stream; elapsed time between two points in milliseconds.
class Event {
 public:
  virtual ~Event() = default;
  virtual Status Record(Stream& stream) = 0;
  virtual Status Synchronize() = 0;
  virtual Result<double> MillisecondsSince(const Event& start) const = 0;
};
std::unique_ptr<Event> MakeCpuEvent();
Result<std::unique_ptr<Event>> MakeCudaEvent(int index);

namespace internal {  // implemented by cuda.cc / no_cuda.cc
Result<void*> CudaAllocate(int index, size_t bytes);
void CudaFree(void* data);
Status CudaCopy(Stream& stream, void* to, const void* from, size_t bytes);
}  // namespace internal

}  // namespace fluvial
