// SPDX-License-Identifier: Apache-2.0
// Chunked WY form, fp32. Per chunk of C tokens, with G the running sum of g inside the chunk and S^T (K x V) coming in:
//     A[i,j] = beta_i sum_c k_ic k_jc e^{G_ic - G_jc}   j < i        P[i,j] = sum_c q_ic k_jc e^{G_ic - G_jc}   j <= i
//     (I + A) U = diag(beta) (V - Kd S^T)               Kd = k e^G, by forward substitution
//     O   = Qd S^T + P U                                Qd = q e^G (q carries scale)
//     S^T <- diag(e^{G_C}) S^T + Kr^T U                 Kr = k e^{G_C - G}
// Only A and P need e^{-G}. GDN takes the scalar e^{G_i - G_j} per pair, which never overflows. KDA multiplies k e^G by
// k e^{-G} over 16 tokens while 16 tokens stay within kMaxRange nats; beyond that (softplus gates have no bound) A and
// P of that chunk are summed from differences G_i - G_j <= 0 instead. Source: Yang et al., arXiv 2412.06464; arXiv
// 2510.26692.
#include <algorithm>

#include "ops/delta_rule/cpu_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/delta_rule/cpu_chunks_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/delta_rule/cpu_chunks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::delta_rule {
namespace HWY_NAMESPACE {

/// A and P from raw products times e^{G_i - G_j}; rows padded by tokens without effect.
HWY_INLINE void GdnFactors(int64_t count, int64_t rows, Scratch* s) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* G = s->g;
  for (int64_t i = 1; i < rows; ++i) G[i] += G[i - 1];
  const float last = G[count - 1];
  for (int64_t i = 0; i < rows; i += lanes) {
    const auto Gi = hn::Load(d, G + i);
    hn::Store(fs::Exp(d, Gi), d, s->row_in + i);
    hn::Store(fs::Exp(d, hn::Sub(hn::Set(d, last), Gi)), d, s->row_out + i);
  }
  std::fill(s->decay, s->decay + s->kp, s->row_in[count - 1]);
  TransposeRows(rows, s->k, s->kp, s->kt, s->c);
  LowerGemm(rows, s->kp, s->k, s->kp, s->kt, s->a, s->c);
  LowerGemm(rows, s->kp, s->q, s->kp, s->kt, s->pm, s->c);
  for (int64_t i = 0; i < rows; ++i) {
    const auto Gi = hn::Set(d, G[i]), b = hn::Set(d, s->beta[i]);
    const int64_t block = (i / kSolveRows + 1) * kSolveRows;  // whole diagonal blocks are read
    for (int64_t j = 0; j < block; j += lanes) {
      const auto column = hn::Iota(di, static_cast<int32_t>(j));
      const auto below = hn::RebindMask(d, hn::Lt(column, hn::Set(di, static_cast<int32_t>(i))));
      const auto until = hn::RebindMask(d, hn::Lt(column, hn::Set(di, static_cast<int32_t>(i + 1))));
      const auto f = fs::Exp(d, hn::Sub(Gi, hn::Load(d, G + j)));
      float* a = s->a + i * s->c + j;
      float* pm = s->pm + i * s->c + j;
      hn::Store(hn::IfThenElseZero(below, hn::Mul(hn::Mul(b, f), hn::Load(d, a))), d, a);
      hn::Store(hn::IfThenElseZero(until, hn::Mul(f, hn::Load(d, pm))), d, pm);
    }
  }
}

/// One panel of V columns through one chunk of `count` tokens from row `t` on.
template <class Io>
HWY_INLINE void PanelStep(const HeadCall& call, int64_t t, int64_t count, int64_t rows, int64_t v0, int64_t width,
                          Scratch* s, float* st) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), kp = s->kp;
  const bool kda = call.problem->kda();
  const int64_t n = std::min(width, call.v_end - v0);
  const auto* v =
      static_cast<const Io*>(call.args->v.data) + t * call.args->v.stride(0) + call.head * call.problem->v + v0;
  auto* out = static_cast<Io*>(call.args->out.data) + t * call.args->out.stride(0) + call.head * call.problem->v + v0;
  Gemm<Start::kZero>(rows, kp, kda ? s->kd : s->k, kp, 1, st, width, s->x, width);
  Gemm<Start::kZero>(rows, kp, s->q, kp, 1, st, width, s->y, width);
  for (int64_t i = 0; i < rows; ++i) {
    float* x = s->x + i * width;
    float* y = s->y + i * width;
    const auto b = hn::Set(d, s->beta[i]), in = hn::Set(d, kda ? 1.0f : s->row_in[i]);
    HWY_ALIGN float row[kPanel];
    const float* vi = row;
    if (i < count)
      LoadRowOf(v + i * call.args->v.stride(0), n, row, width);
    else
      std::fill(row, row + width, 0.0f);
    for (int64_t j = 0; j < width; j += lanes) {
      hn::Store(hn::Mul(b, hn::NegMulAdd(in, hn::Load(d, x + j), hn::Load(d, vi + j))), d, x + j);
      if (!kda) hn::Store(hn::Mul(in, hn::Load(d, y + j)), d, y + j);
    }
  }
  Solve(rows, s->a, s->c, s->x, width);
  for (int64_t b = 0; b < rows; b += kSolveRows) {
    Gemm<Start::kKeep>(kSolveRows, b + kSolveRows, s->pm + b * s->c, s->c, 1, s->x, width, s->y + b * width, width);
  }
  for (int64_t i = 0; i < count; ++i) StoreRowOf(s->y + i * width, n, out + i * call.args->out.stride(0));
  if (!kda) {
    for (int64_t i = 0; i < rows; ++i) {
      const auto f = hn::Set(d, s->row_out[i]);
      for (int64_t j = 0; j < width; j += lanes) {
        hn::Store(hn::Mul(f, hn::Load(d, s->x + i * width + j)), d, s->x + i * width + j);
      }
    }
  }
  Gemm<Start::kScale>(kp, rows, kda ? s->kr : s->k, 1, kp, s->x, width, st, width, s->decay);
}

template <class Io>
void RunChunksOf(const HeadCall& c) {
  const Problem& p = *c.problem;
  Scratch s(p, c.scratch);
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t begin = c.sequence.begin, end = c.sequence.end;
  ReadState(c, c.sequence.read_slot, width, &s);
  int64_t checkpoint = c.sequence.checkpoint_row;
  for (int64_t t = begin; t < end; t += s.c) {
    const int64_t count = std::min(s.c, end - t);
    const int64_t rows = PadTo(count, kLanePad);
    PrefetchRows(c, t, s.c, end);
    PrepareRows(c, t, count, rows, s.kp, s.q, s.k, s.g, s.beta);
    if (p.kda())
      KdaFactors(count, &s);
    else
      GdnFactors(count, rows, &s);
    for (int64_t v = c.v_begin; v < c.v_end; v += width) {
      PrefetchNextPanel(c, t, count, v, width, end);
      PanelStep<Io>(c, t, count, rows, v, width, &s, s.state + (v - c.v_begin) * s.kp);
    }
    const int64_t done = t + count - begin;
    if (p.checkpoint_every > 0 && done % p.checkpoint_every == 0) {
      WriteState(c, c.args->checkpoints, checkpoint++, width, &s);
    }
  }
  WriteState(c, c.args->state, c.sequence.write_slot, width, &s);
}

void RunChunksImpl(const HeadCall& c) {
  switch (c.problem->io) {
    case DType::kF32:
      return RunChunksOf<float>(c);
    case DType::kBF16:
      return RunChunksOf<BFloat16>(c);
    default:
      return RunChunksOf<Float16>(c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::delta_rule
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::delta_rule {

HWY_EXPORT(RunChunksImpl);

size_t ChunkScratchFloats(const Problem& p) {
  const size_t kp = PadTo(p.k, kLanePad), c = p.kda() ? kKdaChunk : kGdnChunk;
  return 6 * c * kp + 2 * c * c + 2 * c * kPanel + 5 * kp + 3 * kGdnChunk + kp * PadTo(p.v, kPanel);
}

void RunChunks(const HeadCall& call) { HWY_DYNAMIC_DISPATCH(RunChunksImpl)(call); }

}  // namespace fluvial::ops::delta_rule
#endif
