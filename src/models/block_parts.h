// SPDX-License-Identifier: Apache-2.0
// Internal to this room: what the blocks of all architectures are put together from.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "models/blocks.h"

namespace fluvial::models {

/// A step's sequences in at most two parts: decode rows, then prompt rows.
struct Segment {
  const ops::SequencePlan* plan = nullptr;
  int64_t begin = 0;
  bool decode = false;
};
struct Segments {
  Segment parts[2];
  int count = 0;
};

inline Segments SegmentsOf(const Step& step) {
  Segments s;
  int64_t begin = 0;
  if (step.decode != nullptr) {
    s.parts[s.count++] = {step.decode, 0, true};
    begin = step.decode->tokens();
  }
  if (step.prefill != nullptr) s.parts[s.count++] = {step.prefill, begin, false};
  return s;
}

inline Status Linear(const BlockContext& c, const TensorView& x, const TensorView& w, const TensorView& y,
                     const TensorView& bias = {}) {
  return c.operators.Linear(c.stream, x, w, bias, y, c.arena);
}

/// Largest scratch of several linear layers; undefined ones do not count.
inline Result<size_t> LinearsBytes(Operators& operators, int64_t m, DType io,
                                   std::initializer_list<const TensorView*> weights) {
  size_t bytes = 0;
  for (const TensorView* w : weights) {
    if (!w->defined()) continue;
    FLUVIAL_ASSIGN_OR_RETURN(const size_t one, operators.LinearBytes(LinearProblem(m, *w, io)));
    bytes = std::max(bytes, Arena::Aligned(one));
  }
  return bytes;
}

}  // namespace fluvial::models
