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
#include <cmath>

#include "ops/delta_rule/cpu_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/delta_rule/cpu_chunks_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/delta_rule/cpu_gemm-inl.h"
#include "ops/delta_rule/cpu_prepare-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::delta_rule {
namespace HWY_NAMESPACE {

// fp32 overflows at 88.7 nats; kMaxKey leaves room for what e^{-G} is multiplied by.
constexpr float kMaxRange = 80.0f;
constexpr float kMaxKey = 1e3f;

// Rows solved in registers.
#if HWY_TARGET <= HWY_AVX3
constexpr int kSolveRows = 16;
#else
constexpr int kSolveRows = 8;
#endif

/// out[c, r] = in[r, c] for r < 4, c < cols; cols is a multiple of 4.
HWY_INLINE void Transpose4(const float* in, int64_t in_pitch, int64_t cols, float* out, int64_t out_pitch) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t c = 0; c < cols; ++c) {
    for (int r = 0; r < 4; ++r) out[c * out_pitch + r] = in[r * in_pitch + c];
  }
#else
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> pairs;
  for (int64_t c = 0; c < cols; c += 4) {
    const auto r0 = hn::LoadU(d, in + c), r1 = hn::LoadU(d, in + in_pitch + c);
    const auto r2 = hn::LoadU(d, in + 2 * in_pitch + c), r3 = hn::LoadU(d, in + 3 * in_pitch + c);
    const auto a = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));  // 00 10 01 11
    const auto b = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
    const auto e = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
    const auto f = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, a, b)), d, out + c * out_pitch);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, a, b)), d, out + (c + 1) * out_pitch);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, e, f)), d, out + (c + 2) * out_pitch);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, e, f)), d, out + (c + 3) * out_pitch);
  }
#endif
}

// Scratch of one task, in floats; the layout matches ChunkScratchFloats.
struct Scratch {
  Scratch(const Problem& p, float* memory) : kp(PadTo(p.k, kLanePad)), c(p.kda() ? kKdaChunk : kGdnChunk) {
    const auto take = [&](int64_t n) {
      float* at = memory;
      memory += n;
      return at;
    };
    q = take(c * kp);
    k = take(c * kp);
    g = take(c * kp);
    kd = take(c * kp);
    kr = take(c * kp);
    kt = take(c * kp);
    a = take(c * c);
    pm = take(c * c);
    x = take(c * kPanel);
    y = take(c * kPanel);
    rows = take(4 * kp);
    decay = take(kp);
    beta = take(kGdnChunk);
    row_in = take(kGdnChunk);
    row_out = take(kGdnChunk);
    state = take(kp * PadTo(p.v, kPanel));
  }
  int64_t kp, c;
  float *q, *k, *g, *kd, *kr, *kt, *a, *pm, *x, *y, *rows, *decay, *beta, *row_in, *row_out, *state;
};

/// C[i, j] = sum_c a[i, c] kt[c, j] for i < rows and whole vectors of j up to the diagonal.
HWY_INLINE void LowerGemm(int64_t rows, int64_t depth, const float* a, int64_t kp, const float* kt, float* c,
                          int64_t pitch) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  for (int64_t i = 0; i < rows; i += kTileRows) {
    const int64_t end = i + kTileRows;  // columns [0, end) are wanted
    int64_t j = 0;
    for (; j + lanes < end; j += 2 * lanes) {
      Tile<kTileRows, 2, Start::kZero>(depth, a + i * kp, kp, 1, kt + j, pitch, c + i * pitch + j, pitch);
    }
    for (; j < end; j += lanes) {
      Tile<kTileRows, 1, Start::kZero>(depth, a + i * kp, kp, 1, kt + j, pitch, c + i * pitch + j, pitch);
    }
  }
}

/// kt[c, j] = x[j, c].
HWY_INLINE void TransposeRows(int64_t rows, const float* x, int64_t kp, float* kt, int64_t pitch) {
  for (int64_t j = 0; j < rows; j += 4) Transpose4(x + j * kp, kp, kp, kt + j, pitch);
}

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

/// A and P of one KDA chunk from differences: any decay.
HWY_INLINE void KdaPairs(int64_t count, Scratch* s) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      auto a = hn::Zero(d), pm = hn::Zero(d);
      for (int64_t c = 0; c < s->kp; c += lanes) {
        const auto e = fs::Exp(d, hn::Sub(hn::Load(d, s->g + i * s->kp + c), hn::Load(d, s->g + j * s->kp + c)));
        const auto kj = hn::Mul(e, hn::Load(d, s->k + j * s->kp + c));
        a = hn::MulAdd(kj, hn::Load(d, s->k + i * s->kp + c), a);
        pm = hn::MulAdd(kj, hn::Load(d, s->q + i * s->kp + c), pm);
      }
      s->a[i * s->c + j] = hn::GetLane(hn::SumOfLanes(d, a));
      s->pm[i * s->c + j] = hn::GetLane(hn::SumOfLanes(d, pm));
    }
  }
}

HWY_INLINE void KdaFactors(int64_t count, Scratch* s) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), kp = s->kp;
  auto low = hn::Zero(d), key = hn::Zero(d);
  for (int64_t c = 0; c < kp; c += lanes) {
    auto G = hn::Zero(d);
    for (int64_t i = 0; i < kKdaChunk; ++i) {
      G = hn::Add(G, hn::Load(d, s->g + i * kp + c));
      hn::Store(G, d, s->g + i * kp + c);
      key = hn::Max(key, hn::Abs(hn::Load(d, s->k + i * kp + c)));
    }
    low = hn::Min(low, G);
  }
  const bool factored =
      hn::GetLane(hn::MinOfLanes(d, low)) >= -kMaxRange && hn::GetLane(hn::MaxOfLanes(d, key)) <= kMaxKey;
  if (!factored) KdaPairs(count, s);
  const float* last = s->g + (kKdaChunk - 1) * kp;
  for (int64_t i = 0; i < kKdaChunk; ++i) {
    for (int64_t c = 0; c < kp; c += lanes) {
      const int64_t at = i * kp + c;
      const auto G = hn::Load(d, s->g + at), k = hn::Load(d, s->k + at);
      const auto e = fs::Exp(d, G);
      hn::Store(hn::Mul(k, e), d, s->kd + at);
      hn::Store(hn::Mul(hn::Load(d, s->q + at), e), d, s->q + at);
      hn::Store(hn::Mul(k, fs::Exp(d, hn::Sub(hn::Load(d, last + c), G))), d, s->kr + at);
      if (factored) hn::Store(hn::Mul(k, fs::Exp(d, hn::Neg(G))), d, s->k + at);
    }
  }
  for (int64_t c = 0; c < kp; c += lanes) hn::Store(fs::Exp(d, hn::Load(d, last + c)), d, s->decay + c);
  if (factored) {
    TransposeRows(kKdaChunk, s->k, kp, s->kt, s->c);
    LowerGemm(kKdaChunk, kp, s->kd, kp, s->kt, s->a, s->c);
    LowerGemm(kKdaChunk, kp, s->q, kp, s->kt, s->pm, s->c);
  }
  for (int64_t i = 0; i < kKdaChunk; ++i) {
    for (int64_t j = 0; j < kKdaChunk; ++j) {
      float* a = s->a + i * s->c + j;
      *a = j < i && i < count ? s->beta[i] * *a : 0;
      if (j > i || i >= count) s->pm[i * s->c + j] = 0;
    }
  }
}

/// x <- (I + A)^-1 x for one panel, forward substitution.
HWY_INLINE void Solve(int64_t rows, const float* a, int64_t pitch, float* x, int64_t width) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t b = 0; b < rows; b += kSolveRows) {
    if (b > 0) Gemm<Start::kKeep, true>(kSolveRows, b, a + b * pitch, pitch, 1, x, width, x + b * width, width);
    for (int64_t lane = 0; lane < width; lane += lanes) {
      VF r[kSolveRows];
      for (int i = 0; i < kSolveRows; ++i) r[i] = hn::Load(d, x + (b + i) * width + lane);
      const float* diagonal = a + b * pitch + b;
      HWY_UNROLL(16)
      for (int j = 0; j < kSolveRows - 1; ++j) {
        HWY_UNROLL(16)
        for (int i = j + 1; i < kSolveRows; ++i) {
          r[i] = hn::NegMulAdd(hn::Set(d, diagonal[i * pitch + j]), r[j], r[i]);
        }
      }
      for (int i = 0; i < kSolveRows; ++i) hn::Store(r[i], d, x + (b + i) * width + lane);
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

/// State rows of the pool (or a checkpoint) into panels, and back. slot < 0 reads zeros.
HWY_INLINE void ReadState(const HeadCall& c, int64_t slot, int64_t width, Scratch* s) {
  const TensorView& pool = c.args->state;
  const Problem& p = *c.problem;
  for (int64_t v = c.v_begin; v < PadTo(c.v_end, kPanel); v += 4) {
    for (int64_t r = 0; r < 4; ++r) {
      const bool real = slot >= 0 && v + r < c.v_end;
      LoadRow(pool, real ? slot * pool.stride(0) + (c.head * p.v + v + r) * p.k : 0, real ? p.k : 0,
              s->rows + r * s->kp, s->kp);
    }
    const int64_t column = v - c.v_begin;
    Transpose4(s->rows, s->kp, s->kp, s->state + column / width * width * s->kp + column % width, width);
  }
}

HWY_INLINE void WriteState(const HeadCall& c, const TensorView& to, int64_t slot, int64_t width, Scratch* s) {
  if (slot < 0) return;
  const Problem& p = *c.problem;
  for (int64_t v = c.v_begin; v < c.v_end; v += 4) {
    const int64_t column = v - c.v_begin;
    const float* from = s->state + column / width * width * s->kp + column % width;
    for (int64_t k = 0; k < s->kp; k += 4) Transpose4(from + k * width, width, 4, s->rows + k, s->kp);
    for (int64_t r = 0; r < 4 && v + r < c.v_end; ++r) {
      StoreRow(to, slot * to.stride(0) + (c.head * p.v + v + r) * p.k, s->rows + r * s->kp, p.k);
    }
  }
}

template <class Io>
void RunChunksOf(const HeadCall& c) {
  const Problem& p = *c.problem;
  Scratch s(p, c.scratch);
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t begin = c.args->plan->offsets()[c.sequence], end = c.args->plan->offsets()[c.sequence + 1];
  ReadState(c, c.args->plan->read_slots()[c.sequence], width, &s);
  int64_t checkpoint = c.checkpoint_row;
  for (int64_t t = begin; t < end; t += s.c) {
    const int64_t count = std::min(s.c, end - t);
    const int64_t rows = PadTo(count, kLanePad);
    PrepareRows(c, t, count, rows, s.kp, s.q, s.k, s.g, s.beta);
    if (p.kda())
      KdaFactors(count, &s);
    else
      GdnFactors(count, rows, &s);
    for (int64_t v = c.v_begin; v < c.v_end; v += width) {
      PanelStep<Io>(c, t, count, rows, v, width, &s, s.state + (v - c.v_begin) * s.kp);
    }
    const int64_t done = t + count - begin;
    if (p.checkpoint_every > 0 && done % p.checkpoint_every == 0) {
      WriteState(c, c.args->checkpoints, checkpoint++, width, &s);
    }
  }
  WriteState(c, c.args->state, c.args->plan->write_slots()[c.sequence], width, &s);
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
