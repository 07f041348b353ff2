// SPDX-License-Identifier: Apache-2.0
// Internal to this room: builds a call of the operator with poisoned memory around everything. For tests and
// benchmarks.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "ops/paged_attention/paged_attention.h"

namespace fluvial::ops::paged_attention::test {

/// Deterministic numbers, independent of the standard library's distributions. Each value is a pure function of (seed,
/// tensor, sequence, position, head, dimension), so that any split or order of a batch sees the same numbers.
inline float Value(uint64_t seed, uint64_t tensor, int64_t sequence, int64_t position, int64_t head, int64_t dim) {
  const uint64_t h = Hasher()
                         .Add(seed)
                         .Add(tensor)
                         .Add(static_cast<uint64_t>(sequence))
                         .Add(static_cast<uint64_t>(position))
                         .Add(static_cast<uint64_t>(head * 4096 + dim))
                         .Get();
  return static_cast<float>(h >> 40) * 0x1p-23f - 1.0f;  // [-1, 1)
}

enum Tensor : uint64_t { kQ, kK, kV };

/// What a call looks like besides the problem.
struct CallSetup {
  Problem problem;
  std::vector<int64_t> lengths, contexts;
  std::vector<int64_t> ids;  ///< names of the sequences for their data; empty: their indexes
  uint64_t seed = 1;
  int64_t pad = 0;         ///< extra elements per head and per token of q and out
  bool head_first = true;  ///< pages [page, Hkv, page_size, D]; false: [page, page_size, Hkv, D]
  /// Value of an element before rounding to its dtype; empty: random in [-1, 1).
  std::function<float(Tensor, int64_t id, int64_t position, int64_t head, int64_t dim)> fill;

  float At(Tensor t, int64_t id, int64_t position, int64_t head, int64_t dim) const {
    return fill ? fill(t, id, position, head, dim) : Value(seed, t, id, position, head, dim);
  }
};

/// Owns the memory of one call. Keys and values of context and new tokens lie in shuffled pages; everything else holds
/// NaN.
struct Call {
  Problem problem;
  KvSpec spec;
  std::vector<char> q, k_pages, v_pages, out, lse;
  std::vector<char> k_new, v_new;  ///< the new tokens' rows, for AppendKv
  std::vector<char> workspace;
  Args args;
  AppendArgs append;

  /// With `fill_new` false the pages hold the contexts only: AppendKv has to write the rest.
  explicit Call(const CallSetup& s, bool fill_new = true) : problem(s.problem) {
    SetLengths(problem, s.lengths, s.contexts);
    const Problem& p = problem;
    const int64_t n = p.sequences, t = p.tokens;
    spec.lengths = s.lengths;
    spec.contexts = s.contexts;
    spec.contexts.resize(n, 0);
    int64_t pages = 0;
    for (int64_t i = 0; i < n; ++i) pages += (spec.contexts[i] + spec.lengths[i] + p.page_size - 1) / p.page_size;
    pages = 2 * pages + 1;  // every other page is unused
    // A multiplier coprime to the (odd) page count scatters the pages.
    int64_t step = 2;
    while (std::gcd(step, pages) != 1) ++step;
    int64_t next = 0;
    spec.pages.resize(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t need = (spec.contexts[i] + spec.lengths[i] + p.page_size - 1) / p.page_size;
      for (int64_t j = 0; j < need; ++j) spec.pages[i].push_back(static_cast<int32_t>(next++ * step % pages));
    }

    Poison(q, t * Pitch(p.hq, p.d_qk, s.pad), p.io);
    Poison(out, t * Pitch(p.hq, p.d_v, s.pad), p.io);
    Poison(lse, t * p.hq, DType::kF32);
    Poison(k_pages, pages * p.hkv * p.page_size * p.d_qk, p.kv);
    Poison(v_pages, pages * p.hkv * p.page_size * p.d_v, p.kv);
    Poison(k_new, t * p.hkv * p.d_qk, p.io);
    Poison(v_new, t * p.hkv * p.d_v, p.io);
    args.q = Rows(q, p.io, t, p.hq, p.d_qk, s.pad);
    args.out = Rows(out, p.io, t, p.hq, p.d_v, s.pad);
    if (p.lse) args.lse = TensorView(lse.data(), DType::kF32, {t, p.hq});
    args.k_pages = Pages(k_pages, pages, p.d_qk, s.head_first);
    args.v_pages = Pages(v_pages, pages, p.d_v, s.head_first);
    append.k = TensorView(k_new.data(), p.io, {t, p.hkv, p.d_qk});
    append.v = TensorView(v_new.data(), p.io, {t, p.hkv, p.d_v});
    append.k_pages = args.k_pages;
    append.v_pages = args.v_pages;

    int64_t first = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = s.ids.empty() ? i : s.ids[i];
      const int64_t context = spec.contexts[i];
      for (int64_t j = 0; j < spec.lengths[i]; ++j) {
        for (int64_t h = 0; h < p.hq; ++h) {
          for (int64_t d = 0; d < p.d_qk; ++d) {
            StoreFromDouble(q.data(), p.io, Index(args.q, first + j, h, d), s.At(kQ, id, context + j, h, d));
          }
        }
        Row(s, kK, id, context + j, append.k, first + j, p.d_qk);
        Row(s, kV, id, context + j, append.v, first + j, p.d_v);
      }
      const int64_t filled = context + (fill_new ? spec.lengths[i] : 0);
      for (int64_t j = 0; j < filled; ++j) {
        const int64_t page = spec.pages[i][j / p.page_size], row = j % p.page_size;
        for (const auto& [tensor, view, width] : {std::tuple{kK, &args.k_pages, p.d_qk}, {kV, &args.v_pages, p.d_v}}) {
          for (int64_t h = 0; h < p.hkv; ++h) {
            const int64_t base = page * view->strides[0] + h * view->strides[1] + row * view->strides[2];
            for (int64_t d = 0; d < width; ++d) {
              // Through the io dtype, as AppendKv's input is.
              uint32_t io_value = 0;
              StoreFromDouble(&io_value, p.io, 0, s.At(tensor, id, j, h, d));
              StoreFromDouble(view->data, p.kv, base + d, LoadAsDouble(&io_value, p.io, 0));
            }
          }
        }
      }
      first += spec.lengths[i];
    }
  }

  static int64_t Pitch(int64_t heads, int64_t width, int64_t pad) { return heads * (width + pad) + pad; }

  static TensorView Rows(std::vector<char>& v, DType t, int64_t tokens, int64_t heads, int64_t width, int64_t pad) {
    return TensorView(v.data(), t, {tokens, heads, width}, {Pitch(heads, width, pad), width + pad, 1});
  }

  TensorView Pages(std::vector<char>& v, int64_t pages, int64_t width, bool head_first) const {
    const int64_t h = problem.hkv, s = problem.page_size;
    if (head_first) return TensorView(v.data(), problem.kv, {pages, h, s, width});
    return TensorView(v.data(), problem.kv, {pages, h, s, width}, {h * s * width, width, h * width, 1});
  }

  static int64_t Index(const TensorView& v, int64_t token, int64_t head, int64_t dim) {
    return token * v.strides[0] + head * v.strides[1] + dim;
  }

  /// All-ones bytes: NaN in fp32, bf16 and fp16. One spare element at the end, so that overruns meet it.
  static void Poison(std::vector<char>& v, int64_t elements, DType dtype) {
    v.assign(static_cast<size_t>(elements + 1) * SizeOf(dtype), static_cast<char>(0xff));
  }

 private:
  void Row(const CallSetup& s, Tensor tensor, int64_t id, int64_t position, const TensorView& to, int64_t token,
           int64_t width) {
    for (int64_t h = 0; h < problem.hkv; ++h) {
      for (int64_t d = 0; d < width; ++d) {
        StoreFromDouble(to.data, problem.io, Index(to, token, h, d), s.At(tensor, id, position, h, d));
      }
    }
  }
};

/// Validates, gives the workspace that the backend asks for (poisoned) and runs.
inline Status Execute(Stream& stream, const AttentionBackend& backend, Call& call) {
  FLUVIAL_ASSIGN_OR_RETURN(KvPlan plan, KvPlan::Make(stream, call.problem.page_size, call.spec));
  call.args.plan = call.append.plan = &plan;
  FLUVIAL_RETURN_IF_ERROR(Validate(call.problem, call.args));
  const Check check = backend.check(call.problem, stream.device());
  if (!check.ok()) return Status::Refused(check.reason());
  call.workspace.assign(backend.workspace_bytes(call.problem, stream.device()), static_cast<char>(0xff));
  const Status status = backend.run(stream, call.problem, call.args, {call.workspace.data(), call.workspace.size()});
  call.args.plan = call.append.plan = nullptr;
  return status;
}

inline Status Append(Stream& stream, Call& call) {
  FLUVIAL_ASSIGN_OR_RETURN(KvPlan plan, KvPlan::Make(stream, call.problem.page_size, call.spec));
  call.append.plan = &plan;
  Status status = Validate(call.problem, call.append);
  if (status.ok()) status = AppendKv(stream, call.problem, call.append);
  call.append.plan = nullptr;
  return status;
}

}  // namespace fluvial::ops::paged_attention::test
