// SPDX-License-Identifier: Apache-2.0
// Internal to this room: builds a call of latent attention with poisoned memory around everything. For tests and
// benchmarks.
#pragma once

#include <functional>
#include <numeric>
#include <vector>

#include "ops/paged_attention/mla_attention.h"
#include "ops/paged_attention/paged_attention.h"
#include "ops/paged_attention/test_kit.h"

namespace fluvial::ops::mla_attention::test {

using paged_attention::KvSpec;

enum Tensor : uint64_t { kQ = 10, kLatent, kWeight };

struct CallSetup {
  Problem problem;
  std::vector<int64_t> lengths, contexts;
  std::vector<int64_t> ids;  ///< names of the sequences for their data; empty: their indexes
  uint64_t seed = 1;
  int64_t pad = 0;       ///< extra elements per head and per token of q and out, per row of pages
  bool fill_new = true;  ///< false: the pages hold the contexts only, AppendRows has to write the rest
  /// Value of an element before rounding; row is a position (kWeight: a row of kv_b), head is 0 but for kQ. Empty:
  /// random in [-1, 1), weights in [-1, 1) / rank.
  std::function<float(Tensor, int64_t id, int64_t row, int64_t head, int64_t column)> fill;
  /// Positions that query `position` of a sequence may see; needed when problem.selected > 0.
  std::function<std::vector<int32_t>(int64_t id, int64_t position)> select;

  float At(Tensor t, int64_t id, int64_t row, int64_t head, int64_t column) const {
    if (fill) return fill(t, id, row, head, column);
    const float x = paged_attention::test::Value(seed, t, id, row, head, column);
    return t == kWeight ? x / static_cast<float>(problem.rank) : x;
  }
};

/// Owns the memory of one call.
struct Call {
  Problem problem;
  KvSpec spec;
  std::vector<char> q, pages, kv_b, out, latents, workspace;
  std::vector<int32_t> selected, counts;
  TensorView rows;  ///< the new tokens' cache rows [T, rank+rope], for AppendRows
  Args args;

  explicit Call(const CallSetup& s) : problem(s.problem) {
    SetLengths(problem, s.lengths, s.contexts);
    const Problem& p = problem;
    const int64_t n = p.sequences, t = p.tokens, width = p.rank + p.rope, d = p.nope + p.rope;
    spec.lengths = s.lengths;
    spec.contexts = s.contexts;
    spec.contexts.resize(static_cast<size_t>(n), 0);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += Need(i);
    count = 2 * count + 1;  // every other page is unused
    int64_t step = 2, next = 0;
    while (std::gcd(step, count) != 1) ++step;
    spec.pages.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < Need(i); ++j) spec.pages[i].push_back(static_cast<int32_t>(next++ * step % count));
    }
    using paged_attention::test::Call;
    Call::Poison(q, t * Call::Pitch(p.heads, d, s.pad), p.io);
    Call::Poison(out, t * Call::Pitch(p.heads, p.v, s.pad), p.io);
    Call::Poison(pages, count * p.page_size * (width + s.pad), p.kv);
    Call::Poison(latents, t * width, p.io);
    Call::Poison(kv_b, int64_t{p.heads} * (p.nope + p.v) * p.rank, p.weight);
    args.q = Call::Rows(q, p.io, t, p.heads, d, s.pad);
    args.out = Call::Rows(out, p.io, t, p.heads, p.v, s.pad);
    args.pages =
        TensorView(pages.data(), p.kv, {count, p.page_size, width}, {p.page_size * (width + s.pad), width + s.pad, 1});
    args.kv_b = TensorView(kv_b.data(), p.weight, {int64_t{p.heads} * (p.nope + p.v), p.rank});
    rows = TensorView(latents.data(), p.io, {t, width});
    for (int64_t i = 0; i < args.kv_b.elements(); ++i) {
      StoreFromDouble(kv_b.data(), p.weight, i, s.At(kWeight, 0, i / p.rank, 0, i % p.rank));
    }
    if (p.selected > 0) {
      selected.assign(static_cast<size_t>(t * p.selected), -1);
      counts.assign(static_cast<size_t>(t), 0);
      args.selected = TensorView(selected.data(), DType::kI32, {t, p.selected});
      args.counts = TensorView(counts.data(), DType::kI32, {t});
    }
    int64_t token = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = s.ids.empty() ? i : s.ids[i], context = spec.contexts[i];
      for (int64_t j = 0; j < context + spec.lengths[i]; ++j) {
        const int64_t page = spec.pages[i][j / p.page_size];
        for (int64_t c = 0; c < width; ++c) {
          uint32_t io_value = 0;  // through the io dtype, as AppendRows' input is
          StoreFromDouble(&io_value, p.io, 0, s.At(kLatent, id, j, 0, c));
          const double x = LoadAsDouble(&io_value, p.io, 0);
          if (j >= context) StoreFromDouble(latents.data(), p.io, (token + j - context) * width + c, x);
          if (j >= context && !s.fill_new) continue;
          StoreFromDouble(pages.data(), p.kv,
                          page * args.pages.strides[0] + j % p.page_size * args.pages.strides[1] + c, x);
        }
      }
      for (int64_t j = 0; j < spec.lengths[i]; ++j, ++token) {
        for (int64_t h = 0; h < p.heads; ++h) {
          for (int64_t c = 0; c < d; ++c) {
            StoreFromDouble(q.data(), p.io, Call::Index(args.q, token, h, c), s.At(kQ, id, context + j, h, c));
          }
        }
        if (p.selected == 0) continue;
        const std::vector<int32_t> list = s.select(id, context + j);
        std::copy(list.begin(), list.end(), selected.begin() + token * p.selected);
        counts[static_cast<size_t>(token)] = static_cast<int32_t>(list.size());
      }
    }
  }

  double Out(int64_t token, int64_t head, int64_t column) const {
    return LoadAsDouble(out.data(), problem.io, paged_attention::test::Call::Index(args.out, token, head, column));
  }

 private:
  int64_t Need(int64_t i) const {
    return (spec.contexts[i] + spec.lengths[i] + problem.page_size - 1) / problem.page_size;
  }
};

/// Validates, gives the workspace that the backend asks for (poisoned) and runs.
inline Status Execute(Stream& stream, const MlaBackend& backend, Call& call, bool append = false) {
  FLUVIAL_ASSIGN_OR_RETURN(KvPlan plan, KvPlan::Make(stream, call.problem.page_size, call.spec));
  call.args.plan = &plan;
  if (append) FLUVIAL_RETURN_IF_ERROR(paged_attention::AppendRows(stream, call.rows, call.args.pages, plan));
  FLUVIAL_RETURN_IF_ERROR(Validate(call.problem, call.args));
  const Check check = backend.check(call.problem, stream.device());
  if (!check.ok()) return Status::Refused(check.reason());
  call.workspace.assign(backend.workspace_bytes(call.problem, stream.device()), static_cast<char>(0xff));
  const Status status = backend.run(stream, call.problem, call.args, {call.workspace.data(), call.workspace.size()});
  call.args.plan = nullptr;
  return status;
}

}  // namespace fluvial::ops::mla_attention::test
