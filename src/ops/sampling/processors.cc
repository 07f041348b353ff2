// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling/processors.h"

#include <limits>

namespace fluvial::ops::sampling {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

bool Penalised(const Params& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

}  // namespace

bool NeedsProcessing(const Row& row) {
  return row.allowed != nullptr || !row.banned.empty() || !row.params->logit_bias.empty() ||
         (row.history != nullptr && !row.history->entries().empty() && Penalised(*row.params));
}

void Process(const Row& row, int64_t vocab, float* scores) {
  const Params& p = *row.params;
  if (row.allowed != nullptr) {
    for (int64_t word = 0; word * 32 < vocab; ++word) {
      uint32_t bits = ~row.allowed[word];
      if (word * 32 + 32 > vocab) bits &= (uint32_t{1} << (vocab - word * 32)) - 1;  // vocab % 32 != 0 here
      for (; bits != 0; bits &= bits - 1) scores[word * 32 + __builtin_ctz(bits)] = kMinusInfinity;
    }
  }
  for (int32_t id : row.banned) {
    if (id >= 0 && id < vocab) scores[id] = kMinusInfinity;
  }
  if (row.history != nullptr && Penalised(p)) {
    for (const TokenHistory::Entry& e : row.history->entries()) {
      if (e.id < 0 || e.id >= vocab) continue;  // e.g. placeholder ids of images beyond the head's rows
      float& s = scores[e.id];
      s = s > 0 ? s / p.repetition_penalty : s * p.repetition_penalty;
      if (e.output_count > 0) s -= p.presence_penalty + p.frequency_penalty * static_cast<float>(e.output_count);
    }
  }
  for (const auto& [id, bias] : p.logit_bias) scores[id] += bias;
}

}  // namespace fluvial::ops::sampling
