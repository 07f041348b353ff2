// SPDX-License-Identifier: Apache-2.0
// For tests and the benchmark of this room: the tensors of one call in memory whose gaps hold NaN.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ops/common/test_kit.h"
#include "ops/moe/moe.h"

namespace fluvial::ops::moe::test {

using test_kit::HostTensor;
using test_kit::Random;

/// How the experts of a case lie in memory.
enum class Storage : uint8_t { kStacked, kSeparate };

inline Problem Make(int64_t tokens, int32_t experts, int32_t per_token, int64_t hidden, int64_t inter, DType io,
                    DType w, Layout gate_up = Layout::kOutputMajor, Layout down = Layout::kOutputMajor,
                    float limit = 0) {
  Problem p;
  p.tokens = tokens, p.experts = experts, p.per_token = per_token, p.hidden = hidden, p.inter = inter, p.io = io;
  p.w = w, p.gate_up = gate_up, p.down = down, p.limit = limit;
  return p;
}

/// Tensors of one call; everything is NaN until it is filled. Weights are aligned to their elements only.
struct Case {
  Case(const Problem& p, Storage storage = Storage::kStacked, int64_t gap = 0)
      : p(p),
        x(p.io, {p.tokens, p.hidden}, p.hidden + gap, SizeOf(p.io)),
        y(p.io, {p.tokens, p.hidden}, p.hidden + 2 * gap, SizeOf(p.io)),
        ids(DType::kI32, {p.tokens, p.per_token}, p.per_token + gap, 4),
        weights(DType::kF32, {p.tokens, p.per_token}, p.per_token + gap, 4) {
    const bool gate_up_turned = p.gate_up == Layout::kInputMajor, down_turned = p.down == Layout::kInputMajor;
    if (storage == Storage::kStacked) {
      const auto add = [&](int64_t out, int64_t in, bool turned) {
        tensors.emplace_back(p.w, std::vector<int64_t>{p.experts, turned ? in : out, turned ? out : in}, 0,
                             SizeOf(p.w));
      };
      add(2 * p.inter, p.hidden, gate_up_turned);
      add(p.hidden, p.inter, down_turned);
      experts = StackedExperts(tensors[0].view(), p.gate_up, tensors[1].view(), p.down);
      return;
    }
    tensors.reserve(size_t(3 * p.experts));
    const auto add = [&](int64_t out, int64_t in, bool turned) {
      tensors.emplace_back(p.w, std::vector<int64_t>{turned ? in : out, turned ? out : in}, (turned ? out : in) + gap,
                           SizeOf(p.w));
      TensorView v = tensors.back().view();
      if (turned) {
        std::swap(v.dims[0], v.dims[1]);
        std::swap(v.strides[0], v.strides[1]);
      }
      return v;
    };
    for (int32_t e = 0; e < p.experts; ++e) {
      ExpertWeights w;
      w.gate = add(p.inter, p.hidden, gate_up_turned);
      w.up = add(p.inter, p.hidden, gate_up_turned);
      w.down = add(p.hidden, p.inter, down_turned);
      experts.push_back(w);
    }
  }

  Args args() { return {x.view(), ids.view(), weights.view(), experts, y.view()}; }

  static void Fill(HostTensor& t, const std::function<double()>& value) {
    for (int64_t r = 0; r < t.rows(); ++r) {
      for (int64_t i = 0; i < t.row_elements(); ++i) t.Set(r, i, value());
    }
  }
  static void Fill(const TensorView& t, const std::function<double()>& value) {
    for (int64_t r = 0; r < t.dim(0); ++r) {
      for (int64_t i = 0; i < t.dim(1); ++i) StoreFromDouble(t.data, t.dtype, At(t, r, i), value());
    }
  }
  static int64_t At(const TensorView& t, int64_t r, int64_t i) { return r * t.stride(0) + i * t.stride(1); }
  static double Get(const TensorView& t, int64_t r, int64_t i) { return LoadAsDouble(t.data, t.dtype, At(t, r, i)); }

  int32_t& Id(int64_t t, int64_t k) { return ids.ints()[t * ids.pitch() + k]; }

  /// Distinct experts for every token, from `rng`.
  void RandomIds(Random& rng) {
    std::vector<int32_t> all(size_t(p.experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t t = 0; t < p.tokens; ++t) {
      for (int32_t k = 0; k < p.per_token; ++k) {
        std::swap(all[size_t(k)], all[size_t(rng.Int(k, p.experts - 1))]);
        Id(t, k) = all[size_t(k)];
      }
    }
  }

  /// Runs a backend with exactly the workspace that it asks for, filled with NaN.
  Status Run(std::string_view backend, Stream& stream) { return Run(backend, stream, args()); }
  Status Run(std::string_view backend, Stream& stream, const Args& a) const {
    FLUVIAL_ASSIGN_OR_RETURN(const auto selection, Choose(p, stream.device(), backend));
    const size_t bytes = selection.backend->workspace_bytes(p, stream.device());
    FLUVIAL_ASSIGN_OR_RETURN(const Buffer room, Buffer::Allocate(DeviceKind::kCpu, bytes));
    if (bytes > 0) std::memset(room.data(), 0xff, bytes);
    return selection.backend->run(stream, p, a, {room.data(), bytes});
  }

  Problem p;
  HostTensor x, y, ids, weights;
  std::vector<HostTensor> tensors;
  std::vector<ExpertWeights> experts;
};

}  // namespace fluvial::ops::moe::test
