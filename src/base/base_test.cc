// SPDX-License-Identifier: Apache-2.0
// Status, Result, log, check, hash and arena.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "fluvial/status.h"
#include "fluvial/version.h"

namespace fluvial {
namespace {

TEST(Status, CodesNamesAndMessages) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status::Ok().ok());
  struct Case {
    Status status;
    Code code;
    const char* name;
  };
  const Case cases[] = {{Status::InvalidArgument("m"), Code::kInvalidArgument, "invalid_argument"},
                        {Status::UnusableModel("m"), Code::kUnusableModel, "unusable_model"},
                        {Status::Refused("m"), Code::kRefused, "refused"},
                        {Status::Resource("m"), Code::kResource, "resource"},
                        {Status::Cancelled("m"), Code::kCancelled, "cancelled"},
                        {Status::Failed("m"), Code::kFailed, "failed"}};
  for (const Case& c : cases) {
    EXPECT_FALSE(c.status.ok());
    EXPECT_EQ(c.status.code(), c.code);
    EXPECT_EQ(CodeName(c.status.code()), c.name);
    EXPECT_EQ(c.status.message(), "m");
  }
  EXPECT_EQ(CodeName(Code::kOk), "ok");
}

Result<std::unique_ptr<int>> Half(int x) {
  if (x % 2 != 0) return Status::InvalidArgument(std::to_string(x) + " is odd");
  return std::make_unique<int>(x / 2);
}
Result<int> Quarter(int x) {
  FLUVIAL_ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(x));
  FLUVIAL_ASSIGN_OR_RETURN(const std::unique_ptr<int> quarter, Half(*half));
  return *quarter;
}
Status IsFour(int x) {
  FLUVIAL_RETURN_IF_ERROR(Quarter(x).status());
  return x == 4 ? Status::Ok() : Status::Failed("not four");
}

TEST(Result, CarriesMoveOnlyValuesAndPassesErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_TRUE(Quarter(8).status().ok());
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(IsFour(5).message(), "5 is odd");
  EXPECT_EQ(IsFour(8).message(), "not four");
  EXPECT_TRUE(IsFour(4).ok());
}

TEST(Version, IsThreeNumbers) { EXPECT_EQ(Version(), "0.1.0"); }

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { SetLogSink(nullptr); }
};

TEST_F(LogTest, SilentWithoutASink) {
  EXPECT_FALSE(LogEnabled(LogLevel::kError));
  Log(LogLevel::kError, "nobody hears this");
}

TEST_F(LogTest, MinimumLevel) {
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel level, std::string_view line) {
    lines.push_back(std::string(LogLevelName(level)) + " " + std::string(line));
  });
  Log(LogLevel::kDebug, "a");
  LogInfo("b");
  LogWarning("c");
  Log(LogLevel::kError, "d");
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
  SetLogSink(nullptr);
  LogInfo("e");
  EXPECT_EQ(lines, (std::vector<std::string>{"info b", "warning c", "error d"}));
}

TEST_F(LogTest, CallsAreSerialised) {
  int count = 0;  // not atomic on purpose: the thread sanitizer sees a missing lock
  SetLogSink([&](LogLevel, std::string_view) { ++count; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) LogInfo("x");
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(count, 2000);
}

TEST(CheckDeathTest, SaysWhere) {
  EXPECT_DEATH(FLUVIAL_CHECK(1 == 2), "bug: .*base_test.cc:[0-9]+: check failed: 1 == 2");
  EXPECT_DEATH(FLUVIAL_CHECK_MSG(false, "the reason"), "the reason");
  FLUVIAL_CHECK(true);
}

TEST(Hash, OrderAndEveryBitCount) {
  EXPECT_NE(Hasher().Add(uint64_t{1}).Add(uint64_t{2}).Get(), Hasher().Add(uint64_t{2}).Add(uint64_t{1}).Get());
  std::set<uint64_t> seen{Hasher().Add(uint64_t{0}).Get()};
  for (int bit = 0; bit < 64; ++bit) seen.insert(Hasher().Add(uint64_t{1} << bit).Get());
  EXPECT_EQ(seen.size(), 65u);
}

TEST(Hash, EqualFloatsHashEqual) {
  EXPECT_EQ(Hasher().Add(0.0f).Get(), Hasher().Add(-0.0f).Get()) << "0 == -0, and problems compare with ==";
  EXPECT_NE(Hasher().Add(1.0f).Get(), Hasher().Add(1.0000001f).Get());
}

TEST(Arena, PiecesAreAlignedAndDisjoint) {
  alignas(Arena::kAlignment) char block[2048];
  Arena arena(block, sizeof(block));
  void* a = *arena.Take(1);
  void* b = *arena.Take(257);
  void* c = *arena.Take(0);
  EXPECT_EQ(a, block);
  EXPECT_EQ(b, block + 256);
  EXPECT_EQ(c, block + 768);
  EXPECT_EQ(arena.used(), 768u);
  EXPECT_EQ(arena.peak(), 768u);
}

TEST(Arena, TooSmallIsAnErrorWithBothNumbers) {
  alignas(Arena::kAlignment) char block[1024];
  Arena arena(block, sizeof(block));
  ASSERT_TRUE(arena.Take(600).ok());
  const auto r = arena.Take(300);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kResource);
  EXPECT_EQ(r.status().message(), "workspace too small: 1280 bytes needed, 1024 available");
  EXPECT_EQ(arena.used(), 768u) << "a failed Take takes nothing";
  EXPECT_TRUE(arena.Take(256).ok());
  EXPECT_FALSE(arena.Take(1).ok());
  EXPECT_FALSE(Arena().Take(1).ok());
}

TEST(Arena, SizesNearTheLimitDoNotWrapAround) {
  alignas(Arena::kAlignment) char block[1024];
  Arena arena(block, sizeof(block));
  ASSERT_TRUE(arena.Take(256).ok());
  for (size_t bytes : {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() - 255}) {
    const auto r = arena.Take(bytes);
    ASSERT_FALSE(r.ok()) << bytes;
    EXPECT_EQ(r.status().code(), Code::kResource);
  }
  EXPECT_EQ(arena.used(), 256u);
}

TEST(Arena, RewindGivesBackAndPeakRemembers) {
  alignas(Arena::kAlignment) char block[1024];
  Arena arena(block, sizeof(block));
  void* a = *arena.Take(256);
  const size_t mark = arena.used();
  ASSERT_TRUE(arena.Take(512).ok());
  arena.Rewind(mark);
  EXPECT_EQ(arena.used(), 256u);
  EXPECT_EQ(*arena.Take(256), static_cast<char*>(a) + 256);
  arena.Reset();
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.peak(), 768u);
}

}  // namespace
}  // namespace fluvial
