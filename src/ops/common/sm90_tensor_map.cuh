// SPDX-License-Identifier: Apache-2.0
// The driver's tensor-map encoder, looked up through the runtime so that nothing links libcuda. Host code.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

namespace fluvial::sm90 {

/// Null when the driver is older than CUDA 12.
inline PFN_cuTensorMapEncodeTiled_v12000 TensorMapEncoder() {
  static const PFN_cuTensorMapEncodeTiled_v12000 encoder = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      f = nullptr;
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(f);
  }();
  return encoder;
}

}  // namespace fluvial::sm90
