// SPDX-License-Identifier: Apache-2.0
#include "tools/command.h"

#include <gtest/gtest.h>

namespace fluvial::tools {
namespace {

TEST(ParseIds, NumbersAndCommas) {
  EXPECT_EQ(*ParseIds("1,2,3", "--ids"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(*ParseIds(" 7 , 8 ", "--ids"), (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(*ParseIds("2147483647", "--ids"), (std::vector<int32_t>{2147483647}));
  for (const char* text : {"", ",", "1,", ",1", "1,,2", "a", "-1", "1.5", "1 2", "2147483648", "0x1"}) {
    const auto r = ParseIds(text, "--ids");
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(r.status().message().rfind("--ids: ", 0), 0u);
  }
}

TEST(EnvironmentName, UpperCaseAndUnderscores) {
  EXPECT_EQ(EnvironmentName("--max-tokens"), "FLUVIAL_MAX_TOKENS");
  EXPECT_EQ(EnvironmentName("top-p"), "FLUVIAL_TOP_P");
}

TEST(ExitStatus, OnePerKindOfFailure) {
  EXPECT_EQ(ExitStatus(Code::kOk), 0);
  EXPECT_EQ(ExitStatus(Code::kFailed), 1);
  EXPECT_EQ(ExitStatus(Code::kResource), 1);
  EXPECT_EQ(ExitStatus(Code::kInvalidArgument), 2);
  EXPECT_EQ(ExitStatus(Code::kUnusableModel), 3);
  EXPECT_EQ(ExitStatus(Code::kRefused), 4);
}

}  // namespace
}  // namespace fluvial::tools
