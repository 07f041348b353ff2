// SPDX-License-Identifier: Apache-2.0
#include "ops/pool_index/pool_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "base/hash.h"
#include "ops/common/simd_targets_test.h"

namespace fluvial::ops::pool_index {
namespace {

using paged_attention::KvSpec;

enum Tensor : uint64_t { kQ, kWeight, kKey, kGate, kApe };

struct CallSetup {
  Problem problem;
  std::vector<int64_t> lengths, contexts, ids;
  /// Value of an element before rounding; empty: random in [-1, 1).
  std::function<double(Tensor, int64_t id, int64_t position, int64_t row, int64_t column)> fill;

  double At(Tensor t, int64_t id, int64_t position, int64_t row, int64_t column) const {
    if (fill) return fill(t, id, position, row, column);
    Hasher h;
    for (const int64_t x : {int64_t{7}, static_cast<int64_t>(t), id, position, row, column}) {
      h.Add(static_cast<uint64_t>(x));
    }
    return static_cast<double>(h.Get() >> 40) * 0x1p-23 - 1.0;
  }
};

/// One call in poisoned memory; pages are dealt in a scrambled order, every other one is unused.
struct Call {
  explicit Call(const CallSetup& s) : problem(s.problem) {
    Problem& p = problem;
    KvSpec& k = spec;
    k.lengths = s.lengths;
    k.contexts = s.contexts;
    int64_t count = 0;
    for (size_t n = 0; n < s.lengths.size(); ++n) count += (s.contexts[n] + s.lengths[n]) / p.page_size + 1;
    count = 2 * count + 1;
    int64_t step = 3, next = 0, tokens = 0;
    while (std::gcd(step, count) != 1) ++step;
    for (size_t n = 0; n < s.lengths.size(); ++n) {
      k.pages.emplace_back();
      for (int64_t j = 0; j * p.page_size < s.contexts[n] + s.lengths[n]; ++j) {
        k.pages.back().push_back(static_cast<int32_t>(next++ * step % count));
      }
      tokens += s.lengths[n];
    }
    const size_t e = SizeOf(p.io);
    const auto poisoned = [](int64_t elements, size_t size) {
      return std::vector<char>(static_cast<size_t>(elements) * size + 8, static_cast<char>(0xff));
    };
    q = poisoned(tokens * p.heads * p.dim, e);
    weights = poisoned(tokens * p.heads, e);
    pages = poisoned(count * p.page_size * 2 * p.dim, e);
    ape.resize(static_cast<size_t>(p.pool * p.dim));
    selected.assign(static_cast<size_t>(tokens * p.most() + 1), -7);
    counts.assign(static_cast<size_t>(tokens), -7);
    args.q = TensorView(q.data(), p.io, {tokens, p.heads, p.dim});
    args.weights = TensorView(weights.data(), p.io, {tokens, p.heads});
    args.pages = TensorView(pages.data(), p.io, {count, p.page_size, int64_t{2} * p.dim});
    args.ape = TensorView(ape.data(), DType::kF32, {p.pool, p.dim});
    args.selected = TensorView(selected.data(), DType::kI32, {tokens, p.most()});
    args.counts = TensorView(counts.data(), DType::kI32, {tokens});
    for (int64_t i = 0; i < p.pool * p.dim; ++i) {
      ape[static_cast<size_t>(i)] = static_cast<float>(s.At(kApe, 0, 0, i / p.dim, i % p.dim));
    }
    int64_t token = 0;
    for (size_t n = 0; n < s.lengths.size(); ++n) {
      const int64_t id = s.ids.empty() ? static_cast<int64_t>(n) : s.ids[n];
      for (int64_t j = 0; j < s.contexts[n] + s.lengths[n]; ++j) {
        const int64_t row = k.pages[n][static_cast<size_t>(j / p.page_size)] * p.page_size + j % p.page_size;
        for (int64_t d = 0; d < p.dim; ++d) {
          StoreFromDouble(pages.data(), p.io, row * 2 * p.dim + d, s.At(kKey, id, j, 0, d));
          StoreFromDouble(pages.data(), p.io, row * 2 * p.dim + p.dim + d, s.At(kGate, id, j, 0, d));
        }
      }
      for (int64_t i = 0; i < s.lengths[n]; ++i, ++token) {
        for (int64_t h = 0; h < p.heads; ++h) {
          StoreFromDouble(weights.data(), p.io, token * p.heads + h, s.At(kWeight, id, s.contexts[n] + i, h, 0));
          for (int64_t d = 0; d < p.dim; ++d) {
            StoreFromDouble(q.data(), p.io, (token * p.heads + h) * p.dim + d, s.At(kQ, id, s.contexts[n] + i, h, d));
          }
        }
      }
    }
  }

  Status Run(Stream& stream, std::string_view name) {
    FLUVIAL_ASSIGN_OR_RETURN(const KvPlan plan, KvPlan::Make(stream, problem.page_size, spec));
    args.plan = &plan;
    SetLengths(problem, plan);
    FLUVIAL_RETURN_IF_ERROR(Validate(problem, args));
    FLUVIAL_ASSIGN_OR_RETURN(const auto selection, Choose(problem, stream.device(), name));
    std::vector<char> workspace(selection.backend->workspace_bytes(problem, stream.device()), static_cast<char>(0xff));
    const Status status = selection.backend->run(stream, problem, args, {workspace.data(), workspace.size()});
    args.plan = nullptr;
    return status;
  }

  std::vector<int32_t> List(int64_t token) const {
    const auto at = selected.begin() + token * problem.most();
    return {at, at + counts[static_cast<size_t>(token)]};
  }

  Problem problem;
  KvSpec spec;
  std::vector<char> q, weights, pages;
  std::vector<float> ape;
  std::vector<int32_t> selected, counts;
  Args args;
};

CallSetup Base(DType io, int32_t pool, int32_t keep) {
  CallSetup s;
  s.problem.io = io;
  s.problem.heads = 4;
  s.problem.dim = 16;
  s.problem.pool = pool;
  s.problem.keep = keep;
  s.problem.page_size = 7;
  s.lengths = {0, 1, 70, 5, 1, 40, 0};
  s.contexts = {9, 0, 0, 61, 130, 3, 2};
  return s;
}

/// Gates are 0 or 200 and ape 0, so the softmax is exactly one-hot; keys, queries and weights are small whole numbers,
/// so every score is exact in fp32: lists must be equal, ties included.
double WholeNumbers(Tensor t, int64_t id, int64_t position, int64_t row, int64_t column) {
  const int64_t mixed = (id * 31 + position * 17 + row * 7 + column * 3) * 2654435761 % 1000003;
  switch (t) {
    case kApe:
      return 0;
    case kGate:
      return position % 3 == 1 ? 200 : 0;  // pools of 3
    default:
      return static_cast<double>(mixed % 5 - 2);
  }
}

TEST(PoolIndex, ListsOfWholeNumbersAreExact) {
  for (const DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int32_t keep : {1, 4, 11}) {
      CallSetup s = Base(io, 3, keep);
      s.fill = WholeNumbers;
      auto stream = MakeCpuStream(3);
      Call want(s);
      ASSERT_TRUE(want.Run(*stream, "reference").ok());
      ForEachSimdTarget([&] {
        Call got(s);
        ASSERT_TRUE(got.Run(*stream, "cpu").ok());
        ASSERT_EQ(got.selected, want.selected);
        ASSERT_EQ(got.counts, want.counts);
      });
    }
  }
}

// The definition, written down once more: complete visible pools in order of score, then the tail.
TEST(PoolIndex, ReferenceIsTheDefinition) {
  CallSetup s = Base(DType::kF32, 4, 3);
  auto stream = MakeCpuStream(1);
  Call call(s);
  ASSERT_TRUE(call.Run(*stream, "reference").ok());
  int64_t token = 0, selections = 0;
  for (size_t n = 0; n < s.lengths.size(); ++n) {
    const auto id = static_cast<int64_t>(n);
    for (int64_t i = 0; i < s.lengths[n]; ++i, ++token) {
      const int64_t p = s.contexts[n] + i, pools = (p + 1) / 4;
      std::vector<std::pair<double, int64_t>> scored;
      for (int64_t m = 0; m < pools; ++m) {
        double score = 0;
        for (int64_t h = 0; h < 4; ++h) {
          double dot = 0;
          for (int64_t d = 0; d < 16; ++d) {
            double top = 0, bottom = 0;
            for (int64_t k = 0; k < 4; ++k) {
              const double e = std::exp(static_cast<float>(s.At(kGate, id, 4 * m + k, 0, d)) +
                                        static_cast<float>(s.At(kApe, 0, 0, k, d)));
              top += e * static_cast<float>(s.At(kKey, id, 4 * m + k, 0, d));
              bottom += e;
            }
            dot += static_cast<float>(s.At(kQ, id, p, h, d)) * top / bottom;
          }
          score += static_cast<float>(s.At(kWeight, id, p, h, 0)) / 2 * std::max(0.0, dot / 4);
        }
        scored.emplace_back(-score, m);
      }
      std::sort(scored.begin(), scored.end());
      std::vector<int32_t> want;
      for (int64_t m = 0; m < std::min<int64_t>(3, pools); ++m) {
        for (int64_t k = 0; k < 4; ++k)
          want.push_back(static_cast<int32_t>(4 * scored[static_cast<size_t>(m)].second + k));
      }
      for (int64_t j = 4 * pools; j <= p; ++j) want.push_back(static_cast<int32_t>(j));
      std::sort(want.begin(), want.end());
      ASSERT_EQ(call.List(token), want) << "position " << p;
      selections += pools > 3;
    }
  }
  EXPECT_GT(selections, 50);
}

// Random numbers: fp32 sums of 16 products and 4 heads are good to about 30 roundoffs, 2e-6; pools closer than that may
// change places, so what is compared is each list's worst score against the best one left out.
TEST(PoolIndex, CpuKeepsTheBestPools) {
  for (const DType io : {DType::kF32, DType::kBF16, DType::kF16}) {
    CallSetup s = Base(io, 4, 5);
    auto stream = MakeCpuStream(3);
    s.problem.dim = 21;  // vectors with tails
    Call want(s);
    ASSERT_TRUE(want.Run(*stream, "reference").ok());
    ForEachSimdTarget([&] {
      Call got(s);
      ASSERT_TRUE(got.Run(*stream, "cpu").ok());
      int64_t same = 0;
      for (int64_t t = 0; t < got.problem.tokens; ++t) {
        ASSERT_EQ(got.counts[static_cast<size_t>(t)], want.counts[static_cast<size_t>(t)]);
        same += got.List(t) == want.List(t);
      }
      EXPECT_GE(same, got.problem.tokens - 1) << "more than one near tie in a hundred queries is a mistake";
    });
  }
}

// Batch = alone, permuted = permuted, any split, page size and number of threads: the same lists.
TEST(PoolIndex, ListsDoNotDependOnCompany) {
  CallSetup s = Base(DType::kBF16, 4, 5);
  auto stream = MakeCpuStream(3), one = MakeCpuStream(1);
  Call batch(s);
  ASSERT_TRUE(batch.Run(*stream, "cpu").ok());
  CallSetup other = s;
  other.problem.page_size = 64;
  Call paged(other);
  ASSERT_TRUE(paged.Run(*one, "cpu").ok());
  EXPECT_EQ(paged.selected, batch.selected);
  int64_t token = 0;
  for (size_t n = 0; n < s.lengths.size(); ++n) {
    for (int64_t i = 0; i < s.lengths[n]; ++i, ++token) {  // token by token
      CallSetup single = s;
      single.lengths = {1};
      single.contexts = {s.contexts[n] + i};
      single.ids = {static_cast<int64_t>(n)};
      Call call(single);
      ASSERT_TRUE(call.Run(*one, "cpu").ok());
      ASSERT_EQ(call.List(0), batch.List(token));
    }
  }
}

TEST(PoolIndex, NanSpoilsOnlyItsPool) {
  CallSetup s = Base(DType::kF32, 4, 5);
  s.lengths = {70};
  s.contexts = {0};
  CallSetup spoilt = s;
  spoilt.fill = [s](Tensor t, int64_t id, int64_t position, int64_t row, int64_t column) {
    return t == kKey && position == 41 ? std::nan("") : s.At(t, id, position, row, column);
  };
  auto stream = MakeCpuStream(1);
  Call clean(s), got(spoilt);
  ASSERT_TRUE(clean.Run(*stream, "cpu").ok());
  ASSERT_TRUE(got.Run(*stream, "cpu").ok());
  for (int64_t t = 0; t < 70; ++t) {
    const auto list = got.List(t);
    const bool has = std::find(list.begin(), list.end(), 41) != list.end();
    if (t < 43) {
      EXPECT_EQ(list, clean.List(t)) << t;  // the pool is not complete yet
    } else {
      EXPECT_FALSE(has) << t;
    }
  }
}

TEST(PoolIndex, Contract) {
  auto stream = MakeCpuStream(1);
  const auto expect = [&](auto change, std::string_view text) {
    Call call(Base(DType::kBF16, 4, 5));
    const auto plan = KvPlan::Make(*stream, call.problem.page_size, call.spec);
    ASSERT_TRUE(plan.ok());
    call.args.plan = &*plan;
    SetLengths(call.problem, *plan);
    ASSERT_TRUE(Validate(call.problem, call.args).ok());
    change(call);
    const Status s = Validate(call.problem, call.args);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Call& c) { c.problem.heads = 0; }, "heads is 0");
  expect([](Call& c) { c.problem.pool = 0; }, "pool is 0");
  expect([](Call& c) { c.problem.keep = 0; }, "keep is 0");
  expect([](Call& c) { c.problem.io = DType::kI32; }, "io is i32");
  expect([](Call& c) { c.problem.max_kv_length = 3; }, "the problem says");
  expect([](Call& c) { c.args.plan = nullptr; }, "no plan");
  expect([](Call& c) { c.args.q.dims[1] = 3; }, "q must be");
  expect([](Call& c) { c.args.weights.dtype = DType::kF32; }, "weights must be");
  expect([](Call& c) { c.args.pages.dims[0] = 1; }, "the cache has 1 pages");
  expect([](Call& c) { c.args.ape.dims[0] = 3; }, "ape must be");
  expect([](Call& c) { c.args.selected.dims[1] = 5; }, "selected must be");
  expect([](Call& c) { c.args.counts = {}; }, "counts must be");
}

TEST(PoolIndex, ProblemLinesSurviveTheRoundTrip) {
  const auto line = ParseProblemLine("pool_index h=32 dim=128 pool=4 keep=512 io=bf16 lens=3,1 ctx=0,70000 seed=7");
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(line->problem.most(), 2051);
  const auto again = ParseProblemLine(FormatProblemLine(*line));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->problem, line->problem);
  EXPECT_EQ(again->problem.Hash(), line->problem.Hash());
  EXPECT_FALSE(ParseProblemLine("pool_index colour=red").ok());
  EXPECT_FALSE(ParseProblemLine("pool_index lens=1,2 ctx=1").ok());
}

}  // namespace
}  // namespace fluvial::ops::pool_index
