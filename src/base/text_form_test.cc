// SPDX-License-Identifier: Apache-2.0
#include "base/text_form.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>

namespace fluvial {
namespace {

using Lengths = std::vector<int64_t>;

TEST(Lengths, ReadsItemsAndRuns) {
  EXPECT_EQ(*ParseLengths("8192"), Lengths({8192}));
  EXPECT_EQ(*ParseLengths("1300,547,3x1024"), Lengths({1300, 547, 1024, 1024, 1024}));
  EXPECT_EQ(*ParseLengths("0,2x0"), Lengths({0, 0, 0})) << "empty sequences are legal";
  EXPECT_EQ(*ParseLengths("0x5"), Lengths()) << "no sequence of length 5";
  EXPECT_EQ(*ParseLengths(""), Lengths());
  EXPECT_EQ(ParseLengths("16777216x1")->size(), size_t{1} << 24);
}

TEST(Lengths, RefusesWhatIsNotALengthAndQuotesIt) {
  for (const char* text : {",",
                           "1,",
                           ",1",
                           "1,,2",
                           "x",
                           "x5",
                           "5x",
                           "1x2x3",
                           "-1",
                           "2x-1",
                           "-2x1",
                           "a",
                           "1.5",
                           " 1",
                           "1 ",
                           "0x",
                           "+1",
                           "99999999999999999999",
                           "1099511627777",
                           "16777217x1",
                           "16777216x1,1"}) {
    const auto r = ParseLengths(text);
    ASSERT_FALSE(r.ok()) << "'" << text << "'";
    EXPECT_EQ(r.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(r.status().message().find("COUNTxLENGTH"), std::string::npos) << text;
  }
}

TEST(Lengths, FormatIsTheInverse) {
  EXPECT_EQ(FormatLengths({}), "");
  EXPECT_EQ(FormatLengths({5}), "5");
  EXPECT_EQ(FormatLengths({5, 5, 1, 5}), "2x5,1,5");
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    Lengths lengths(random() % 12);
    for (auto& n : lengths) n = random() % 3 == 0 ? random() : random() % 3;
    ASSERT_EQ(*ParseLengths(FormatLengths(lengths)), lengths) << FormatLengths(lengths);
  }
}

TEST(FormatFloat, ShortestTextThatReadsBack) {
  EXPECT_EQ(FormatFloat(1e-6f), "1e-06");
  EXPECT_EQ(FormatFloat(-5), "-5");
  EXPECT_EQ(FormatFloat(0.1f), "0.1");
  std::mt19937 random(11);
  for (int i = 0; i < 100000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    auto fields = TextFields::Parse("op x=" + FormatFloat(x));
    ASSERT_TRUE(fields.ok());
    const auto back = fields->TakeFloat("x", 0);
    ASSERT_TRUE(back.ok()) << FormatFloat(x);
    ASSERT_EQ(std::bit_cast<uint32_t>(*back), std::bit_cast<uint32_t>(x)) << FormatFloat(x);
  }
}

TEST(TextFields, TakesEachFieldOnce) {
  auto f = TextFields::Parse("  kda_prefill\tlens=8x1024  hk=96 eps=1e-06 empty= eq=a=b ");
  ASSERT_TRUE(f.ok());
  EXPECT_EQ(f->name(), "kda_prefill");
  EXPECT_TRUE(f->Has("hk"));
  EXPECT_EQ(*f->TakeInt("hk", 1), 96);
  EXPECT_FALSE(f->Has("hk"));
  EXPECT_EQ(*f->TakeInt("hk", 1), 1) << "taken, so the fallback";
  EXPECT_EQ(*f->TakeFloat("eps", 0), 1e-6f);
  EXPECT_EQ(f->Take("lens"), "8x1024");
  EXPECT_EQ(f->Take("eq"), "a=b");
  EXPECT_TRUE(f->Has("empty"));
  EXPECT_EQ(f->Take("empty"), "");
  EXPECT_EQ(f->Take("nobody"), "");
  EXPECT_TRUE(f->Finish().ok());
}

TEST(TextFields, FinishNamesTheFirstFieldNobodyTook) {
  auto f = TextFields::Parse("gemm m=1 zz=2 yy=3");
  ASSERT_TRUE(f.ok());
  ASSERT_TRUE(f->TakeInt("m", 0).ok());
  const Status s = f->Finish();
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.message(), "problem line: gemm has no field 'zz'");
}

TEST(TextFields, BadLines) {
  struct Case {
    const char* line;
    const char* says;
  };
  for (const Case& c : {Case{"", "empty"}, Case{" \t ", "empty"}, Case{"op x", "'x' is not key=value"},
                        Case{"op =3", "'=3' is not key=value"}, Case{"op a=1 a=2", "'a' is given twice"}}) {
    const auto f = TextFields::Parse(c.line);
    ASSERT_FALSE(f.ok()) << c.line;
    EXPECT_NE(f.status().message().find(c.says), std::string::npos) << f.status().message();
  }
}

TEST(TextFields, BadNumbersQuoteTheField) {
  for (const char* text : {"", "x", "1.5", "1e3", "9223372036854775808", "0x10", "--1"}) {
    auto f = TextFields::Parse("op n=" + std::string(text));
    ASSERT_TRUE(f.ok());
    const auto r = f->TakeInt("n", 0);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_EQ(r.status().message(), "n=" + std::string(text) + ": not a whole number");
  }
  for (const char* text : {"", "x", "1.5z", "1e999", "."}) {
    auto f = TextFields::Parse("op n=" + std::string(text));
    ASSERT_TRUE(f.ok());
    EXPECT_FALSE(f->TakeFloat("n", 0).ok()) << text;
  }
}

}  // namespace
}  // namespace fluvial
