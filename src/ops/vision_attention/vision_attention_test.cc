// SPDX-License-Identifier: Apache-2.0
// Results of the CPU backends, on every Highway target this machine has. Each case is one line; a failure prints it.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "hwy/targets.h"
#include "ops/vision_attention/test_kit.h"

namespace fluvial::ops::vision_attention {
namespace {

// The line's case, made once for all targets; the flag says whether the slow reference has run on it.
struct Cached {
  PreparedCase prepared;
  bool reference_done = false;
};
Cached* Prepare(Stream& stream, const std::string& line) {
  static std::map<std::string, Cached> cases;
  const auto found = cases.find(line);
  if (found != cases.end()) return &found->second;
  auto c = ParseCase(line);
  EXPECT_TRUE(c.ok()) << line << ": " << c.status().message();
  if (!c.ok()) return nullptr;
  return &cases.emplace(line, Cached{PreparedCase::Make(*c, stream.pool())}).first->second;
}

void CheckEverywhere(Stream& stream, const std::string& line) {
  Cached* cached = Prepare(stream, line);
  ASSERT_NE(cached, nullptr);
  const PreparedCase& prepared = cached->prepared;
  int ran = 0;
  for (const VisionBackend& b : Backends()) {
    if (!b.check(prepared.problem(), stream.device()).ok()) continue;
    const bool reference = b.name == "reference";
    if (reference && cached->reference_done) continue;
    const auto verdict = prepared.Check(stream, b, PrecisionOf(b, prepared.problem().io));
    ASSERT_TRUE(verdict.ok()) << b.name << ": " << line << ": " << verdict.status().message();
    ASSERT_TRUE(verdict->passed) << b.name << ": " << FormatCase(prepared.spec()) << ": " << verdict->why;
    cached->reference_done = cached->reference_done || reference;
    ++ran;
  }
  ASSERT_GE(ran, 1) << line;
}

class VisionAttention : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  std::unique_ptr<Stream> stream_ = MakeCpuStream(3);
};

constexpr const char* kIo[] = {"fp32", "bf16", "fp16"};

TEST_P(VisionAttention, RaggedSequencesOfEveryHeadDimension) {
  for (const char* io : kIo) {
    for (int d : {64, 72, 80, 128, 1, 17, 40, 96, 256}) {
      const std::string line = "vision_attention heads=2 d=" + std::to_string(d) + " io=" + io +
                               " lse=1 alignment=" + (std::string(io) == "fp32" ? "4" : "2") + " lens=0,1,65,0,130,3";
      CheckEverywhere(*stream_, line + " seed=" + std::to_string(d));
    }
  }
}

// Every length around the tile, the block and the vector: masks and tails, exact.
TEST_P(VisionAttention, MeansOfWholeNumbersAreExactAtEveryLength) {
  std::string lens;
  for (int n = 0; n <= 130; ++n) lens += (n ? "," : "") + std::to_string(n);
  for (const char* io : kIo) {
    CheckEverywhere(*stream_, std::string("vision_attention heads=1 d=24 fill=mean lse=1 io=") + io + " lens=" + lens);
  }
}

TEST_P(VisionAttention, PicksExactlyTheKeyItLooksFor) {
  for (const char* io : kIo) {
    CheckEverywhere(*stream_, std::string("vision_attention heads=2 d=80 fill=pick lse=1 layout=qkv io=") + io +
                                  " lens=64,1,150,0,17,129");
  }
}

TEST_P(VisionAttention, LargeScoresStayFinite) {
  for (const char* io : kIo) {
    CheckEverywhere(*stream_, std::string("vision_attention heads=2 d=72 fill=large lse=1 io=") + io + " lens=140,64");
  }
}

TEST_P(VisionAttention, LayoutsStridesAndPaddedTensors) {
  for (const char* layout : {"separate", "qkv", "heads_first"}) {
    for (const char* more : {"lens=70,0,64,5", "lens=70,0,64,5 pad=24 extra=9", "lens=70,0,64 batch=1 pad=8",
                             "padded=90 lens=70,0,90,5 pad=16", "padded=64 lens=3x64", "lens=40 alignment=2 pad=3"}) {
      CheckEverywhere(*stream_, std::string("vision_attention heads=2 d=80 lse=1 layout=") + layout + " " + more);
    }
  }
}

// A sequence of NaN next to good ones, behind them, and NaN in all gaps and padding rows.
TEST_P(VisionAttention, NanOfOneSequenceReachesNoOther) {
  for (int nan : {0, 2, 4}) {
    for (const char* more : {"", " padded=72 layout=qkv", " layout=qkv pad=8 extra=5"}) {
      if (nan == 4 && std::string(more).find("padded") != std::string::npos) continue;
      CheckEverywhere(*stream_, "vision_attention heads=2 d=64 lens=64,64,20,70,1 nan=" + std::to_string(nan) + more);
    }
  }
}

std::vector<float> Outputs(Stream& stream, std::string_view backend, const std::string& line, float scale_factor = 1) {
  auto c = ParseCase(line);
  EXPECT_TRUE(c.ok()) << c.status().message();
  c->line.problem.scale *= scale_factor;
  const PreparedCase prepared = PreparedCase::Make(*c, stream.pool());
  PreparedCase::Tensors t = prepared.inputs();
  Args a = prepared.Views(t.q.view(), t.k.defined() ? t.k.view() : TensorView(),
                          t.v.defined() ? t.v.view() : TensorView(), t.out.view(), t.lse.view());
  auto plan = SequencePlan::Make(stream, {c->line.lengths, {}, {}});
  EXPECT_TRUE(plan.ok());
  a.plan = &*plan;
  auto chosen = Choose(prepared.problem(), stream.device(), backend);
  EXPECT_TRUE(chosen.ok()) << chosen.status().message();
  std::vector<char> workspace(chosen->backend->workspace_bytes(prepared.problem(), stream.device()));
  const Status s = chosen->backend->run(stream, prepared.problem(), a, {workspace.data(), workspace.size()});
  EXPECT_TRUE(s.ok()) << s.message();
  std::vector<float> out;
  for (size_t n = 0; n < c->line.lengths.size(); ++n) {
    for (int64_t i = 0; i < c->line.lengths[n]; ++i) {
      for (int64_t e = 0; e < int64_t{c->line.problem.heads} * c->line.problem.d; ++e) {
        out.push_back(static_cast<float>(t.out.Get(prepared.OutRow(static_cast<int64_t>(n), i), e)));
      }
    }
  }
  return out;
}

// One thread = many, padded = packed = strided: the same bits, whatever the cut.
TEST_P(VisionAttention, ResultsDoNotDependOnThreadsOrLayout) {
  for (const char* io : {"bf16", "fp32"}) {
    const std::string line = std::string("vision_attention heads=2 d=80 lens=150,64,0,129 io=") + io;
    for (const VisionBackend& b : Backends()) {
      if (b.name == "reference") continue;  // no cut, no vectors
      auto parsed = ParseCase(line);
      if (!b.check(parsed->line.problem, stream_->device()).ok()) continue;
      const auto want = Outputs(*stream_, b.name, line);
      for (const char* more : {" layout=qkv pad=8", " layout=heads_first", " padded=320"}) {
        ASSERT_EQ(Outputs(*MakeCpuStream(1), b.name, line + more), want) << b.name << more;
      }
      ASSERT_EQ(Outputs(*MakeCpuStream(8), b.name, line), want) << b.name;
    }
  }
}

// The same shapes with three scales, one after another in one process: nothing may remember the first.
TEST_P(VisionAttention, EveryScaleIsItsOwn) {
  const std::string line = "vision_attention heads=2 d=128 io=fp32 lens=64,100";
  for (const VisionBackend& b : Backends()) {
    if (!b.check(ParseCase(line)->line.problem, stream_->device()).ok()) continue;
    std::vector<std::vector<float>> results;
    for (float factor : {1.0f, 3.0f, 0.5f, 1.0f}) results.push_back(Outputs(*stream_, b.name, line, factor));
    EXPECT_EQ(results[0], results[3]) << b.name;
    EXPECT_NE(results[0], results[1]) << b.name;
    EXPECT_NE(results[0], results[2]) << b.name;
  }
}

// Image sizes in steps of 28 pixels, cut into windows of 8 x 8 patches: windows give what attention over the whole
// image gives under a mask that only lets tokens of one window meet.
TEST_P(VisionAttention, WindowsEqualAMaskOverTheWholeImage) {
  const int32_t d = 16;
  for (int64_t k : {1, 2, 5, 9}) {
    for (int64_t m : {1, 3, 4, 10}) {
      // Grid of 2k x 2m patches; a window covers 8 x 8 patches, fewer at the right and lower edge.
      std::vector<int64_t> windows;
      for (int64_t y = 0; y < 2 * k; y += 8) {
        for (int64_t x = 0; x < 2 * m; x += 8)
          windows.push_back(std::min<int64_t>(8, 2 * k - y) * std::min<int64_t>(8, 2 * m - x));
      }
      Case c;
      c.line.problem.heads = 1;
      c.line.problem.d = d;
      c.line.problem.io = DType::kF32;
      c.line.problem.scale = DefaultScale(d);
      c.line.lengths = windows;
      SetLengths(c.line.problem, windows);
      c.line.seed = static_cast<uint64_t>(k * 100 + m);
      const auto got = Outputs(*stream_, "cpu", FormatCase(c));
      const PreparedCase prepared = PreparedCase::Make(c, stream_->pool());
      PreparedCase::Tensors t = prepared.inputs();
      std::vector<int64_t> window_of;
      for (size_t w = 0; w < windows.size(); ++w)
        window_of.insert(window_of.end(), windows[w], static_cast<int64_t>(w));
      const auto tokens = static_cast<int64_t>(window_of.size());
      for (int64_t i = 0; i < tokens; ++i) {
        std::vector<double> s(tokens, -INFINITY);
        double largest = -INFINITY;
        for (int64_t j = 0; j < tokens; ++j) {
          if (window_of[j] != window_of[i]) continue;
          s[j] = 0;
          for (int64_t e = 0; e < d; ++e) s[j] += t.q.Get(i, e) * t.k.Get(j, e);
          s[j] *= c.line.problem.scale;
          largest = std::max(largest, s[j]);
        }
        double sum = 0;
        for (double& x : s) sum += x = std::exp(x - largest);
        for (int64_t e = 0; e < d; ++e) {
          double want = 0;
          for (int64_t j = 0; j < tokens; ++j) want += s[j] / sum * t.v.Get(j, e);
          ASSERT_NEAR(got[i * d + e], want, 1e-5) << k << "x" << m << " token " << i;
        }
      }
    }
  }
}

// Rows beyond 2^31 elements apart, in memory that is reserved but hardly touched.
TEST_P(VisionAttention, AddressesAreSixtyFourBit) {
  constexpr int64_t kPitch = (int64_t{1} << 30) + 64;  // elements; the last row starts beyond 2^31
  constexpr int64_t kTokens = 4, kD = 16;
  const size_t bytes = static_cast<size_t>(kTokens * kPitch) * 4;
  auto* area = static_cast<float*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(area, MAP_FAILED);
  test_kit::Random random(7);
  std::vector<float> near(4 * kTokens * kD);
  for (int64_t i = 0; i < kTokens; ++i) {
    for (int64_t e = 0; e < 3 * kD; ++e) {
      const auto x = static_cast<float>(random.Normal());
      area[i * kPitch + e] = x;
      near[(e / kD * kTokens + i) * kD + e % kD] = x;
    }
  }
  Problem p;
  p.heads = 1;
  p.d = kD;
  p.io = DType::kF32;
  p.scale = DefaultScale(kD);
  SetLengths(p, std::vector<int64_t>{kTokens});
  auto plan = SequencePlan::Make(*stream_, {{kTokens}, {}, {}});
  ASSERT_TRUE(plan.ok());
  for (const VisionBackend& b : Backends()) {
    if (!b.check(p, stream_->device()).ok()) continue;
    auto run = [&](float* base, int64_t token, int64_t part) {
      Args a;
      TensorView* views[] = {&a.q, &a.k, &a.v, &a.out};
      for (int64_t i = 0; i < 4; ++i) *views[i] = TensorView(base + i * part, p.io, {kTokens, 1, kD}, {token, kD, 1});
      a.plan = &*plan;
      std::vector<char> workspace(b.workspace_bytes(p, stream_->device()));
      return b.run(*stream_, p, a, {workspace.data(), workspace.size()});
    };
    ASSERT_TRUE(run(area, kPitch, kD).ok());
    ASSERT_TRUE(run(near.data(), kD, kTokens * kD).ok());
    for (int64_t i = 0; i < kTokens; ++i) {
      ASSERT_EQ(std::memcmp(area + i * kPitch + 3 * kD, near.data() + (3 * kTokens + i) * kD, kD * 4), 0) << b.name;
    }
  }
  munmap(area, bytes);
}

INSTANTIATE_TEST_SUITE_P(Targets, VisionAttention, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

}  // namespace
}  // namespace fluvial::ops::vision_attention
