// SPDX-License-Identifier: Apache-2.0
// Results of the backends, on every Highway target this machine has.
#include "ops/paged_attention/paged_attention.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hwy/targets.h"
#include "ops/paged_attention/test_kit.h"

namespace fluvial::ops::paged_attention {
namespace {

using test::Call;
using test::CallSetup;
using test::kK;
using test::kQ;
using test::kV;
using test::Tensor;

constexpr DType kIoTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
const std::vector<int64_t> kRagged = {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 0, 300, 1, 1, 1};
const std::vector<int64_t> kContexts = {9, 0, 0, 61, 0, 48, 64, 1, 0, 63, 0, 5, 0, 127, 500};

const AttentionBackend& Find(std::string_view name) {
  for (const AttentionBackend& b : Backends()) {
    if (b.name == name) return b;
  }
  ADD_FAILURE() << "no backend " << name;
  return Backends().back();
}

CallSetup Base(DType io, int32_t hq, int32_t hkv, int32_t d_qk, int32_t d_v, std::vector<int64_t> lengths,
               std::vector<int64_t> contexts) {
  CallSetup s;
  s.problem.io = s.problem.kv = io;
  s.problem.hq = hq;
  s.problem.hkv = hkv;
  s.problem.d_qk = d_qk;
  s.problem.d_v = d_v;
  s.problem.lse = true;
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

class PagedAttention : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  std::unique_ptr<Stream> stream_ = MakeCpuStream(3);
};

// q = 0 makes every visible key weigh the same, so outputs are means of whole numbers: exact, whatever the mask
// boundary, the page, the tile or the span. Compared with the reference to the bit, padding included.
TEST_P(PagedAttention, MeansOfWholeNumbersAreExact) {
  for (DType io : kIoTypes) {
    for (int32_t page_size : {16, 7, 64, 256}) {
      CallSetup s = Base(io, 6, 2, 9, 21, kRagged, kContexts);
      s.problem.page_size = page_size;
      s.problem.kv = page_size == 64 ? DType::kF32 : io;
      s.pad = 3;
      s.head_first = page_size != 7;
      s.fill = [](Tensor t, int64_t id, int64_t position, int64_t head, int64_t dim) {
        if (t == kQ) return 0.0f;
        return static_cast<float>((id * 7 + position * 5 + head * 3 + dim) % 17 - 8);
      };
      const Call got = RunFresh(*stream_, "cpu", s), want = RunFresh(*stream_, "reference", s);
      ASSERT_TRUE(got.out == want.out) << s.problem.ToString();
      const auto* a = reinterpret_cast<const float*>(got.lse.data());
      const auto* b = reinterpret_cast<const float*>(want.lse.data());
      for (int64_t i = 0; i < got.problem.tokens * 6; ++i) ASSERT_NEAR(a[i], b[i], 0x1p-22 * b[i]);
    }
  }
}

// The same over several spans of 2048 keys, where one decode row is shared among threads, and its neighbours.
TEST_P(PagedAttention, MeansOverSharedSpansAreExact) {
  CallSetup s = Base(DType::kF32, 2, 1, 3, 16, {1, 3, 1, 2}, {6200, 2046, 4095, 2047});
  s.fill = [](Tensor t, int64_t id, int64_t position, int64_t, int64_t dim) {
    return t == kQ ? 0.0f : static_cast<float>((id * 7 + position * 5 + dim) % 17 - 8);
  };
  const Call got = RunFresh(*stream_, "cpu", s), want = RunFresh(*stream_, "reference", s);
  ASSERT_EQ(got.out, want.out);
  ASSERT_EQ(RunFresh(*MakeCpuStream(1), "cpu", s).out, want.out);
}

// Keys carry the bits of their position as +-1 and a query 64 times the bits of one visible key: every other key is at
// least 128 behind and weighs exactly nothing, so the output is that key's value to the bit.
TEST_P(PagedAttention, PicksExactlyTheKeyItLooksFor) {
  for (DType io : kIoTypes) {
    CallSetup s = Base(io, 4, 2, 16, 24, kRagged, kContexts);
    s.problem.scale = 1.0f;
    s.problem.page_size = 32;
    s.fill = [](Tensor t, int64_t id, int64_t position, int64_t head, int64_t dim) {
      if (t == kV) return static_cast<float>((id + position * 3 + head * 5 + dim) % 251);
      const int64_t target = t == kK ? position : (position * 31 + head * 17) % (position + 1);
      return (target >> dim & 1 ? 1.0f : -1.0f) * (t == kQ ? 64.0f : 1.0f);
    };
    const Call got = RunFresh(*stream_, "cpu", s);
    int64_t token = 0;
    for (size_t n = 0; n < kRagged.size(); ++n) {
      for (int64_t i = 0; i < kRagged[n]; ++i, ++token) {
        const int64_t position = kContexts[n] + i;
        for (int64_t h = 0; h < 4; ++h) {
          const int64_t target = (position * 31 + h * 17) % (position + 1);
          for (int64_t d = 0; d < 24; ++d) {
            const double value = static_cast<double>((static_cast<int64_t>(n) + target * 3 + h / 2 * 5 + d) % 251);
            ASSERT_EQ(LoadAsDouble(got.out.data(), io, Call::Index(got.args.out, token, h, d)), value);
          }
        }
      }
    }
  }
}

// fp64 bound. With u = 2^-24, |q|,|k|,|v| <= 1 and scale c: a score errs by at most es = c D (D+2) u (fma chain,
// scale), a weight relatively by w = 2 es + 4 u (exp, its argument), sums over n keys by (n + 3 tiles + 8) u; numerator
// and denominator each take both, then division and one rounding to io.
TEST_P(PagedAttention, ErrorWithinTheDerivedBound) {
  struct Dims {
    int32_t hq, hkv, d_qk, d_v;
  };
  for (const Dims& dims :
       {Dims{4, 2, 64, 64}, Dims{3, 3, 80, 80}, Dims{8, 1, 96, 96}, Dims{5, 1, 128, 128}, Dims{2, 1, 192, 128},
        Dims{16, 2, 256, 256}, Dims{70, 1, 20, 33}, Dims{2, 2, 1, 1}, Dims{2, 1, 576, 512}}) {
    for (DType io : kIoTypes) {
      CallSetup s = Base(io, dims.hq, dims.hkv, dims.d_qk, dims.d_v, {1, 70, 0, 5}, {130, 3, 0, 200});
      s.seed = static_cast<uint64_t>(dims.d_qk + dims.hq);
      const Call got = RunFresh(*stream_, "cpu", s), want = RunFresh(*stream_, "reference", s);
      const double u = 0x1p-24, c = got.problem.Scale(), n = 205;
      const double es = c * dims.d_qk * (dims.d_qk + 2) * u, w = 2 * es + 4 * u, sums = (n + 3 * n / 64 + 8) * u;
      const double e = io == DType::kF32 ? u : io == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      for (int64_t i = 0; i < got.problem.tokens * dims.hq * dims.d_v; ++i) {
        const double a = LoadAsDouble(got.out.data(), io, i), b = LoadAsDouble(want.out.data(), io, i);
        ASSERT_LE(std::abs(a - b), 2 * (w + sums) + 2 * e * std::abs(b) + 0x1p-24) << s.problem.ToString() << " " << i;
      }
      for (int64_t i = 0; i < got.problem.tokens * dims.hq; ++i) {
        const double a = LoadAsDouble(got.lse.data(), DType::kF32, i),
                     b = LoadAsDouble(want.lse.data(), DType::kF32, i);
        ASSERT_LE(std::abs(a - b), w + sums + 4 * u * std::abs(b)) << s.problem.ToString() << " lse " << i;
      }
    }
  }
}

// A prompt split anywhere, and appended page by page through AppendKv, gives the bits of one shot.
TEST_P(PagedAttention, SplitAnywhereGivesTheSameBits) {
  for (DType io : {DType::kBF16, DType::kF32}) {
    const int64_t total = 150;
    CallSetup whole = Base(io, 4, 2, 40, 24, {total}, {0});
    const Call want = RunFresh(*stream_, "cpu", whole);
    const size_t row = 4 * 24 * SizeOf(io);
    for (int64_t cut : {0, 1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 149, 150}) {
      CallSetup first = whole, second = whole;
      first.lengths = {cut};
      second.lengths = {total - cut};
      second.contexts = {cut};
      Call a(first, false), b(second, false);
      ASSERT_TRUE(Append(*stream_, a).ok());
      ASSERT_TRUE(Append(*stream_, b).ok());
      ASSERT_TRUE(Execute(*stream_, Find("cpu"), a).ok());
      ASSERT_TRUE(Execute(*stream_, Find("cpu"), b).ok());
      ASSERT_EQ(std::memcmp(a.out.data(), want.out.data(), cut * row), 0) << cut;
      ASSERT_EQ(std::memcmp(b.out.data(), want.out.data() + cut * row, (total - cut) * row), 0) << cut;
      ASSERT_EQ(std::memcmp(b.lse.data(), want.lse.data() + cut * 16, (total - cut) * 16), 0) << cut;
    }
  }
}

// One token after another across a span boundary = one shot, though decode rows may be shared among threads.
TEST_P(PagedAttention, DecodeAcrossSpansEqualsPrefill) {
  CallSetup whole = Base(DType::kBF16, 2, 1, 16, 16, {4}, {2046});
  const Call want = RunFresh(*stream_, "cpu", whole);
  for (int64_t i = 0; i < 4; ++i) {
    CallSetup step = whole;
    step.lengths = {1};
    step.contexts = {2046 + i};
    const Call got = RunFresh(*stream_, "cpu", step);
    ASSERT_EQ(std::memcmp(got.out.data(), want.out.data() + i * 64, 64), 0) << i;
  }
}

// Batch = alone, permuted = permuted, one thread = three = eight, any page size or layout: the same bits.
TEST_P(PagedAttention, ResultsDoNotDependOnCompany) {
  CallSetup s = Base(DType::kBF16, 6, 2, 32, 48, kRagged, kContexts);
  s.contexts.back() = 4500;  // shared among threads when alone
  const Call batch = RunFresh(*stream_, "cpu", s);
  for (int threads : {1, 8}) ASSERT_EQ(RunFresh(*MakeCpuStream(threads), "cpu", s).out, batch.out) << threads;
  for (int32_t page_size : {1, 48, 128}) {
    CallSetup other = s;
    other.problem.page_size = page_size;
    other.head_first = page_size != 48;
    ASSERT_EQ(RunFresh(*stream_, "cpu", other).out, batch.out) << page_size;
  }
  const size_t row = 6 * 48 * 2;
  std::vector<int64_t> starts = {0};
  for (int64_t n : kRagged) starts.push_back(starts.back() + n);
  CallSetup permuted = s;
  for (size_t n = 0; n < kRagged.size(); ++n) {
    const size_t from = (n * 7 + 3) % kRagged.size();
    permuted.lengths[n] = s.lengths[from];
    permuted.contexts[n] = s.contexts[from];
    permuted.ids.push_back(static_cast<int64_t>(from));
  }
  const Call shuffled = RunFresh(*stream_, "cpu", permuted);
  int64_t at = 0;
  for (size_t n = 0; n < kRagged.size(); ++n) {
    const int64_t id = permuted.ids[n];
    CallSetup alone = s;
    alone.lengths = {s.lengths[id]};
    alone.contexts = {s.contexts[id]};
    alone.ids = {id};
    const Call single = RunFresh(*stream_, "cpu", alone);
    const size_t bytes = s.lengths[id] * row;
    ASSERT_EQ(std::memcmp(single.out.data(), batch.out.data() + starts[id] * row, bytes), 0) << id;
    ASSERT_EQ(std::memcmp(shuffled.out.data() + at * row, batch.out.data() + starts[id] * row, bytes), 0) << id;
    at += s.lengths[id];
  }
}

// A NaN key and value of token 40 spoil the queries that see it and nobody else.
TEST_P(PagedAttention, NanReachesOnlyThoseWhoSeeIt) {
  for (Tensor poisoned : {kK, kV}) {
    CallSetup s = Base(DType::kF32, 8, 1, 16, 16, {70, 70}, {0, 0});
    s.fill = [poisoned](Tensor t, int64_t id, int64_t position, int64_t head, int64_t dim) {
      if (id == 0 && t == poisoned && position == 40) return std::nanf("");
      return test::Value(5, t, id, position, head, dim);
    };
    const Call got = RunFresh(*stream_, "cpu", s);
    const auto* out = reinterpret_cast<const float*>(got.out.data());
    for (int64_t i = 0; i < 140 * 8 * 16; ++i) {
      const int64_t token = i / (8 * 16);
      ASSERT_EQ(std::isnan(out[i]), token >= 40 && token < 70) << "token " << token;
    }
  }
}

// Scores of several hundred: the running maximum keeps every exponent in range.
TEST_P(PagedAttention, LargeScoresStayFinite) {
  CallSetup s = Base(DType::kF32, 2, 1, 64, 32, {40, 1}, {0, 300});
  s.fill = [](Tensor t, int64_t id, int64_t position, int64_t head, int64_t dim) {
    return test::Value(9, t, id, position, head, dim) * (t == kV ? 1.0f : 30.0f);
  };
  const Call got = RunFresh(*stream_, "cpu", s), want = RunFresh(*stream_, "reference", s);
  const double u = 0x1p-24, es = 900.0 / 8 * 64 * 66 * u;  // as above, |q||k| <= 900
  for (int64_t i = 0; i < 41 * 2 * 32; ++i) {
    const double a = LoadAsDouble(got.out.data(), DType::kF32, i), b = LoadAsDouble(want.out.data(), DType::kF32, i);
    ASSERT_TRUE(std::isfinite(a));
    ASSERT_LE(std::abs(a - b), 2 * (2 * es + 400 * u));
  }
}

// Latent attention: the values are the first columns of the keys, one view inside the other.
TEST_P(PagedAttention, ValuesMayBeASliceOfTheKeys) {
  CallSetup s = Base(DType::kBF16, 8, 1, 48, 32, {20, 1}, {0, 77});
  s.fill = [](Tensor t, int64_t id, int64_t position, int64_t head, int64_t dim) {
    return test::Value(11, t == kV ? kK : t, id, position, head, dim);
  };
  const Call want = RunFresh(*stream_, "cpu", s);
  Call sliced(s);
  TensorView v = sliced.args.k_pages;
  v.dims[3] = 32;
  sliced.args.v_pages = v;
  ASSERT_TRUE(Execute(*stream_, Find("cpu"), sliced).ok());
  EXPECT_EQ(sliced.out, want.out);
}

TEST_P(PagedAttention, AppendWritesItsRowsAndNothingElse) {
  for (DType io : kIoTypes) {
    for (DType kv : {io, DType::kF32, DType::kBF16, DType::kF16}) {
      for (int32_t page_size : {5, 16}) {
        CallSetup s = Base(io, 4, 2, 19, 33, {0, 1, 3, 17, 40}, {4, 0, 14, 16, 5});
        s.problem.kv = kv;
        s.problem.page_size = page_size;
        Call got(s, false);
        const Call want(s, true);  // filled by the test kit's own formula
        ASSERT_TRUE(Append(*stream_, got).ok());
        ASSERT_EQ(got.k_pages, want.k_pages) << s.problem.ToString();
        ASSERT_EQ(got.v_pages, want.v_pages) << s.problem.ToString();
      }
    }
  }
}

// Pages beyond 2^31 elements, in memory that is reserved but hardly touched.
TEST_P(PagedAttention, AddressesAreSixtyFourBit) {
  constexpr int64_t kPitch = (int64_t{1} << 31) + 64;
  const size_t bytes = static_cast<size_t>(2 * kPitch + (1 << 20)) * 2;
  auto reserve = [&] {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* areas[2] = {reserve(), reserve()};
  for (void* p : areas) ASSERT_NE(p, MAP_FAILED);
  CallSetup s = Base(DType::kBF16, 2, 1, 16, 16, {3}, {15});
  const Call want = RunFresh(*stream_, "cpu", s);
  Call call(s);
  for (int i = 0; i < 2; ++i) {
    TensorView& view = i == 0 ? call.args.k_pages : call.args.v_pages;
    ASSERT_LE(call.spec.pages[0].size(), 2u);
    for (size_t j = 0; j < call.spec.pages[0].size(); ++j) {
      std::memcpy(static_cast<BFloat16*>(areas[i]) + static_cast<int64_t>(j + 1) * kPitch,
                  static_cast<BFloat16*>(view.data) + call.spec.pages[0][j] * view.strides[0], 16 * 16 * 2);
    }
    view = TensorView(areas[i], DType::kBF16, {3, 1, 16, 16}, {kPitch, 256, 16, 1});
  }
  call.spec.pages[0] = {1, 2};
  call.append.k_pages = call.args.k_pages;
  call.append.v_pages = call.args.v_pages;
  ASSERT_TRUE(Append(*stream_, call).ok());
  ASSERT_TRUE(Execute(*stream_, Find("cpu"), call).ok());
  EXPECT_EQ(call.out, want.out);
  for (void* p : areas) munmap(p, bytes);
}

INSTANTIATE_TEST_SUITE_P(Targets, PagedAttention, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace fluvial::ops::paged_attention
