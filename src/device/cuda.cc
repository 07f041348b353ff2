// SPDX-License-Identifier: Apache-2.0
// CUDA bodies of device.h. Nothing here runs at load time: a machine without a driver can load, list and
// explain (the runtime is linked statically and finds libcuda itself).
#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "device/device.h"

namespace fluvial {
namespace {

Status CudaError(cudaError_t error, const char* what) {
  return Status::Failed(std::string(what) + ": " + cudaGetErrorString(error));
}

class CudaStream : public Stream {
 public:
  CudaStream(DeviceInfo info, cudaStream_t stream) : info_(std::move(info)), stream_(stream), pool_(1) {}
  ~CudaStream() override { cudaStreamDestroy(stream_); }
  const DeviceInfo& device() const override { return info_; }
  Status Synchronize() override {
    const cudaError_t e = cudaStreamSynchronize(stream_);
    return e == cudaSuccess ? Status::Ok() : CudaError(e, "waiting for the GPU");
  }
  ThreadPool& pool() override { return pool_; }
  void* native() const override { return stream_; }
  bool capturing() const override {
    cudaStreamCaptureStatus s = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream_, &s) == cudaSuccess && s != cudaStreamCaptureStatusNone;
  }

 private:
  DeviceInfo info_;
  cudaStream_t stream_;
  ThreadPool pool_;
};

class CudaEvent : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  Status Record(Stream& stream) override {
    const cudaError_t e = cudaEventRecord(event_, static_cast<cudaStream_t>(stream.native()));
    return e == cudaSuccess ? Status::Ok() : CudaError(e, "recording an event");
  }
  Status Synchronize() override {
    const cudaError_t e = cudaEventSynchronize(event_);
    return e == cudaSuccess ? Status::Ok() : CudaError(e, "waiting for an event");
  }
  Result<double> MillisecondsSince(const Event& start) const override {
    const auto* s = dynamic_cast<const CudaEvent*>(&start);
    if (s == nullptr) return Status::InvalidArgument("events of two different devices cannot be compared");
    float ms = 0;
    const cudaError_t e = cudaEventElapsedTime(&ms, s->event_, event_);
    if (e != cudaSuccess) return CudaError(e, "reading an event");
    return static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_;
};

}  // namespace

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clears the sticky "no driver" answer
    return 0;
  }
  return count;
}

std::string CudaUnavailableReason() {
  int count = 0;
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e == cudaSuccess && count > 0) return "";
  cudaGetLastError();
  if (e == cudaErrorInsufficientDriver) return "no NVIDIA driver, or one older than the CUDA runtime of this build";
  if (e == cudaErrorNoDevice || e == cudaSuccess) return "no NVIDIA GPU found";
  return cudaGetErrorString(e);
}

Result<DeviceInfo> CudaDeviceInfo(int index) {
  const std::string reason = CudaUnavailableReason();
  if (!reason.empty()) return Status::InvalidArgument("no CUDA device: " + reason + "; use --device cpu");
  const int count = CudaDeviceCount();
  if (index < 0 || index >= count) {
    return Status::InvalidArgument("CUDA device " + std::to_string(index) + " does not exist: this machine has " +
                                   std::to_string(count));
  }
  cudaDeviceProp p{};
  const cudaError_t e = cudaGetDeviceProperties(&p, index);
  if (e != cudaSuccess) return CudaError(e, "reading the GPU's properties");
  DeviceInfo info;
  info.kind = DeviceKind::kCuda;
  info.index = index;
  info.name = p.name;
  info.sm_major = p.major;
  info.sm_minor = p.minor;
  info.multiprocessors = p.multiProcessorCount;
  info.memory_bytes = p.totalGlobalMem;
  info.l2_bytes = static_cast<size_t>(p.l2CacheSize);
  info.shared_memory_per_block = p.sharedMemPerBlockOptin;
  cudaRuntimeGetVersion(&info.cuda_runtime);
  cudaDriverGetVersion(&info.cuda_driver);
  return info;
}

Result<std::unique_ptr<Stream>> MakeCudaStream(int index) {
  FLUVIAL_ASSIGN_OR_RETURN(DeviceInfo info, CudaDeviceInfo(index));
  cudaError_t e = cudaSetDevice(index);
  if (e != cudaSuccess) return CudaError(e, "selecting the GPU");
  cudaStream_t stream = nullptr;
  e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (e != cudaSuccess) return CudaError(e, "creating a stream");
  return std::unique_ptr<Stream>(new CudaStream(std::move(info), stream));
}

Result<std::unique_ptr<Event>> MakeCudaEvent(int index) {
  cudaError_t e = cudaSetDevice(index);
  if (e != cudaSuccess) return CudaError(e, "selecting the GPU");
  cudaEvent_t event = nullptr;
  e = cudaEventCreate(&event);
  if (e != cudaSuccess) return CudaError(e, "creating an event");
  return std::unique_ptr<Event>(new CudaEvent(event));
}

namespace internal {

Result<void*> CudaAllocate(int index, size_t bytes) {
  cudaError_t e = cudaSetDevice(index);
  void* p = nullptr;
  if (e == cudaSuccess) e = cudaMalloc(&p, bytes);
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Status::Resource("out of GPU memory: " + std::to_string(bytes) + " bytes asked");
  }
  if (e != cudaSuccess) return CudaError(e, "allocating GPU memory");
  return p;
}

void CudaFree(void* data) { cudaFree(data); }

Status CudaCopy(Stream& stream, void* to, const void* from, size_t bytes) {
  const cudaError_t e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream.native()));
  return e == cudaSuccess ? Status::Ok() : CudaError(e, "copying");
}

}  // namespace internal

}  // namespace fluvial
