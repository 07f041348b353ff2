// SPDX-License-Identifier: Apache-2.0
// The fp64 token loop: what every other body is measured against.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/delta_rule/delta_rule.h"

namespace fluvial::ops::delta_rule {

/// When the carried state is rounded to the state dtype. A kernel that keeps fp32 (or better) inside rounds
/// never, up to the store at the end; one that carries the state in its storage type rounds per chunk or token.
enum class Rounding : uint8_t { kNever, kPerChunk, kPerToken };

/// One token of one head, decoded to fp64: norms, scale, gate and beta forms applied.
struct Token {
  std::vector<double> q;  ///< [K], normalised, times scale
  std::vector<double> k;  ///< [K], normalised
  std::vector<double> v;  ///< [V]
  std::vector<double> g;  ///< [K] log decay; GDN: all equal
  double beta = 0;
};

/// Token row `t`, value head `h` of host tensors.
void LoadToken(const Problem& problem, const Args& args, int64_t t, int64_t h, Token* token);

/// What an observer sees after each token. Spans are valid during the call only.
struct TokenStep {
  int32_t sequence;
  int64_t head;
  int64_t t;         ///< row in the packed input
  int64_t position;  ///< position in its sequence
  const Token& token;
  std::span<const double> state;  ///< [V, K] after the write
  std::span<const double> delta;  ///< [V] d = beta (v - S k)
  std::span<const double> out;    ///< [V] before rounding
};

struct ReferenceOptions {
  Rounding rounding = Rounding::kNever;
  int32_t chunk = 64;  ///< tokens per chunk, counted from the start of each sequence; kPerChunk only
  /// Called from the pool's threads, tokens of one (sequence, head) in order.
  std::function<void(const TokenStep&)> observer;
};

/// Bytes of workspace that RunReference needs with `threads` threads.
size_t ReferenceWorkspaceBytes(const Problem& problem, int threads);

/// Runs `args` (host memory, already validated). Everything is computed in fp64 and rounded once, at the
/// store (to fp32 first, then to the tensor's dtype).
Status RunReference(ThreadPool& pool, const Problem& problem, const Args& args, Workspace workspace,
                    const ReferenceOptions& options = {});

}  // namespace fluvial::ops::delta_rule
