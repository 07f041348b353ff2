// SPDX-License-Identifier: Apache-2.0
// The reference body: one fp64 loop per token and channel, rounding exactly where the problem says.
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/causal_conv1d/bodies.h"

namespace fluvial::ops::causal_conv1d::internal {
namespace {

double RoundTo(DType dtype, double x) {
  uint32_t storage = 0;
  StoreFromDouble(&storage, dtype, 0, x);
  return LoadAsDouble(&storage, dtype, 0);
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

/// Inputs of one sequence with its W-1 predecessors in front: value(i, c) for i = -(W-1)..L-1, in fp64.
class Window {
 public:
  Window(const Problem& p, const Args& a, int32_t n)
      : c_(p.channels), w_(p.width), first_(a.plan->offsets()[n]), x_(a.x) {
    before_.assign(static_cast<size_t>(w_ - 1) * c_, 0.0);
    const int32_t slot = a.plan->read_slots()[n];
    if (slot < 0) return;
    const int64_t base = slot * a.state.strides[0];
    for (int64_t i = 0; i < (w_ - 1) * c_; ++i) before_[i] = LoadAsDouble(a.state.data, p.state, base + i);
  }
  double operator()(int64_t i, int64_t c) const {
    if (i < 0) return before_[(i + w_ - 1) * c_ + c];
    return LoadAsDouble(x_.data, x_.dtype, (first_ + i) * x_.strides[0] + c);
  }

 private:
  int64_t c_, w_, first_;
  TensorView x_;
  std::vector<double> before_;
};

void StoreState(const Problem& p, const Window& x, int64_t length, void* data, int64_t base) {
  for (int64_t r = 0; r < p.width - 1; ++r) {
    for (int64_t c = 0; c < p.channels; ++c) {
      StoreFromDouble(data, p.state, base + r * p.channels + c, x(length - (p.width - 1) + r, c));
    }
  }
}

}  // namespace

Check ReferenceCheck(const Problem&, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  return Check::Accept();
}

size_t ReferenceWorkspace(const Problem&, const DeviceInfo&) { return 0; }

double ReferenceCost(const Problem& p, const DeviceInfo&) {
  return 1.0 + 0.05 * static_cast<double>(p.tokens) * p.channels;  // about 50 ns per output
}

Status CheckTokenSlots(const Problem& p, const Args& a) {
  if (!p.token_states) return Status::Ok();
  const SequencePlan& plan = *a.plan;
  std::unordered_map<int32_t, int32_t> readers;
  for (int32_t n = 0; n < p.sequences; ++n) {
    if (plan.read_slots()[n] >= 0) readers.emplace(plan.read_slots()[n], n);
  }
  std::unordered_map<int32_t, int32_t> writers;
  const auto* slots = static_cast<const int32_t*>(a.token_slots.data);
  for (int32_t n = 0; n < p.sequences; ++n) {
    const int64_t length = plan.offsets()[n + 1] - plan.offsets()[n];
    for (int64_t t = 0; t < length; ++t) {
      const int32_t slot = slots[n * p.max_length + t];
      if (slot < 0) continue;
      const std::string name = std::string(kOpName) + ": token slot " + std::to_string(slot);
      if (slot >= a.state.dims[0]) {
        return Status::InvalidArgument(name + " is outside the state of " + std::to_string(a.state.dims[0]) + " slots");
      }
      if (!writers.emplace(slot, n).second) {
        return Status::InvalidArgument(name + " is given twice: give every token its own");
      }
      const auto reader = readers.find(slot);
      if (reader != readers.end() && reader->second != n) {
        return Status::InvalidArgument(name + " of sequence " + std::to_string(n) + " is read by sequence " +
                                       std::to_string(reader->second) + ": use another slot");
      }
    }
  }
  return Status::Ok();
}

Status ReferenceRun(Stream&, const Problem& p, const Args& a, Workspace) {
  FLUVIAL_RETURN_IF_ERROR(CheckTokenSlots(p, a));
  const SequencePlan& plan = *a.plan;
  int64_t checkpoint = 0;
  for (int32_t n = 0; n < p.sequences; ++n) {
    const int64_t first = plan.offsets()[n], length = plan.offsets()[n + 1] - first;
    const Window x(p, a, n);
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t c = 0; c < p.channels; ++c) {
        double y = p.has_bias ? LoadAsDouble(a.bias.data, p.weight, c) : 0.0;
        for (int64_t j = 0; j < p.width; ++j) {
          y += LoadAsDouble(a.weight.data, p.weight, c * p.width + j) * x(t - (p.width - 1) + j, c);
        }
        if (p.rounding == Rounding::kEager) y = RoundTo(p.io, y);
        if (p.activation == Activation::kSilu) y = Silu(y);
        StoreFromDouble(a.out.data, p.io, (first + t) * a.out.strides[0] + c, y);
      }
      if (p.checkpoint_every > 0 && (t + 1) % p.checkpoint_every == 0) {
        StoreState(p, x, t + 1, a.checkpoints.data, checkpoint++ * (p.width - 1) * p.channels);
      }
      if (p.token_states) {
        const int32_t slot = static_cast<const int32_t*>(a.token_slots.data)[n * p.max_length + t];
        if (slot >= 0) StoreState(p, x, t + 1, a.state.data, slot * a.state.strides[0]);
      }
    }
    const int32_t slot = plan.write_slots()[n];
    if (!p.token_states && slot >= 0) StoreState(p, x, length, a.state.data, slot * a.state.strides[0]);
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::causal_conv1d::internal
