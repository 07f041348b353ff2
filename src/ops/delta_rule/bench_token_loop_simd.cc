// SPDX-License-Identifier: Apache-2.0
// A peer for benchmarks only: the recurrence token by token, as well as it can be written without chunks. S^T lies in
// panels of 64 columns that stay in L1; one sweep over a panel writes token t, reads its output, decays for token
// t + 1 and predicts it, so that S is loaded and stored once per token.
#include <algorithm>

#include "ops/delta_rule/bench.h"
#include "ops/delta_rule/cpu_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/delta_rule/bench_token_loop_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/delta_rule/cpu_chunks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::delta_rule {
namespace HWY_NAMESPACE {

constexpr int kVectors = 4;
constexpr int64_t kTokens = 64;

struct Sweep {
  const float *k, *q, *next_a, *next_k;  ///< [kp]
  float* state;                          ///< [kp, width]
  const float* d;                        ///< [width]
  float *out, *predicted;                ///< [width]
};

HWY_INLINE void RunSweep(const Sweep& w, int64_t kp) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = kVectors * lanes;
  VF delta[kVectors], out[kVectors], predicted[kVectors];
  for (int n = 0; n < kVectors; ++n) {
    delta[n] = hn::Load(d, w.d + n * lanes);
    out[n] = predicted[n] = hn::Zero(d);
  }
  for (int64_t c = 0; c < kp; ++c) {
    const auto k = hn::Set(d, w.k[c]), q = hn::Set(d, w.q[c]);
    const auto a = hn::Set(d, w.next_a[c]), next = hn::Set(d, w.next_k[c]);
    float* row = w.state + c * width;
    for (int n = 0; n < kVectors; ++n) {
      auto s = hn::MulAdd(k, delta[n], hn::Load(d, row + n * lanes));
      out[n] = hn::MulAdd(q, s, out[n]);
      s = hn::Mul(a, s);
      predicted[n] = hn::MulAdd(next, s, predicted[n]);
      hn::Store(s, d, row + n * lanes);
    }
  }
  for (int n = 0; n < kVectors; ++n) {
    hn::Store(out[n], d, w.out + n * lanes);
    hn::Store(predicted[n], d, w.predicted + n * lanes);
  }
}

void TokenLoopImpl(const HeadCall& c) {
  const Problem& p = *c.problem;
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = kVectors * lanes, kp = PadTo(p.k, kLanePad);
  const int64_t begin = c.sequence.begin, end = c.sequence.end;
  Scratch s(p, c.scratch);  // its state panels, filled with this loop's width
  float* q = c.scratch + PadTo(static_cast<int64_t>(ChunkScratchFloats(p)), 64);
  float* k = q + kTokens * kp;
  float* a = k + kTokens * kp;
  float* beta = a + kTokens * kp;
  float* g = beta + kTokens;
  float* zero = g + kTokens;
  std::fill(zero, zero + kp, 0.0f);
  HWY_ALIGN float delta[kVectors * 16], out[kVectors * 16], predicted[kVectors * 16], v[kVectors * 16];
  ReadState(c, c.sequence.read_slot, width, &s);
  for (int64_t t = begin; t < end; t += kTokens) {
    const int64_t count = std::min(kTokens, end - t);
    PrefetchRows(c, t, count, end);
    PrepareRows(c, t, count, count, kp, q, k, p.kda() ? a : g, beta);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < kp; j += lanes) {
        hn::Store(fs::Exp(d, p.kda() ? hn::Load(d, a + i * kp + j) : hn::Set(d, g[i])), d, a + i * kp + j);
      }
    }
    for (int64_t v0 = c.v_begin; v0 < c.v_end; v0 += width) {
      PrefetchNextPanel(c, t, count, v0, width, end);
      float* state = s.state + (v0 - c.v_begin) * kp;
      const int64_t n = std::min(width, c.v_end - v0);
      std::fill(delta, delta + width, 0.0f);
      RunSweep({zero, zero, a, k, state, delta, out, predicted}, kp);
      for (int64_t i = 0; i < count; ++i) {
        LoadRow(c.args->v, (t + i) * c.args->v.stride(0) + c.head * p.v + v0, n, v, width);
        for (int64_t j = 0; j < width; ++j) delta[j] = beta[i] * (v[j] - predicted[j]);
        // After the last token of the block nothing is decayed or predicted: the next block starts with that.
        const bool last = i + 1 == count;
        std::fill(zero + kp, zero + 2 * kp, 1.0f);
        RunSweep({k + i * kp, q + i * kp, last ? zero + kp : a + (i + 1) * kp, last ? zero : k + (i + 1) * kp, state,
                  delta, out, predicted},
                 kp);
        StoreRow(c.args->out, (t + i) * c.args->out.stride(0) + c.head * p.v + v0, out, n);
      }
    }
  }
  WriteState(c, c.args->state, c.sequence.write_slot, width, &s);
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::delta_rule
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::delta_rule {

HWY_EXPORT(TokenLoopImpl);

namespace {

int64_t PeerFloats(const Problem& p) {
  const int64_t kp = PadTo(p.k, kLanePad);
  return static_cast<int64_t>(ChunkScratchFloats(p)) + 64 + 3 * 64 * kp + 128 + 2 * kp;
}

}  // namespace

void TokenLoop(const HeadCall& call) { HWY_DYNAMIC_DISPATCH(TokenLoopImpl)(call); }

const DeltaBackend kTokenLoopPeer = {
    .name = "token_loop",
    .description = "benchmark peer: one token at a time, panels of the state in L1",
    .check =
        [](const Problem& p, const DeviceInfo& d) {
          return p.prefill() && d.kind == DeviceKind::kCpu && p.v % 64 == 0 && p.checkpoint_every == 0
                     ? Check::Accept()
                     : Check::Refuse("the peer takes prefill on the CPU with v a multiple of 64");
        },
    .workspace_bytes = [](const Problem& p,
                          const DeviceInfo& d) { return HeadsWorkspaceBytes(d.multiprocessors, PeerFloats(p)); },
    .cost_us = [](const Problem&, const DeviceInfo&) { return 0.0; },
    .run = [](Stream& s, const Problem& p, const Args& a,
              Workspace w) { return RunHeads(s, p, a, w, PeerFloats(p), TokenLoop); },
};

}  // namespace fluvial::ops::delta_rule
#endif
