// SPDX-License-Identifier: Apache-2.0
// Built instead of cuda.cc when no nvcc was found: the same functions, honest answers.
#include "base/check.h"
#include "device/device.h"

namespace fluvial {
namespace {

Status NoCuda() {
  return Status::InvalidArgument("this build has no CUDA: install nvcc and build again, or use --device cpu");
}

}  // namespace

int CudaDeviceCount() { return 0; }
std::string CudaUnavailableReason() { return "built without CUDA"; }
Result<DeviceInfo> CudaDeviceInfo(int) { return NoCuda(); }
Result<std::unique_ptr<Stream>> MakeCudaStream(int) { return NoCuda(); }
Result<std::unique_ptr<Event>> MakeCudaEvent(int) { return NoCuda(); }

namespace internal {
Result<void*> CudaAllocate(int, size_t) { return NoCuda(); }
void CudaFree(void*) { FLUVIAL_CHECK_MSG(false, "CUDA memory in a build without CUDA"); }
Status CudaCopy(Stream&, void*, const void*, size_t) { return NoCuda(); }
}  // namespace internal

}  // namespace fluvial
