// SPDX-License-Identifier: Apache-2.0
// The oneDNN backend of a build without oneDNN: present by name, refuses with the reason.
#include "ops/gemm/backends.h"

namespace fluvial::ops::gemm {
namespace {

constexpr const char* kReason = "built without oneDNN (install libdnnl-dev and build again)";

Check CheckOneDnn(const Problem&, const DeviceInfo&) { return Check::Refuse(kReason); }
size_t NoWorkspace(const Problem&, const DeviceInfo&) { return 0; }
double Cost(const Problem&, const DeviceInfo&) { return 0; }
Status RunOneDnn(Stream&, const Problem&, const Args&, Workspace) { return Status::Refused(kReason); }

}  // namespace

const GemmBackend& OneDnnBackend() {
  static constexpr GemmBackend backend = {"onednn", "oneDNN matmul", CheckOneDnn, NoWorkspace, Cost, RunOneDnn};
  return backend;
}

Result<std::shared_ptr<const PackedWeight>> OneDnnPack(const TensorView&, DType, DType, int64_t) {
  return Status::Refused(std::string("packed weights: ") + kReason);
}

}  // namespace fluvial::ops::gemm
