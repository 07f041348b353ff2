// SPDX-License-Identifier: Apache-2.0
// The cpu body: cuts tokens x channels into tasks, handles windows that reach into the state, and moves states.
//
// A task is a block of consecutive packed tokens (of one or more sequences) and a chunk of channels. Outputs of a
// sequence that lies in several blocks must all be computed before its state is overwritten; those states are written
// in a second pass. Everything else - all of decode - takes one pass.
#include <algorithm>
#include <cstring>

#include "ops/causal_conv1d/bodies.h"
#include "ops/causal_conv1d/cpu_simd.h"

namespace fluvial::ops::causal_conv1d::internal {
namespace {

constexpr int64_t kChunk = 512;  // channels: taps (8 x 2 KiB) and a few rows stay in L1
constexpr int64_t kBlock = 128;  // tokens

/// One call's view of one channel chunk.
template <class T>
class Chunk {
 public:
  Chunk(const Problem& p, const Args& a, int64_t chunk)
      : p_(p), a_(a), c0_(chunk * kChunk), n_(std::min<int64_t>(kChunk, p.channels - c0_)), w_(p.width) {}

  void PrepareTaps() {
    const char* weight = static_cast<const char*>(a_.weight.data) + c0_ * w_ * SizeOf(p_.weight);
    ExpandTaps(weight, p_.weight, p_.width, n_, taps_, kChunk);
    for (int64_t c = 0; c < n_; ++c) {
      bias_[c] = p_.has_bias ? static_cast<float>(LoadAsDouble(a_.bias.data, p_.weight, c0_ + c)) : 0.0f;
    }
  }

  void Block(int64_t t0, int64_t t1) {
    const auto offsets = a_.plan->offsets();
    int64_t n = std::upper_bound(offsets.begin(), offsets.end(), t0) - offsets.begin() - 1;
    for (; offsets[n] < t1; ++n) {
      const int64_t first = offsets[n], length = offsets[n + 1] - first;
      const int64_t i0 = std::max(t0, first) - first, i1 = std::min(t1, offsets[n + 1]) - first;
      if (i0 >= i1) continue;
      if (i0 < w_ - 1) LoadHead(n);
      Tokens(first, i0, i1);
      Checkpoints(n, first, i0, i1);
      if (i0 == 0 && i1 == length) WriteStates(n, first, length);
    }
  }

  /// State of a sequence that Block did not finish: longer than a block, or empty.
  void LateStates(int64_t n) {
    const int64_t first = a_.plan->offsets()[n], length = a_.plan->offsets()[n + 1] - first;
    if (!NeedsLateStates(*a_.plan, n)) return;
    if (length < w_ - 1 || p_.token_states) LoadHead(n);
    WriteStates(n, first, length);
  }

  static bool NeedsLateStates(const SequencePlan& plan, int64_t n) {
    const int64_t first = plan.offsets()[n], last = plan.offsets()[n + 1];
    return first == last || first / kBlock != (last - 1) / kBlock;
  }

 private:
  const T* XRow(int64_t token) const { return static_cast<const T*>(a_.x.data) + token * a_.x.strides[0] + c0_; }

  /// Input i (may be negative) of the sequence that starts at packed token `first`.
  const T* Row(int64_t first, int64_t i) const { return i < 0 ? head_ + (i + w_ - 1) * kChunk : XRow(first + i); }

  template <class S>
  void Convert(const S* from, T* to) const {
    if constexpr (std::is_same_v<S, T>)
      std::memcpy(to, from, n_ * sizeof(T));
    else
      for (int64_t c = 0; c < n_; ++c) to[c] = FromFloat<T>(ToFloat(from[c]));
  }

  void LoadHead(int64_t n) {
    const int32_t slot = a_.plan->read_slots()[n];
    for (int64_t r = 0; r < w_ - 1; ++r) {
      T* to = head_ + r * kChunk;
      if (slot < 0) {
        std::memset(static_cast<void*>(to), 0, n_ * sizeof(T));
        continue;
      }
      const int64_t at = slot * a_.state.strides[0] + r * p_.channels + c0_;
      if (p_.state == p_.io)
        Convert(static_cast<const T*>(a_.state.data) + at, to);
      else
        Convert(static_cast<const float*>(a_.state.data) + at, to);
    }
  }

  void Tokens(int64_t first, int64_t i0, int64_t i1) {
    RowsCall call;
    call.row_pitch = a_.x.strides[0] * sizeof(T);
    call.out_pitch = a_.out.strides[0] * sizeof(T);
    call.taps = taps_;
    call.bias = bias_;
    call.taps_pitch = kChunk;
    call.channels = n_;
    call.width = p_.width;
    call.io = p_.io;
    call.silu = p_.activation == Activation::kSilu;
    call.eager = p_.rounding == Rounding::kEager;
    for (int64_t i = i0; i < i1;) {
      // Tokens whose window reaches into the state go one by one, the rest in one run.
      call.count = i < w_ - 1 ? 1 : i1 - i;
      for (int64_t j = 0; j < w_; ++j) call.rows[j] = Row(first, i - (w_ - 1) + j);
      call.out = static_cast<T*>(a_.out.data) + (first + i) * a_.out.strides[0] + c0_;
      ConvRows(call);
      i += call.count;
    }
  }

  /// The W-1 inputs before input `i`, as a state of channels-pitch rows at `data` + `at`.
  void StoreWindow(int64_t first, int64_t i, const TensorView& to, int64_t at) const {
    for (int64_t r = 0; r < w_ - 1; ++r) {
      const T* from = Row(first, i - (w_ - 1) + r);
      const int64_t where = at + r * p_.channels + c0_;
      if (p_.state == p_.io) {
        std::memcpy(static_cast<void*>(static_cast<T*>(to.data) + where), from, n_ * sizeof(T));
      } else {
        float* row = static_cast<float*>(to.data) + where;
        for (int64_t c = 0; c < n_; ++c) row[c] = ToFloat(from[c]);
      }
    }
  }

  void WriteStates(int64_t n, int64_t first, int64_t length) const {
    if (p_.token_states) {
      const auto* slots = static_cast<const int32_t*>(a_.token_slots.data) + n * p_.max_length;
      for (int64_t t = 0; t < length; ++t) {
        if (slots[t] >= 0) StoreWindow(first, t + 1, a_.state, slots[t] * a_.state.strides[0]);
      }
      return;
    }
    const int32_t slot = a_.plan->write_slots()[n];
    if (slot >= 0) StoreWindow(first, length, a_.state, slot * a_.state.strides[0]);
  }

  void Checkpoints(int64_t n, int64_t first, int64_t i0, int64_t i1) const {
    const int64_t every = p_.checkpoint_every;
    if (every == 0 || i0 / every == i1 / every) return;
    int64_t row = 0;
    const auto offsets = a_.plan->offsets();
    for (int64_t m = 0; m < n; ++m) row += (offsets[m + 1] - offsets[m]) / every;
    for (int64_t k = i0 / every + 1; k * every <= i1; ++k) {
      StoreWindow(first, k * every, a_.checkpoints, (row + k - 1) * (w_ - 1) * p_.channels);
    }
  }

  const Problem& p_;
  const Args& a_;
  const int64_t c0_, n_, w_;
  alignas(64) float taps_[kMaxWidth * kChunk];
  alignas(64) float bias_[kChunk];
  alignas(64) T head_[(kMaxWidth - 1) * kChunk];
};

template <class T>
void RunTyped(ThreadPool& pool, const Problem& p, const Args& a) {
  const int64_t chunks = (p.channels + kChunk - 1) / kChunk;
  const int64_t blocks = (p.tokens + kBlock - 1) / kBlock;
  pool.ParallelFor(chunks * blocks, [&](int64_t task, int) {
    Chunk<T> chunk(p, a, task % chunks);
    chunk.PrepareTaps();
    const int64_t t0 = task / chunks * kBlock;
    chunk.Block(t0, std::min(t0 + kBlock, p.tokens));
  });
  bool late = false;
  for (int64_t n = 0; n < p.sequences && !late; ++n) late = Chunk<T>::NeedsLateStates(*a.plan, n);
  if (!late) return;
  pool.ParallelFor(chunks, [&](int64_t task, int) {
    Chunk<T> chunk(p, a, task);
    for (int64_t n = 0; n < p.sequences; ++n) chunk.LateStates(n);
  });
}

}  // namespace

Check CpuCheck(const Problem&, const DeviceInfo& device) {
  if (device.kind != DeviceKind::kCpu) return Check::Refuse("runs on the CPU only, the device is " + device.Arch());
  return Check::Accept();
}

size_t CpuWorkspace(const Problem&, const DeviceInfo&) { return 0; }

double CpuCost(const Problem& p, const DeviceInfo& device) {
  // Measured on one Zen 5 core: see README.md.
  const double per_output_ns = p.rounding == Rounding::kEager ? 0.65 : 0.55;
  return 1.0 + per_output_ns * 1e-3 * static_cast<double>(p.tokens) * p.channels / std::max(1, device.multiprocessors);
}

Status CpuRun(Stream& stream, const Problem& p, const Args& a, Workspace) {
  FLUVIAL_RETURN_IF_ERROR(CheckTokenSlots(p, a));
  switch (p.io) {
    case DType::kBF16:
      RunTyped<BFloat16>(stream.pool(), p, a);
      break;
    case DType::kF16:
      RunTyped<Float16>(stream.pool(), p, a);
      break;
    default:
      RunTyped<float>(stream.pool(), p, a);
  }
  return Status::Ok();
}

}  // namespace fluvial::ops::causal_conv1d::internal
