// SPDX-License-Identifier: Apache-2.0
// Token by token. Rows of S stay in the pool's layout [V, K]; per row and token
//     dot = s . (a k),  o = s . (a q) + d (k . q),  s <- a s + d k     with a = exp(g), d = beta (v - dot),
// which reads s once. With one token per sequence the row goes pool -> registers -> pool.
#include <cstring>
#include <type_traits>

#include "ops/delta_rule/cpu_bf16.h"
#include "ops/delta_rule/cpu_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/delta_rule/cpu_tokens_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Highway first, then what depends on the target.
#include "hwy/highway.h"
#include "ops/delta_rule/cpu_prepare-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fluvial::ops::delta_rule {
namespace HWY_NAMESPACE {

// Vectors of one token, [kp] each.
struct TokenRows {
  float *q, *k, *a, *ak, *aq;
  float kq = 0, beta = 0;
};

HWY_INLINE void PrepareToken(const HeadCall& c, int64_t t, int64_t kp, TokenRows* r) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float g[kLanePad], beta[kLanePad];
  const bool kda = c.problem->kda();
  PrepareRows(c, t, 1, 1, kp, r->q, r->k, kda ? r->a : g, beta);
  r->beta = beta[0];
  auto kq = hn::Zero(d);
  for (int64_t i = 0; i < kp; i += lanes) {
    const auto a = fs::Exp(d, kda ? hn::Load(d, r->a + i) : hn::Set(d, g[0]));
    const auto k = hn::Load(d, r->k + i), q = hn::Load(d, r->q + i);
    hn::Store(a, d, r->a + i);
    hn::Store(hn::Mul(a, k), d, r->ak + i);
    hn::Store(hn::Mul(a, q), d, r->aq + i);
    kq = hn::MulAdd(k, q, kq);
  }
  r->kq = hn::GetLane(hn::SumOfLanes(d, kq));
}

/// One row for one token. `from` null: zeros. `to` null: the new row is not wanted.
template <class From, class To>
HWY_INLINE float Row(const TokenRows& r, int64_t k, float v, const From* from, To* to) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = k / lanes * lanes;
  const size_t rest = static_cast<size_t>(k - whole);
  const auto load = [&](int64_t i) {
    if (from == nullptr) return hn::Zero(d);
    return i < whole ? fs::LoadF32(d, from + i) : fs::LoadF32Tail(d, from + i, rest);
  };
  auto dot0 = hn::Zero(d), dot1 = hn::Zero(d), out0 = hn::Zero(d), out1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= whole; i += 2 * lanes) {
    const auto s0 = load(i), s1 = load(i + lanes);
    dot0 = hn::MulAdd(s0, hn::Load(d, r.ak + i), dot0);
    out0 = hn::MulAdd(s0, hn::Load(d, r.aq + i), out0);
    dot1 = hn::MulAdd(s1, hn::Load(d, r.ak + i + lanes), dot1);
    out1 = hn::MulAdd(s1, hn::Load(d, r.aq + i + lanes), out1);
  }
  for (; i < k; i += lanes) {
    const auto s = load(i);
    dot0 = hn::MulAdd(s, hn::Load(d, r.ak + i), dot0);
    out0 = hn::MulAdd(s, hn::Load(d, r.aq + i), out0);
  }
  const float delta = r.beta * (v - hn::GetLane(hn::SumOfLanes(d, hn::Add(dot0, dot1))));
  if (to != nullptr) {
    const auto dv = hn::Set(d, delta);
    for (i = 0; i < k; i += lanes) {
      const auto s = hn::MulAdd(load(i), hn::Load(d, r.a + i), hn::Mul(dv, hn::Load(d, r.k + i)));
      if (i < whole)
        fs::StoreF32(s, d, to + i);
      else
        fs::StoreF32Tail(s, d, to + i, rest);
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(out0, out1))) + delta * r.kq;
}

constexpr int64_t kPrefetchRows = 16;

template <class State>
void RunTokensOf(const HeadCall& c) {
  const Problem& p = *c.problem;
  const Args& a = *c.args;
  const int64_t kp = PadTo(p.k, kLanePad), rows = c.v_end - c.v_begin;
  const int64_t begin = c.sequence.begin, end = c.sequence.end;
  float* scratch = c.scratch;
  TokenRows r{scratch, scratch + kp, scratch + 2 * kp, scratch + 3 * kp, scratch + 4 * kp, 0, 0};
  float* v = scratch + 5 * kp;
  float* out = v + PadTo(p.v, kPanel);
  float* carry = out + PadTo(p.v, kPanel);  // [rows, k] fp32, between tokens
  auto* pool = static_cast<State*>(a.state.data);
  const auto at = [&](int64_t slot) {
    return slot < 0 ? nullptr : pool + slot * a.state.stride(0) + (c.head * p.v + c.v_begin) * p.k;
  };
  const State* first = at(c.sequence.read_slot);
  const int32_t* token_slots =
      p.token_states ? static_cast<const int32_t*>(a.token_slots.data) + c.sequence.sequence * a.token_slots.stride(0)
                     : nullptr;
  State* last = p.token_states ? nullptr : at(c.sequence.write_slot);
  if (begin == end && last != nullptr && last != first) {
    for (int64_t i = 0; i < rows; ++i) {
      if (first != nullptr)
        std::memcpy(last + i * p.k, first + i * p.k, static_cast<size_t>(p.k) * sizeof(State));
      else
        std::fill(last + i * p.k, last + (i + 1) * p.k, State{});
    }
  }
  const float* no_floats = nullptr;
  float* no_row = nullptr;
  int64_t checkpoint = c.sequence.checkpoint_row;
  for (int64_t t = begin; t < end; ++t) {
    PrepareToken(c, t, kp, &r);
    LoadRow(a.v, t * a.v.stride(0) + c.head * p.v + c.v_begin, rows, v, rows);
    const bool only = t == begin && t + 1 == end, final_token = t + 1 == end;
    const bool snapshot = p.checkpoint_every > 0 && (t + 1 - begin) % p.checkpoint_every == 0;
    State* store = token_slots != nullptr ? at(token_slots[t - begin]) : final_token ? last : nullptr;
    int64_t done = 0;
#if HWY_TARGET <= HWY_AVX3
    if constexpr (std::is_same_v<State, BFloat16>) {
      if (only && !snapshot && first != nullptr && p.k == 128 && CpuHasBf16()) {
        bf16::TokenRows128(rows, reinterpret_cast<const uint16_t*>(first), reinterpret_cast<uint16_t*>(store), r.a, r.k,
                           r.ak, r.aq, r.kq, r.beta, v, out);
        done = rows;
      }
    }
#endif
    for (int64_t i = done; i < rows; ++i) {
      float* row = carry + i * p.k;
      if (only && !snapshot) {
        const State* from = first == nullptr ? nullptr : first + i * p.k;
        // The pool comes from memory: a few KiB ahead hides its latency (beyond the pool it is harmless).
        for (int64_t byte = 0; from != nullptr && byte < p.k * int64_t{sizeof(State)}; byte += 64) {
          hwy::Prefetch(reinterpret_cast<const char*>(from + kPrefetchRows * p.k) + byte);
        }
        if (store != nullptr)
          out[i] = Row(r, p.k, v[i], from, store + i * p.k);
        else
          out[i] = Row(r, p.k, v[i], from, no_row);
        continue;
      }
      if (t > begin)
        out[i] = Row(r, p.k, v[i], const_cast<const float*>(row), row);
      else if (first != nullptr)
        out[i] = Row(r, p.k, v[i], first + i * p.k, row);
      else
        out[i] = Row(r, p.k, v[i], no_floats, row);
      if (store != nullptr) StoreRowOf(row, p.k, store + i * p.k);
      if (snapshot) {
        StoreRowOf(row, p.k,
                   static_cast<State*>(a.checkpoints.data) + checkpoint * a.checkpoints.stride(0) +
                       (c.head * p.v + c.v_begin + i) * p.k);
      }
    }
    checkpoint += snapshot ? 1 : 0;
    StoreRow(a.out, t * a.out.stride(0) + c.head * p.v + c.v_begin, out, rows);
  }
}

void RunTokensImpl(const HeadCall& c) {
  switch (c.problem->state) {
    case DType::kF32:
      return RunTokensOf<float>(c);
    case DType::kBF16:
      return RunTokensOf<BFloat16>(c);
    default:
      return RunTokensOf<Float16>(c);
  }
}

double SpinImpl() {
  const DF d;
  constexpr int kChains = 12;
  constexpr int64_t kRounds = 400'000;
  VF sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = hn::Set(d, static_cast<float>(i));
  const auto x = hn::Set(d, 0.5f);
  const auto one = hn::Set(d, 1.0f);
  for (int64_t r = 0; r < kRounds; ++r) {
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], x, one);
  }
  auto total = sum[0];
  for (int i = 1; i < kChains; ++i) total = hn::Add(total, sum[i]);
  // Never true; keeps the sums alive.
  if (hn::GetLane(hn::SumOfLanes(d, total)) == -1.0f) return 0;
  return static_cast<double>(kRounds) * kChains * static_cast<double>(hn::Lanes(d));
}

void UpdateImpl(float* x, int64_t n) {
  const DF d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto half = hn::Set(d, 0.5f);
  for (int64_t i = 0; i + lanes <= n; i += lanes) hn::StoreU(hn::MulAdd(half, hn::LoadU(d, x + i), half), d, x + i);
}

const char* TargetNameImpl() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace fluvial::ops::delta_rule
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fluvial::ops::delta_rule {

HWY_EXPORT(RunTokensImpl);
HWY_EXPORT(TargetNameImpl);
HWY_EXPORT(SpinImpl);
HWY_EXPORT(UpdateImpl);

size_t TokenScratchFloats(const Problem& p) {
  const size_t kp = PadTo(p.k, kLanePad), vp = PadTo(p.v, kPanel);
  return 5 * kp + 2 * vp + static_cast<size_t>(p.v) * p.k;
}

void RunTokens(const HeadCall& call) { HWY_DYNAMIC_DISPATCH(RunTokensImpl)(call); }
void UpdateInPlace(float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(UpdateImpl)(x, n); }
double SpinMultiplyAdds() { return HWY_DYNAMIC_DISPATCH(SpinImpl)(); }
const char* CpuTargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameImpl)(); }

}  // namespace fluvial::ops::delta_rule
#endif
