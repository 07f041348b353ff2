// SPDX-License-Identifier: Apache-2.0
#include "text/stop_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace fluvial::text {
namespace {

/// What must come out, byte by byte from the definition.
std::string Cut(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stops) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) longest = std::max(longest, s.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopText, LetsTextThroughAtOnce) {
  StopText s({"END"});
  EXPECT_EQ(s.Push("hello "), "hello ");
  EXPECT_EQ(s.Push("E"), "");
  EXPECT_EQ(s.Push("N"), "");
  EXPECT_EQ(s.Push("ough"), "ENough");
  EXPECT_FALSE(s.stopped());
  EXPECT_EQ(s.Push("ENEN"), "EN") << "only the tail that may begin a stop string is held";
  EXPECT_EQ(s.Finish(), "EN");
}

TEST(StopText, StopsBeforeTheFirstByte) {
  StopText s({"\n\n", "</a>"});
  EXPECT_EQ(s.Push("one\n"), "one");
  EXPECT_EQ(s.Push("two</"), "\ntwo");
  EXPECT_EQ(s.Push("a> three"), "");
  EXPECT_TRUE(s.stopped());
  EXPECT_EQ(s.found(), "</a>");
  EXPECT_EQ(s.Push("more"), "");
  EXPECT_EQ(s.Finish(), "");
}

TEST(StopText, TheFirstToBeCompleteWins) {
  StopText s({"abc", "b"});
  EXPECT_EQ(s.Push("xabcb"), "xa") << "b is complete before abc is";
  EXPECT_EQ(s.found(), "b");
  StopText t({"c", "abc", "bc"});
  EXPECT_EQ(t.Push("xabcb"), "x") << "all complete at once: the longest";
  EXPECT_EQ(t.found(), "abc");
}

TEST(StopText, EmptyStopsNeverStop) {
  StopText s({"", ""});
  EXPECT_EQ(s.Push("abc"), "abc");
  EXPECT_FALSE(s.stopped());
}

TEST(StopText, AnySplitGivesTheSameText) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(random() % 3);
    for (auto& s : stops) {
      s.resize(1 + random() % 4);
      for (char& c : s) c = static_cast<char>('a' + random() % 2);
    }
    std::string text(random() % 24, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    StopText s(stops);
    std::string out;
    for (size_t at = 0; at < text.size() && !s.stopped();) {
      const size_t n = std::min<size_t>(1 + random() % 3, text.size() - at);
      out += s.Push(text.substr(at, n));
      // All that is out must be final: a prefix of the answer.
      ASSERT_EQ(Cut(text, stops).rfind(out, 0), 0u) << text;
      at += n;
    }
    out += s.Finish();
    ASSERT_EQ(out, Cut(text, stops)) << text;
    ASSERT_EQ(s.stopped(), Cut(text, stops).size() < text.size()) << text;
  }
}

}  // namespace
}  // namespace fluvial::text
