// SPDX-License-Identifier: Apache-2.0
// Latent attention: results of the backends on every Highway target this machine has, then the contract.
#include "ops/paged_attention/mla_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hwy/targets.h"
#include "ops/paged_attention/mla_test_kit.h"

namespace fluvial::ops::mla_attention {
namespace {

using test::Call;
using test::CallSetup;
using test::kLatent;
using test::kQ;
using test::kWeight;
using test::Tensor;

constexpr DType kIoTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr const char* kCpuBackends[] = {"cpu", "cpu_absorbed", "cpu_expanded"};
const std::vector<int64_t> kRagged = {0, 1, 2, 17, 65, 0, 140, 1, 1};
const std::vector<int64_t> kContexts = {9, 0, 61, 48, 0, 0, 5, 127, 300};

const MlaBackend& Find(std::string_view name) {
  for (const MlaBackend& b : Backends()) {
    if (b.name == name) return b;
  }
  ADD_FAILURE() << "no backend " << name;
  return Backends().back();
}

CallSetup Base(DType io, int32_t heads, int32_t nope, int32_t rope, int32_t v, int32_t rank,
               std::vector<int64_t> lengths, std::vector<int64_t> contexts) {
  CallSetup s;
  s.problem.io = s.problem.kv = s.problem.weight = io;
  s.problem.heads = heads;
  s.problem.nope = nope;
  s.problem.rope = rope;
  s.problem.v = v;
  s.problem.rank = rank;
  s.lengths = std::move(lengths);
  s.contexts = std::move(contexts);
  return s;
}

Call RunFresh(Stream& stream, std::string_view backend, const CallSetup& setup) {
  Call call(setup);
  const Status s = Execute(stream, Find(backend), call);
  EXPECT_TRUE(s.ok()) << s.message();
  return call;
}

/// Every third key, the last one always.
std::vector<int32_t> EveryThird(int64_t, int64_t position) {
  std::vector<int32_t> list;
  for (int64_t j = position % 3; j <= position; j += 3) list.push_back(static_cast<int32_t>(j));
  return list;
}

class MlaAttention : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  std::unique_ptr<Stream> stream_ = MakeCpuStream(3);
};

// Bits of a key's position stand as +-1 in its latent (low half) and in its shared columns (high half); a query holds
// 64 times the bits of one visible key, so every other key is at least 128 behind and weighs nothing: the output is
// V_h c of that key, a whole number, to the bit. Padding included.
TEST_P(MlaAttention, PicksExactlyTheKeyItLooksFor) {
  constexpr int64_t kBits = 5, kValues = 3;
  for (DType io : kIoTypes) {
    for (const char* backend : kCpuBackends) {
      CallSetup s = Base(io, 3, kBits, kBits, 7, kBits + kValues, kRagged, kContexts);
      s.problem.scale = 1.0f;
      s.problem.page_size = io == DType::kF16 ? 7 : 16;
      s.pad = 3;
      s.fill = [](Tensor t, int64_t id, int64_t row, int64_t head, int64_t column) -> float {
        const auto bit = [&](int64_t of, int64_t i) { return of >> i & 1 ? 1.0f : -1.0f; };
        if (t == kQ) return 64 * bit((row * 31 + head * 17) % (row + 1), column);
        if (t == kLatent) {
          if (column < kBits) return bit(row, column);
          if (column >= kBits + kValues) return bit(row, column - kValues);
          return static_cast<float>((id * 7 + row * 3 + column) % 5);
        }
        const int64_t in_head = row % (kBits + 7), h = row / (kBits + 7);
        if (in_head < kBits) return in_head == column ? 1.0f : 0.0f;  // K_h: the identity
        return column < kBits ? 0.0f : static_cast<float>((h + in_head + column) % 4);
      };
      const Call got = RunFresh(*stream_, backend, s);
      int64_t token = 0;
      for (size_t n = 0; n < kRagged.size(); ++n) {
        for (int64_t i = 0; i < kRagged[n]; ++i, ++token) {
          const int64_t position = kContexts[n] + i;
          for (int64_t h = 0; h < 3; ++h) {
            const int64_t target = (position * 31 + h * 17) % (position + 1);
            for (int64_t d = 0; d < 7; ++d) {
              double want = 0;
              for (int64_t c = kBits; c < kBits + kValues; ++c) {
                want +=
                    static_cast<double>((h + kBits + d + c) % 4 * ((static_cast<int64_t>(n) * 7 + target * 3 + c) % 5));
              }
              ASSERT_EQ(got.Out(token, h, d), want) << backend << " token " << token << " head " << h;
            }
          }
        }
      }
      const Call want = RunFresh(*stream_, "reference", s);
      ASSERT_TRUE(got.out == want.out) << "padding of out was touched: " << backend;
    }
  }
}

// fp64 bound. u = 2^-24, e the io rounding; |q|, |c|, |r| <= 1, |w| <= 1/rank, so |k| <= 1 and |v| <= 1. A score errs
// by es = scale d (nope + rank + rope + 4) u from its chains, and the expanded form rounds k (e per term) and v (e). A
// weight errs relatively by w = 2 es + 4 u; sums over n keys and over the rank by (n + 3 tiles + 8 + rank) u, numerator
// and denominator each; the output is rounded once.
TEST_P(MlaAttention, ErrorWithinTheDerivedBound) {
  struct Dims {
    int32_t heads, nope, rope, v, rank, selected;
  };
  for (const Dims& dims : {Dims{4, 16, 8, 16, 32, 0}, Dims{2, 128, 64, 128, 512, 0}, Dims{3, 33, 0, 17, 45, 0},
                           Dims{1, 1, 1, 1, 1, 0}, Dims{70, 8, 4, 8, 16, 0}, Dims{2, 64, 0, 64, 96, 100}}) {
    for (DType io : kIoTypes) {
      const bool large = dims.rank == 512;  // the reference expands every key in fp64: few keys, one type
      if (io != DType::kF32 && large) continue;
      CallSetup s = Base(io, dims.heads, dims.nope, dims.rope, dims.v, dims.rank, {1, 70, 0, 5}, {130, 3, 0, 200});
      if (large) s.contexts = {20, 0, 0, 9}, s.lengths = {1, 3, 0, 2};
      s.seed = static_cast<uint64_t>(dims.rank + dims.heads);
      s.problem.selected = dims.selected;
      s.select = EveryThird;
      const Call want = RunFresh(*stream_, "reference", s);
      for (const char* backend : kCpuBackends) {
        const bool expanded = backend != std::string_view("cpu_absorbed");
        if (dims.selected > 0 && backend == std::string_view("cpu_expanded")) continue;
        const Call got = RunFresh(*stream_, backend, s);
        const double u = 0x1p-24, n = 205, d = dims.nope + dims.rope;
        const double e = io == DType::kF32 ? u : io == DType::kBF16 ? 0x1p-8 : 0x1p-11, ek = expanded ? e : 0;
        const double es = got.problem.Scale() * d * ((dims.nope + dims.rank + dims.rope + 4) * u + ek);
        const double bound = 2 * (2 * es + 4 * u + (n + 3 * n / 64 + 8 + dims.rank) * u) + ek;
        for (int64_t t = 0; t < got.problem.tokens; ++t) {
          for (int64_t i = 0; i < dims.heads * dims.v; ++i) {
            const double a = got.Out(t, i / dims.v, i % dims.v), b = want.Out(t, i / dims.v, i % dims.v);
            ASSERT_LE(std::abs(a - b), bound + 2 * e * std::abs(b)) << s.problem.ToString() << " " << backend;
          }
        }
      }
    }
  }
}

TEST_P(MlaAttention, SplitAnywhereGivesTheSameBitsInEitherForm) {
  const int64_t total = 150;
  for (const char* backend : {"cpu_absorbed", "cpu_expanded"}) {
    CallSetup whole = Base(DType::kBF16, 3, 24, 8, 12, 40, {total}, {0});
    const Call want = RunFresh(*stream_, backend, whole);
    const size_t row = 3 * 12 * 2;
    for (int64_t cut : {0, 1, 16, 17, 63, 64, 65, 127, 128, 129, 149, 150}) {
      CallSetup first = whole, second = whole;
      first.lengths = {cut};
      second.lengths = {total - cut};
      second.contexts = {cut};
      first.fill_new = second.fill_new = false;
      Call a(first), b(second);
      ASSERT_TRUE(Execute(*stream_, Find(backend), a, /*append=*/true).ok());
      ASSERT_TRUE(Execute(*stream_, Find(backend), b, /*append=*/true).ok());
      ASSERT_EQ(std::memcmp(a.out.data(), want.out.data(), static_cast<size_t>(cut) * row), 0) << backend << cut;
      ASSERT_EQ(std::memcmp(b.out.data(), want.out.data() + static_cast<size_t>(cut) * row,
                            static_cast<size_t>(total - cut) * row),
                0)
          << backend << " " << cut;
    }
  }
}

// Batch = alone, permuted = permuted, any number of threads and page size: the same bits.
TEST_P(MlaAttention, ResultsDoNotDependOnCompany) {
  for (const char* backend : kCpuBackends) {
    CallSetup s = Base(DType::kBF16, 5, 24, 8, 12, 40, kRagged, kContexts);
    s.contexts.back() = 4500;  // several spans, shared among threads when alone
    const Call batch = RunFresh(*stream_, backend, s);
    ASSERT_EQ(RunFresh(*MakeCpuStream(1), backend, s).out, batch.out) << backend;
    CallSetup other = s;
    other.problem.page_size = 48;
    ASSERT_EQ(RunFresh(*stream_, backend, other).out, batch.out) << backend;
    CallSetup permuted = s;
    std::vector<int64_t> starts = {0};
    for (int64_t n : kRagged) starts.push_back(starts.back() + n);
    for (size_t n = 0; n < kRagged.size(); ++n) {
      const size_t from = (n * 7 + 3) % kRagged.size();
      permuted.lengths[n] = s.lengths[from];
      permuted.contexts[n] = s.contexts[from];
      permuted.ids.push_back(static_cast<int64_t>(from));
    }
    const Call shuffled = RunFresh(*stream_, backend, permuted);
    const size_t row = 5 * 12 * 2;
    size_t at = 0;
    for (const int64_t id : permuted.ids) {
      CallSetup alone = s;
      alone.lengths = {s.lengths[id]};
      alone.contexts = {s.contexts[id]};
      alone.ids = {id};
      const Call single = RunFresh(*stream_, backend, alone);
      const size_t bytes = static_cast<size_t>(s.lengths[id]) * row;
      const char* want = batch.out.data() + static_cast<size_t>(starts[id]) * row;
      ASSERT_EQ(std::memcmp(single.out.data(), want, bytes), 0) << backend << " " << id;
      ASSERT_EQ(std::memcmp(shuffled.out.data() + at, want, bytes), 0) << backend << " " << id;
      at += bytes;
    }
  }
}

TEST_P(MlaAttention, NanReachesOnlyThoseWhoSeeIt) {
  for (const char* backend : kCpuBackends) {
    CallSetup s = Base(DType::kF32, 4, 16, 8, 16, 24, {70, 70}, {0, 0});
    s.fill = [](Tensor t, int64_t id, int64_t row, int64_t head, int64_t column) {
      if (id == 0 && t == kLatent && row == 40) return std::nanf("");
      return paged_attention::test::Value(5, t, id, row, head, column);
    };
    const Call got = RunFresh(*stream_, backend, s);
    for (int64_t t = 0; t < 140; ++t) {
      for (int64_t i = 0; i < 64; ++i) {
        ASSERT_EQ(std::isnan(got.Out(t, i / 16, i % 16)), t >= 40 && t < 70) << backend << " token " << t;
      }
    }
  }
}

// Keys that are not listed are not read, and a list of all keys is the dense answer to the bit.
TEST_P(MlaAttention, SelectionSeesItsListOnly) {
  CallSetup s = Base(DType::kF32, 4, 16, 0, 16, 24, {70, 1, 30}, {0, 99, 3});
  const Call dense = RunFresh(*stream_, "cpu_absorbed", s);
  s.problem.selected = 128;
  s.select = [](int64_t, int64_t position) {
    std::vector<int32_t> all(static_cast<size_t>(position + 1));
    std::iota(all.begin(), all.end(), 0);
    return all;
  };
  ASSERT_EQ(RunFresh(*stream_, "cpu_absorbed", s).out, dense.out);
  // `cpu` sees that nothing is left out and takes the form that it takes without lists.
  CallSetup without = s;
  without.problem.selected = 0;
  ASSERT_EQ(RunFresh(*stream_, "cpu", s).out, RunFresh(*stream_, "cpu", without).out);
  s.fill = [](Tensor t, int64_t id, int64_t row, int64_t head, int64_t column) {
    if (t == kLatent && row % 2 == 1) return std::nanf("");
    return paged_attention::test::Value(6, t, id, row, head, column);
  };
  s.select = [](int64_t, int64_t position) {
    std::vector<int32_t> even;
    for (int64_t j = 0; j <= position; j += 2) even.push_back(static_cast<int32_t>(j));
    return even;
  };
  const Call even = RunFresh(*stream_, "cpu", s);
  for (int64_t t = 0; t < even.problem.tokens; ++t) ASSERT_TRUE(std::isfinite(even.Out(t, 3, 15))) << t;
}

TEST_P(MlaAttention, AppendWritesItsRowsAndNothingElse) {
  for (DType io : kIoTypes) {
    for (DType kv : {io, DType::kF32, DType::kBF16}) {
      CallSetup s = Base(io, 1, 4, 3, 4, 16, {0, 1, 3, 17, 40}, {4, 0, 14, 16, 5});
      s.problem.kv = kv;
      s.problem.page_size = 5;
      s.pad = 2;
      s.fill_new = false;
      Call got(s);
      s.fill_new = true;
      const Call want(s);  // filled by the test kit's own formula
      ASSERT_TRUE(Execute(*stream_, Find("cpu"), got, /*append=*/true).ok());
      ASSERT_EQ(got.pages, want.pages);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, MlaAttention, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

Problem Good() {
  Problem p;
  p.heads = 4;
  p.nope = 16;
  p.rope = 8;
  p.v = 16;
  p.rank = 32;
  return p;
}

TEST(MlaContract, ProblemsAreChecked) {
  EXPECT_TRUE(Validate(Good()).ok());
  const auto expect = [](auto change, std::string_view text) {
    Problem p = Good();
    change(p);
    const Status s = Validate(p);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find(text), std::string::npos) << s.message();
  };
  expect([](Problem& p) { p.heads = 0; }, "heads is 0");
  expect([](Problem& p) { p.nope = 0; }, "nope is 0");
  expect([](Problem& p) { p.rope = -1; }, "rope is -1");
  expect([](Problem& p) { p.v = 641; }, "v is 641");
  expect([](Problem& p) { p.rank = 640; }, "rank is 640");
  expect([](Problem& p) { p.page_size = 0; }, "page_size is 0");
  expect([](Problem& p) { p.selected = -2; }, "selected is -2");
  expect([](Problem& p) { p.io = DType::kI32; }, "io is i32");
  expect([](Problem& p) { p.scale = -1; }, "scale is -1");
  expect([](Problem& p) { p.tokens = -1; }, "must not be negative");
}

TEST(MlaContract, ArgumentsAreChecked) {
  auto stream = MakeCpuStream(1);
  CallSetup s;
  s.problem = Good();
  s.lengths = {3, 5};
  s.contexts = {2, 0};
  const auto expect = [&](auto change, std::string_view text) {
    Call call(s);
    auto plan = KvPlan::Make(*stream, call.problem.page_size, call.spec);
    ASSERT_TRUE(plan.ok());
    call.args.plan = &*plan;
    EXPECT_TRUE(Validate(call.problem, call.args).ok());
    change(call);
    const Status status = Validate(call.problem, call.args);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  expect([](Call& c) { c.args.plan = nullptr; }, "no plan");
  expect([](Call& c) { c.problem.tokens = 9; }, "the problem says 9");
  expect([](Call& c) { c.problem.max_kv_length = 4; }, "at most 5 and 4");
  expect([](Call& c) { c.args.q.dims[2] = 16; }, "q must be");
  expect([](Call& c) { c.args.out.dtype = DType::kF32; }, "out must be");
  expect([](Call& c) { c.args.kv_b.dims[0] = 1; }, "kv_b must be");
  expect([](Call& c) { c.args.pages.dims[0] = 1; }, "the cache has 1 pages");
  expect([](Call& c) { c.args.pages.dims[2] = 32; }, "pages must be");
  expect([](Call& c) { c.args.out.data = c.args.q.data; }, "out overlaps q");
  s.problem.selected = 10;
  s.select = EveryThird;
  expect([](Call& c) { c.args.counts = {}; }, "counts must be");
  expect([](Call& c) { c.args.selected.dims[1] = 9; }, "selected must be");
}

TEST(MlaContract, AppendRowsChecksItsArguments) {
  auto stream = MakeCpuStream(1);
  CallSetup s;
  s.problem = Good();
  s.lengths = {3};
  Call call(s);
  auto plan = KvPlan::Make(*stream, call.problem.page_size, call.spec);
  ASSERT_TRUE(plan.ok());
  const auto append = [&](const TensorView& rows, const TensorView& pages) {
    return paged_attention::AppendRows(*stream, rows, pages, *plan).message();
  };
  TensorView rows = call.rows, pages = call.args.pages;
  rows.dims[0] = 2;
  EXPECT_NE(append(rows, pages).find("rows must be"), std::string::npos);
  pages.dims[1] = 8;
  EXPECT_NE(append(call.rows, pages).find("pages must be"), std::string::npos);
  pages = call.args.pages;
  pages.dims[0] = 0;
  EXPECT_NE(append(call.rows, pages).find("0 pages"), std::string::npos);
  rows = call.rows;
  rows.dtype = DType::kI32;
  EXPECT_NE(append(rows, call.args.pages).find("fp32, bf16 or fp16"), std::string::npos);
}

TEST(MlaContract, SelectionOfBackends) {
  const DeviceInfo cpu = MakeCpuStream(1)->device();
  Problem p = Good();
  SetLengths(p, std::vector<int64_t>{1}, std::vector<int64_t>{100});
  EXPECT_EQ(Choose(p, cpu, "auto")->backend->name, "cpu");
  EXPECT_EQ(Choose(p, cpu, "cpu_expanded")->backend->name, "cpu_expanded");
  p.selected = 16;
  const auto refused = Choose(p, cpu, "cpu_expanded");
  EXPECT_EQ(refused.status().code(), Code::kRefused);
  EXPECT_NE(refused.status().message().find("selected=16"), std::string::npos) << refused.status().message();
  EXPECT_EQ(Choose(p, cpu, "nobody").status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(Backends().back().name == "reference");
}

TEST(MlaContract, ProblemLinesSurviveTheRoundTrip) {
  const auto line = ParseProblemLine(
      "mla_attention h=64 nope=256 rope=0 v=256 rank=512 io=bf16 w=fp32 selected=2051 lens=3,1 ctx=0,70000 seed=7");
  ASSERT_TRUE(line.ok()) << line.status().message();
  EXPECT_EQ(line->problem.rope, 0);
  EXPECT_EQ(line->problem.weight, DType::kF32);
  EXPECT_EQ(line->problem.max_kv_length, 70001);
  const auto again = ParseProblemLine(FormatProblemLine(*line));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->problem, line->problem);
  EXPECT_EQ(again->problem.Hash(), line->problem.Hash());
  EXPECT_EQ(again->seed, 7u);
  EXPECT_FALSE(ParseProblemLine("mla_attention h=2 colour=red").ok());
  EXPECT_FALSE(ParseProblemLine("mla_attention h=2 lens=1,2 ctx=1").ok());
  EXPECT_FALSE(ParseProblemLine("paged_attention hq=2").ok());
}

}  // namespace
}  // namespace fluvial::ops::mla_attention
