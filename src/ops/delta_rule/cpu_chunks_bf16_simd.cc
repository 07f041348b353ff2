// SPDX-License-Identifier: Apache-2.0
// The chunks of cpu_chunks_simd.cc with bf16 operands where S is read or written: K S^T, Q S^T, P U and K^T U (and, for
// GDN, K K^T and Q K^T, which are exact: there the raw bf16 rows are the operands, and norms, gates and scale multiply
// the fp32 products). Sums, S itself, A, the solve and KDA's A and P stay fp32. One rounding per operand, 2^-8.
#include <algorithm>
#include <cmath>

#include "ops/delta_rule/cpu_bf16.h"
#include "ops/delta_rule/cpu_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/delta_rule/cpu_chunks_bf16_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/delta_rule/cpu_chunks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::delta_rule {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3

constexpr int64_t kWidth = bf16::kWidth;

// Behind the fp32 scratch; the layout matches Bf16ScratchFloats. q16 and k16 are bf16 rows [C, kp]; *_pairs hold pairs
// of rows.
struct Scratch16 {
  Scratch16(const Problem& p, const Scratch& s, float* memory) {
    const auto take = [&](int64_t floats) {
      float* at = memory;
      memory += PadTo(floats, 16);
      return at;
    };
    q16 = reinterpret_cast<uint16_t*>(take(s.c * s.kp / 2));
    k16 = reinterpret_cast<uint16_t*>(take(s.c * s.kp / 2));
    p16 = reinterpret_cast<uint16_t*>(take(s.c * s.c / 2));
    key_pairs = reinterpret_cast<uint32_t*>(take(s.c / 2 * s.kp));
    key_columns = reinterpret_cast<uint32_t*>(take(s.c * s.kp / 2));
    u_pairs = reinterpret_cast<uint32_t*>(take(s.c / 2 * kWidth));
    state_pairs = reinterpret_cast<uint32_t*>(take(s.kp / 2 * PadTo(p.v, kPanel)));
    q_norm = take(kGdnChunk);
    k_norm = take(kGdnChunk);
  }
  uint16_t *q16, *k16, *p16;
  uint32_t *key_pairs, *key_columns, *u_pairs, *state_pairs;
  float *q_norm, *k_norm;
};

/// Rows as they are, padded with zeros, and 1 / norm times `factor`.
HWY_INLINE void CopyRows(const Problem& p, const TensorView& x, int64_t t, int64_t head, int64_t count, int64_t rows,
                         int64_t kp, float factor, uint16_t* to, float* norm) {
  const auto* from = static_cast<const uint16_t*>(x.data);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t* row = to + i * kp;
    const uint16_t* source = from + (t + i) * x.stride(0) + head * p.k;
    std::copy(source, source + p.k, row);
    std::fill(row + p.k, row + kp, uint16_t{0});
    norm[i] = factor;
    if (p.norm == NormForm::kNone) continue;
    const float sum = bf16::SumSquares(row, kp);
    norm[i] /= std::sqrt(p.norm == NormForm::kL2Add ? sum + p.norm_eps : std::max(sum, p.norm_eps));
  }
  std::fill(to + count * kp, to + rows * kp, uint16_t{0});
  std::fill(norm + count, norm + PadTo(rows, kLanePad), 0.0f);
}

HWY_INLINE void Gdn16Factors(const HeadCall& call, int64_t t, int64_t count, int64_t rows, Scratch* s, Scratch16* h) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Problem& p = *call.problem;
  const int64_t key_head = call.head / (p.hv / p.hk);
  PrepareScalars(call, t, count, rows, s->g, s->beta);
  CopyRows(p, call.args->q, t, key_head, count, rows, s->kp, p.scale, h->q16, h->q_norm);
  CopyRows(p, call.args->k, t, key_head, count, rows, s->kp, 1.0f, h->k16, h->k_norm);
  float* G = s->g;
  for (int64_t i = 1; i < rows; ++i) G[i] += G[i - 1];
  const auto last = hn::Set(d, G[count - 1]);
  for (int64_t i = 0; i < rows; i += lanes) {
    const auto Gi = hn::Load(d, G + i);
    hn::Store(fs::Exp(d, Gi), d, s->row_in + i);
    hn::Store(hn::Mul(fs::Exp(d, hn::Sub(last, Gi)), hn::Load(d, h->k_norm + i)), d, s->row_out + i);
  }
  std::fill(s->decay, s->decay + s->kp, s->row_in[count - 1]);
  // key_columns[d, i] = elements 2d and 2d + 1 of row i: a transpose of 32-bit pairs.
  for (int64_t i = 0; i < rows; i += 4) {
    Transpose4(reinterpret_cast<const float*>(h->k16 + i * s->kp), s->kp / 2, s->kp / 2,
               reinterpret_cast<float*>(h->key_columns) + i, s->c);
  }
  bf16::PairRows16(h->k16, rows, s->kp, h->key_pairs);
  bf16::LowerGemm(rows, s->kp / 2, reinterpret_cast<const uint32_t*>(h->k16), s->kp / 2, h->key_columns, s->a, s->c);
  bf16::LowerGemm(rows, s->kp / 2, reinterpret_cast<const uint32_t*>(h->q16), s->kp / 2, h->key_columns, s->pm, s->c);
  for (int64_t i = 0; i < rows; ++i) {
    const auto Gi = hn::Set(d, G[i]);
    const auto key = hn::Set(d, s->beta[i] * h->k_norm[i]), query = hn::Set(d, h->q_norm[i]);
    for (int64_t j = 0; j < (i / kSolveRows + 1) * kSolveRows; j += lanes) {
      const auto column = hn::Iota(di, static_cast<int32_t>(j));
      const auto below = hn::RebindMask(d, hn::Lt(column, hn::Set(di, static_cast<int32_t>(i))));
      const auto until = hn::RebindMask(d, hn::Lt(column, hn::Set(di, static_cast<int32_t>(i + 1))));
      const auto f = hn::Mul(fs::Exp(d, hn::Sub(Gi, hn::Load(d, G + j))), hn::Load(d, h->k_norm + j));
      float* a = s->a + i * s->c + j;
      float* pm = s->pm + i * s->c + j;
      hn::Store(hn::IfThenElseZero(below, hn::Mul(hn::Mul(key, f), hn::Load(d, a))), d, a);
      hn::Store(hn::IfThenElseZero(until, hn::Mul(hn::Mul(query, f), hn::Load(d, pm))), d, pm);
    }
    bf16::Round(s->pm + i * s->c, (i / kSolveRows + 1) * kSolveRows, h->p16 + i * s->c);
  }
  for (int64_t i = 0; i < rows; i += lanes) {
    const auto in = hn::Load(d, s->row_in + i);
    hn::Store(hn::Mul(in, hn::Load(d, h->k_norm + i)), d, h->k_norm + i);
    hn::Store(hn::Mul(in, hn::Load(d, h->q_norm + i)), d, h->q_norm + i);
  }
}

HWY_INLINE void Kda16Factors(const HeadCall& call, int64_t t, int64_t count, int64_t rows, Scratch* s, Scratch16* h) {
  PrepareRows(call, t, count, rows, s->kp, s->q, s->k, s->g, s->beta);
  KdaFactors(count, s);
  bf16::Round(s->kd, rows * s->kp, h->k16);
  bf16::Round(s->q, rows * s->kp, h->q16);
  bf16::Round(s->pm, rows * s->c, h->p16);
  bf16::PairRows(s->kr, rows, s->kp, h->key_pairs);
  std::fill(h->k_norm, h->k_norm + rows, 1.0f);
  std::fill(h->q_norm, h->q_norm + rows, 1.0f);
}

HWY_INLINE void Panel16(const HeadCall& call, int64_t t, int64_t count, int64_t rows, int64_t v0, Scratch* s,
                        Scratch16* h, float* st, uint32_t* st_pairs) {
  const DF d;
  const Problem& p = *call.problem;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), pairs = s->kp / 2;
  const int64_t n = std::min(kWidth, call.v_end - v0);
  const auto* v = static_cast<const BFloat16*>(call.args->v.data) + t * call.args->v.stride(0) + call.head * p.v + v0;
  auto* out = static_cast<BFloat16*>(call.args->out.data) + t * call.args->out.stride(0) + call.head * p.v + v0;
  bf16::Gemm(bf16::Start::kZero, rows, pairs, reinterpret_cast<const uint32_t*>(h->k16), pairs, 1, st_pairs, s->x,
             nullptr, nullptr);
  bf16::Gemm(bf16::Start::kZero, rows, pairs, reinterpret_cast<const uint32_t*>(h->q16), pairs, 1, st_pairs, s->y,
             nullptr, nullptr);
  HWY_ALIGN float row[kWidth];
  for (int64_t i = 0; i < count; ++i) {
    LoadRowOf(v + i * call.args->v.stride(0), n, row, kWidth);
    const auto b = hn::Set(d, s->beta[i]), in = hn::Set(d, h->k_norm[i]), q = hn::Set(d, h->q_norm[i]);
    for (int64_t j = 0; j < kWidth; j += lanes) {
      float* x = s->x + i * kWidth + j;
      float* y = s->y + i * kWidth + j;
      hn::Store(hn::Mul(b, hn::NegMulAdd(in, hn::Load(d, x), hn::Load(d, row + j))), d, x);
      if (!p.kda()) hn::Store(hn::Mul(q, hn::Load(d, y)), d, y);
    }
  }
  std::fill(s->x + count * kWidth, s->x + rows * kWidth, 0.0f);
  Solve(rows, s->a, s->c, s->x, kWidth);
  bf16::PairRows(s->x, rows, kWidth, h->u_pairs);
  for (int64_t b = 0; b < rows; b += 16) {
    bf16::Gemm(bf16::Start::kKeep, 16, (b + 16) / 2, reinterpret_cast<const uint32_t*>(h->p16 + b * s->c), s->c / 2, 1,
               h->u_pairs, s->y + b * kWidth, nullptr, nullptr);
  }
  for (int64_t i = 0; i < count; ++i) StoreRowOf(s->y + i * kWidth, n, out + i * call.args->out.stride(0));
  if (!p.kda()) {
    for (int64_t i = 0; i < rows; ++i) {
      const auto f = hn::Set(d, s->row_out[i]);
      for (int64_t j = i * kWidth; j < (i + 1) * kWidth; j += lanes) {
        hn::Store(hn::Mul(f, hn::Load(d, s->x + j)), d, s->x + j);
      }
    }
    bf16::PairRows(s->x, rows, kWidth, h->u_pairs);
  }
  bf16::Gemm(bf16::Start::kScale, s->kp, rows / 2, h->key_pairs, 1, s->kp, h->u_pairs, st, s->decay, st_pairs);
}

void RunChunks16Impl(const HeadCall& c) {
  const Problem& p = *c.problem;
  Scratch s(p, c.scratch);
  Scratch16 h(p, s, c.scratch + PadTo(static_cast<int64_t>(ChunkScratchFloats(p)), 16));
  const int64_t begin = c.sequence.begin, end = c.sequence.end;
  ReadState(c, c.sequence.read_slot, kWidth, &s);
  for (int64_t v = 0; v < PadTo(c.v_end - c.v_begin, kPanel); v += kWidth) {
    bf16::PairRows(s.state + v * s.kp, s.kp, kWidth, h.state_pairs + v * s.kp / 2);
  }
  int64_t checkpoint = c.sequence.checkpoint_row;
  for (int64_t t = begin; t < end; t += s.c) {
    const int64_t count = std::min(s.c, end - t), rows = PadTo(count, kLanePad);
    PrefetchRows(c, t, s.c, end);
    if (p.kda())
      Kda16Factors(c, t, count, rows, &s, &h);
    else
      Gdn16Factors(c, t, count, rows, &s, &h);
    for (int64_t v = 0; v < c.v_end - c.v_begin; v += kWidth) {
      PrefetchNextPanel(c, t, count, c.v_begin + v, kWidth, end);
      Panel16(c, t, count, rows, c.v_begin + v, &s, &h, s.state + v * s.kp, h.state_pairs + v * s.kp / 2);
    }
    const int64_t done = t + count - begin;
    if (p.checkpoint_every > 0 && done % p.checkpoint_every == 0) {
      WriteState(c, c.args->checkpoints, checkpoint++, kWidth, &s);
    }
  }
  WriteState(c, c.args->state, c.sequence.write_slot, kWidth, &s);
}

#else

void RunChunks16Impl(const HeadCall&) { FLUVIAL_CHECK_MSG(false, "bf16 chunks need AVX-512"); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::delta_rule
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::delta_rule {

HWY_EXPORT(RunChunks16Impl);

size_t Bf16ScratchFloats(const Problem& p) {
  const size_t kp = PadTo(p.k, kLanePad), c = p.kda() ? kKdaChunk : kGdnChunk;
  return ChunkScratchFloats(p) + 16 + 2 * c * kp + c * c / 2 + c * kPanel / 2 + kp / 2 * PadTo(p.v, kPanel) +
         2 * kGdnChunk + 9 * 16;
}

bool CpuHasBf16() {
#if defined(__x86_64__)
  // What Highway's AVX3 target asks for, and bf16. The compiler's runtime has read cpuid once: reading it again leaves
  // a virtual machine each time, which costs microseconds.
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void RunChunks16(const HeadCall& call) { HWY_DYNAMIC_DISPATCH(RunChunks16Impl)(call); }

}  // namespace fluvial::ops::delta_rule
#endif
