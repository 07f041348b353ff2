// SPDX-License-Identifier: Apache-2.0
// The chunks of cpu_chunks_simd.cc with bf16 operands: K S^T, Q S^T, A U and P U outside the diagonal blocks of 16, K^T
// U, K K^T and Q K^T. Sums, S itself and the substitution inside diagonal blocks stay fp32: one rounding per operand,
// 2^-8.
//   GDN: the raw bf16 rows are the operands, exactly; norms, gates and scale multiply the fp32 sums. What follows from
//        q and k alone is made once for all value heads of a key head.
//   KDA: 32 tokens at a time from k e^G and k e^-G while no channel decays by more than e^-60 over them and keys are
//   below
//        1e3 - products then neither overflow nor meet the flush of denormals. Otherwise 16 tokens at a time with the
//        fp32 factors of cpu_chunks-inl.h, which take any gate.
// A task owns `heads` neighbouring value heads, so that the rows of a token that it reads are contiguous.
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
constexpr int64_t kBlock = 16;
// e^-60 and the largest key of the factored form of KDA.
constexpr float kLeastDecay = 8.75e-27f;

/// What the panels of a chunk need: k16 and q16 [rows, kp], a16 and p16 [rows, pitch] (whole blocks of 16 up to the
/// diagonal; a16 without the diagonal blocks and without beta), diagonal [rows, 16] strictly lower times beta.
struct Chunk {
  int64_t rows = 0, pitch = 0;
  const uint16_t *k16, *q16, *a16, *p16;
  const uint32_t* key_pairs;
  const float *diagonal, *beta, *key_scale, *query_scale, *row_out, *decay;
};

// Behind the fp32 scratch; the layout matches Bf16ScratchFloats.
struct Scratch16 {
  Scratch16(const Problem& p, int64_t kp, float* memory) {
    constexpr int64_t c = kChunk16;
    const auto take = [&](int64_t floats) {
      float* at = memory;
      memory += PadTo(floats, 16);
      return at;
    };
    const auto take16 = [&](int64_t n) { return reinterpret_cast<uint16_t*>(take(n / 2)); };
    const auto take32 = [&](int64_t n) { return reinterpret_cast<uint32_t*>(take(n)); };
    q16 = take16(c * kp);
    k16 = take16(c * kp);
    i16 = take16(c * kp);
    raw_q = take16(c * kp);
    raw_k = take16(c * kp);
    a16 = take16(c * c);
    p16 = take16(c * c);
    key_columns = take32(c * kp / 2);
    key_pairs = take32(c / 2 * kp);
    u_pairs = take32(c / 2 * kWidth);
    w_pairs = take32(c / 2 * kWidth);
    decays = take(c * kp);
    kk = take(c * c);
    qk = take(c * c);
    block = take(2 * kBlock * c);
    diagonal = take(c * kBlock);
    x = take(kBlock * kWidth);
    for (float** v : {&q_norm, &k_norm, &g, &beta, &key_scale, &query_scale, &row_out, &ones}) *v = take(c);
    decay = take(kp);
    for (int64_t h = 0; h < kMaxHeads16; ++h) {
      state[h] = take(kp * PadTo(p.v, kPanel));
      state_pairs[h] = take32(kp / 2 * PadTo(p.v, kPanel));
    }
    std::fill(ones, ones + c, 1.0f);
  }
  uint16_t *q16, *k16, *i16, *raw_q, *raw_k, *a16, *p16;
  uint32_t *key_columns, *key_pairs, *u_pairs, *w_pairs;
  float *decays, *kk, *qk, *block, *diagonal, *x;
  float *q_norm, *k_norm, *g, *beta, *key_scale, *query_scale, *row_out, *ones, *decay;
  float* state[kMaxHeads16];
  uint32_t* state_pairs[kMaxHeads16];
};

bf16::Prefetcher MakePrefetcher(const HeadCall& c) {
  bf16::Prefetcher out;
  const auto add = [&](const TensorView& t, int64_t offset, int64_t n) {
    const int64_t size = static_cast<int64_t>(SizeOf(t.dtype));
    out.streams[out.count++] = {static_cast<const char*>(t.data) + offset * size, t.stride(0) * size, n * size};
  };
  const Problem& p = *c.problem;
  const int64_t key_head = c.head / (p.hv / p.hk);
  const int64_t key_heads = (c.head + c.heads - 1) / (p.hv / p.hk) - key_head + 1;
  add(c.args->k, key_head * p.k, key_heads * p.k);
  add(c.args->q, key_head * p.k, key_heads * p.k);
  if (p.kda()) add(c.args->gate, c.head * p.k, c.heads * p.k);
  const int64_t v = c.heads > 1 ? c.heads * p.v : c.v_end - c.v_begin;
  add(c.args->v, c.head * p.v + c.v_begin, v);
  add(c.args->out, c.head * p.v + c.v_begin, v);
  return out;
}

/// Rows [begin, end) of the streams, spread over `tiles` tiles.
void StartPrefetch(int64_t begin, int64_t end, int64_t tiles, bf16::Prefetcher* p) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < p->count; ++i) bytes += PadTo(p->streams[i].bytes, 64);
  p->at = p->stop = nullptr;
  p->stream = 0;
  p->row = begin;
  p->end = std::max(begin, end);
  p->per_tile = (p->end - p->row) * bytes / 64 / tiles + 1;
}

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
  std::fill(norm + count, norm + rows, 0.0f);
}

/// columns[d, i] = elements 2d and 2d + 1 of row i: a transpose of 32-bit pairs.
HWY_INLINE void PairColumns(const uint16_t* x, int64_t rows, int64_t kp, uint32_t* columns) {
  for (int64_t i = 0; i < rows; i += 4) {
    Transpose4(reinterpret_cast<const float*>(x + i * kp), kp / 2, kp / 2, reinterpret_cast<float*>(columns) + i,
               kChunk16);
  }
}

/// A row of blocks of A and P: sums kk and qk times row factors and what `column` and `diagonal` give for columns j on.
template <class Column, class Diagonal>
HWY_INLINE void BlockRow(int64_t b, const float* row_a, const float* row_p, Column column, Diagonal diagonal,
                         Scratch16* h) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  static_assert(kBlock == 16);
  float* a = h->block;
  float* pm = h->block + kBlock * kChunk16;
  for (int64_t j = 0; j < b; j += kBlock) {
    const auto f = column(j);
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t at = (b + i) * kChunk16 + j;
      hn::Store(hn::Mul(hn::Mul(f, hn::Set(d, row_a[i])), hn::Load(d, h->kk + at)), d, a + i * kChunk16 + j);
      hn::Store(hn::Mul(hn::Mul(f, hn::Set(d, row_p[i])), hn::Load(d, h->qk + at)), d, pm + i * kChunk16 + j);
    }
  }
  const auto lane = hn::Iota(di, 0);
  for (int64_t i = 0; i < kBlock; ++i) {
    const auto below = hn::RebindMask(d, hn::Lt(lane, hn::Set(di, static_cast<int32_t>(i))));
    const auto until = hn::RebindMask(d, hn::Lt(lane, hn::Set(di, static_cast<int32_t>(i + 1))));
    const int64_t at = (b + i) * kChunk16 + b;
    VF fa, fp;
    diagonal(i, &fa, &fp);
    hn::Store(hn::IfThenElseZero(below, hn::Mul(fa, hn::Load(d, h->kk + at))), d, h->diagonal + (b + i) * kBlock);
    hn::Store(hn::IfThenElseZero(until, hn::Mul(fp, hn::Load(d, h->qk + at))), d, pm + i * kChunk16 + b);
    if (b > 0) bf16::Round(a + i * kChunk16, b, h->a16 + (b + i) * kChunk16);
    bf16::Round(pm + i * kChunk16, b + kBlock, h->p16 + (b + i) * kChunk16);
  }
}

/// What all value heads of a key head share.
HWY_INLINE void GdnKeys(const HeadCall& c, int64_t t, int64_t count, int64_t rows, int64_t kp, Scratch16* h) {
  const Problem& p = *c.problem;
  const int64_t key_head = c.head / (p.hv / p.hk);
  CopyRows(p, c.args->q, t, key_head, count, rows, kp, p.scale, h->q16, h->q_norm);
  CopyRows(p, c.args->k, t, key_head, count, rows, kp, 1.0f, h->k16, h->k_norm);
  PairColumns(h->k16, rows, kp, h->key_columns);
  bf16::PairRows16(h->k16, rows, kp, h->key_pairs);
  bf16::LowerGemm(rows, kp / 2, reinterpret_cast<const uint32_t*>(h->k16), kp / 2, h->key_columns, h->kk, kChunk16);
  bf16::LowerGemm(rows, kp / 2, reinterpret_cast<const uint32_t*>(h->q16), kp / 2, h->key_columns, h->qk, kChunk16);
}

HWY_INLINE Chunk GdnChunk(const HeadCall& c, int64_t t, int64_t count, int64_t rows, int64_t kp, Scratch16* h) {
  const DF d;
  PrepareScalars(c, t, count, rows, h->g, h->beta);
  float* G = h->g;
  for (int64_t i = 1; i < rows; ++i) G[i] += G[i - 1];
  const auto last = hn::Set(d, G[count - 1]);
  for (int64_t i = 0; i < rows; i += kBlock) {
    const auto Gi = hn::Load(d, G + i), key = hn::Load(d, h->k_norm + i);
    const auto in = fs::Exp(d, Gi);
    hn::Store(hn::Mul(in, key), d, h->key_scale + i);
    hn::Store(hn::Mul(in, hn::Load(d, h->q_norm + i)), d, h->query_scale + i);
    hn::Store(hn::Mul(fs::Exp(d, hn::Sub(last, Gi)), key), d, h->row_out + i);
  }
  std::fill(h->decay, h->decay + kp, std::exp(G[count - 1]));
  for (int64_t b = 0; b < rows; b += kBlock) {
    // Between blocks e^{G_i - G_j} is split at the token before block b: both parts are at most 1.
    const auto start = hn::Set(d, b > 0 ? G[b - 1] : 0.0f);
    const auto Gi = hn::Load(d, G + b), key = hn::Load(d, h->k_norm + b), query = hn::Load(d, h->q_norm + b);
    const auto in = fs::Exp(d, hn::Sub(Gi, start));
    HWY_ALIGN float row_a[kBlock], row_p[kBlock];
    hn::Store(hn::Mul(in, key), d, row_a);
    hn::Store(hn::Mul(in, query), d, row_p);
    BlockRow(
        b, row_a, row_p,
        [&](int64_t j)
            HWY_ATTR { return hn::Mul(fs::Exp(d, hn::Sub(start, hn::Load(d, G + j))), hn::Load(d, h->k_norm + j)); },
        [&](int64_t i, VF* fa, VF* fp) HWY_ATTR {
          const auto f = hn::Mul(fs::Exp(d, hn::Sub(hn::Set(d, G[b + i]), Gi)), key);
          *fa = hn::Mul(f, hn::Set(d, h->beta[b + i] * h->k_norm[b + i]));
          *fp = hn::Mul(f, hn::Set(d, h->q_norm[b + i]));
        },
        h);
  }
  return {rows,        kChunk16, h->k16,       h->q16,         h->a16,     h->p16,  h->key_pairs,
          h->diagonal, h->beta,  h->key_scale, h->query_scale, h->row_out, h->decay};
}

/// False when the chunk needs KdaSmallChunk.
HWY_INLINE bool KdaChunk(const HeadCall& c, int64_t t, int64_t count, int64_t rows, int64_t kp, Scratch16* h,
                         Chunk* chunk) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Problem& p = *c.problem;
  const int64_t key_head = c.head / (p.hv / p.hk);
  const TensorView& gate = c.args->gate;
  PrepareScalars(c, t, count, rows, nullptr, h->beta);
  CopyRows(p, c.args->q, t, key_head, count, rows, kp, p.scale, h->raw_q, h->q_norm);
  CopyRows(p, c.args->k, t, key_head, count, rows, kp, 1.0f, h->raw_k, h->k_norm);
  const float exp_a_log = ExpALog(c);
  const float* bias = p.has_dt_bias ? static_cast<const float*>(c.args->dt_bias.data) + c.head * p.k : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    float* a = h->decays + i * kp;
    LoadRow(gate, (t + i) * gate.stride(0) + c.head * p.k, p.k, a, kp);
    GateRow(p, exp_a_log, bias, p.k, a, kp);
    for (int64_t j = 0; j < kp; j += lanes) hn::Store(fs::Exp(d, hn::Load(d, a + j)), d, a + j);
  }
  std::fill(h->decays + count * kp, h->decays + rows * kp, 1.0f);
  if (!bf16::KdaFactors(rows, kp, h->raw_q, h->raw_k, h->q_norm, h->k_norm, h->decays, kLeastDecay, kMaxKey, h->q16,
                        h->k16, h->i16, h->key_pairs, h->decay)) {
    return false;
  }
  PairColumns(h->i16, rows, kp, h->key_columns);
  bf16::LowerGemm(rows, kp / 2, reinterpret_cast<const uint32_t*>(h->k16), kp / 2, h->key_columns, h->kk, kChunk16);
  bf16::LowerGemm(rows, kp / 2, reinterpret_cast<const uint32_t*>(h->q16), kp / 2, h->key_columns, h->qk, kChunk16);
  for (int64_t b = 0; b < rows; b += kBlock) {
    BlockRow(
        b, h->ones, h->ones, [&](int64_t) HWY_ATTR { return hn::Set(d, 1.0f); },
        [&](int64_t i, VF* fa, VF* fp) HWY_ATTR {
          *fa = hn::Set(d, h->beta[b + i]);
          *fp = hn::Set(d, 1.0f);
        },
        h);
  }
  *chunk = {rows,        kChunk16, h->k16,  h->q16,  h->a16,  h->p16,  h->key_pairs,
            h->diagonal, h->beta,  h->ones, h->ones, nullptr, h->decay};
  return true;
}

/// At most 16 tokens, any gate.
HWY_INLINE Chunk KdaSmallChunk(const HeadCall& c, int64_t t, int64_t count, Scratch* s, Scratch16* h) {
  PrepareRows(c, t, count, kBlock, s->kp, s->q, s->k, s->g, s->beta);
  KdaFactors(count, s);
  bf16::Round(s->kd, kBlock * s->kp, h->k16);
  bf16::Round(s->q, kBlock * s->kp, h->q16);
  bf16::Round(s->pm, kBlock * kBlock, h->p16);
  bf16::PairRows(s->kr, kBlock, s->kp, h->key_pairs);
  return {kBlock, kBlock,  h->k16,  h->q16,  h->a16,  h->p16,  h->key_pairs,
          s->a,   s->beta, h->ones, h->ones, nullptr, s->decay};
}

/// One panel of V columns through a chunk whose first token is `t`.
HWY_INLINE void Panel16(const HeadCall& call, int64_t t, int64_t count, int64_t v0, int64_t kp, const Chunk& c,
                        Scratch16* h, float* state, uint32_t* state_pairs, bf16::Prefetcher* prefetch) {
  const Problem& p = *call.problem;
  const int64_t pairs = kp / 2, n = std::min(kWidth, call.v_end - v0);
  const int64_t v_pitch = call.args->v.stride(0), out_pitch = call.args->out.stride(0);
  const auto* v = static_cast<const uint16_t*>(call.args->v.data) + t * v_pitch + call.head * p.v + v0;
  auto* out = static_cast<uint16_t*>(call.args->out.data) + t * out_pitch + call.head * p.v + v0;
  const auto words = [](const uint16_t* x) { return reinterpret_cast<const uint32_t*>(x); };
  uint32_t* w_pairs = c.row_out == nullptr ? h->u_pairs : h->w_pairs;
  for (int64_t b = 0; b < c.rows; b += kBlock) {
    bf16::Sums(kBlock, {words(c.k16 + b * kp), pairs, state_pairs}, pairs, c.key_scale + b,
               {words(c.a16 + b * c.pitch), c.pitch / 2, h->u_pairs}, b / 2, h->x, prefetch);
    bf16::Solve(c.diagonal + b * kBlock, c.beta + b, h->x, count - b, n, v + b * v_pitch, v_pitch,
                c.row_out == nullptr ? nullptr : c.row_out + b, h->u_pairs + b / 2 * kWidth,
                c.row_out == nullptr ? nullptr : h->w_pairs + b / 2 * kWidth);
    bf16::SumsOut({words(c.q16 + b * kp), pairs, state_pairs}, pairs, c.query_scale + b,
                  {words(c.p16 + b * c.pitch), c.pitch / 2, h->u_pairs}, (b + kBlock) / 2, std::min(kBlock, count - b),
                  n, out + b * out_pitch, out_pitch, prefetch);
  }
  bf16::Update(kp, c.rows / 2, c.key_pairs, w_pairs, c.decay, state, state_pairs, prefetch);
}

void RunChunks16Impl(const HeadCall& task) {
  const Problem& p = *task.problem;
  Scratch s(p, task.scratch);
  const int64_t kp = s.kp, group = p.hv / p.hk;
  Scratch16 h(p, kp, task.scratch + PadTo(static_cast<int64_t>(ChunkScratchFloats(p)), 16));
  const int64_t begin = task.sequence.begin, end = task.sequence.end;
  HeadCall heads[kMaxHeads16];
  for (int64_t i = 0; i < task.heads; ++i) {
    heads[i] = task;
    heads[i].head = task.head + i;
    s.state = h.state[i];
    ReadState(heads[i], task.sequence.read_slot, kWidth, &s);
    for (int64_t v = 0; v < PadTo(task.v_end - task.v_begin, kPanel); v += kWidth) {
      bf16::PairRows(s.state + v * kp, kp, kWidth, h.state_pairs[i] + v * kp / 2);
    }
  }
  bf16::Prefetcher prefetch = MakePrefetcher(task);
  const auto panels = [&](int64_t i, int64_t t, int64_t count, const Chunk& chunk) {
    for (int64_t v = 0; v < task.v_end - task.v_begin; v += kWidth) {
      Panel16(heads[i], t, count, task.v_begin + v, kp, chunk, &h, h.state[i] + v * kp, h.state_pairs[i] + v * kp / 2,
              &prefetch);
    }
  };
  int64_t checkpoint = task.sequence.checkpoint_row;
  const int64_t tiles = task.heads * (PadTo(task.v_end - task.v_begin, kWidth) / kWidth) * (kChunk16 / 8 * 2 + kp / 8);
  for (int64_t t = begin; t < end; t += kChunk16) {
    const int64_t count = std::min(kChunk16, end - t), rows = PadTo(count, kBlock);
    StartPrefetch(t + kChunk16, std::min(t + 2 * kChunk16, end), tiles, &prefetch);
    for (int64_t i = 0; i < task.heads; ++i) {
      if (!p.kda()) {
        if (i == 0 || heads[i].head % group == 0) GdnKeys(heads[i], t, count, rows, kp, &h);
        panels(i, t, count, GdnChunk(heads[i], t, count, rows, kp, &h));
        continue;
      }
      Chunk chunk;
      if (KdaChunk(heads[i], t, count, rows, kp, &h, &chunk)) {
        panels(i, t, count, chunk);
        continue;
      }
      for (int64_t b = 0; b < count; b += kBlock) {
        const int64_t part = std::min(kBlock, count - b);
        panels(i, t + b, part, KdaSmallChunk(heads[i], t + b, part, &s, &h));
      }
    }
    const int64_t done = t + count - begin;
    if (p.checkpoint_every == 0 || done % p.checkpoint_every != 0) continue;
    for (int64_t i = 0; i < task.heads; ++i) {
      s.state = h.state[i];
      WriteState(heads[i], task.args->checkpoints, checkpoint, kWidth, &s);
    }
    ++checkpoint;
  }
  for (int64_t i = 0; i < task.heads; ++i) {
    s.state = h.state[i];
    WriteState(heads[i], task.args->state, task.sequence.write_slot, kWidth, &s);
  }
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
  const size_t kp = PadTo(p.k, kLanePad), c = kChunk16, vp = PadTo(p.v, kPanel);
  const size_t rows = 5 * (c * kp / 2) + 2 * (c * kp / 2) + c * kp, squares = 2 * (c * c / 2) + 2 * c * c;
  const size_t blocks = c * kPanel + 2 * 16 * c + 16 * c + 16 * kPanel + 8 * c + kp;
  return ChunkScratchFloats(p) + 16 + rows + squares + blocks + kMaxHeads16 * (kp * vp + kp / 2 * vp) + 32 * 16;
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
