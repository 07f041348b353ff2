// SPDX-License-Identifier: Apache-2.0
// What the fp32 and the bf16 chunk loops share: scratch, triangular products, decay factors, the solve, state panels.
// The formulas are at the top of cpu_chunks_simd.cc. Included per Highway target.
#if defined(FLUVIAL_OPS_DELTA_RULE_CPU_CHUNKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLUVIAL_OPS_DELTA_RULE_CPU_CHUNKS_INL_H_
#undef FLUVIAL_OPS_DELTA_RULE_CPU_CHUNKS_INL_H_
#else
#define FLUVIAL_OPS_DELTA_RULE_CPU_CHUNKS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

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
  for (int64_t c = 0; c < kp; c += lanes) {
    const auto total = hn::Load(d, last + c), decay = fs::Exp(d, total);
    hn::Store(decay, d, s->decay + c);
    for (int64_t i = 0; i < kKdaChunk; ++i) {
      const int64_t at = i * kp + c;
      const auto G = hn::Load(d, s->g + at), k = hn::Load(d, s->k + at);
      const auto e = fs::Exp(d, G);
      hn::Store(hn::Mul(k, e), d, s->kd + at);
      hn::Store(hn::Mul(hn::Load(d, s->q + at), e), d, s->q + at);
      if (factored) {
        const auto inverse = hn::Mul(k, fs::Exp(d, hn::Neg(G)));
        hn::Store(inverse, d, s->k + at);
        hn::Store(hn::Mul(inverse, decay), d, s->kr + at);
      } else {
        hn::Store(hn::Mul(k, fs::Exp(d, hn::Sub(total, G))), d, s->kr + at);
      }
    }
  }
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
    for (int64_t r = 0; r < 4 && width < 4; ++r) {  // vectors of one lane
      float* to = s->state + (column + r) / width * width * s->kp + (column + r) % width;
      for (int64_t k = 0; k < s->kp; ++k) to[k * width] = s->rows[r * s->kp + k];
    }
    if (width < 4) continue;
    Transpose4(s->rows, s->kp, s->kp, s->state + column / width * width * s->kp + column % width, width);
  }
}

HWY_INLINE void WriteState(const HeadCall& c, const TensorView& to, int64_t slot, int64_t width, Scratch* s) {
  if (slot < 0) return;
  const Problem& p = *c.problem;
  for (int64_t v = c.v_begin; v < c.v_end; v += 4) {
    const int64_t column = v - c.v_begin;
    const float* from = s->state + column / width * width * s->kp + column % width;
    for (int64_t r = 0; r < 4 && width < 4; ++r) {
      from = s->state + (column + r) / width * width * s->kp + (column + r) % width;
      for (int64_t k = 0; k < s->kp; ++k) s->rows[r * s->kp + k] = from[k * width];
    }
    for (int64_t k = 0; k < s->kp && width >= 4; k += 4) Transpose4(from + k * width, width, 4, s->rows + k, s->kp);
    for (int64_t r = 0; r < 4 && v + r < c.v_end; ++r) {
      StoreRow(to, slot * to.stride(0) + (c.head * p.v + v + r) * p.k, s->rows + r * s->kp, p.k);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::delta_rule
HWY_AFTER_NAMESPACE();

#endif
