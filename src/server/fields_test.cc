// SPDX-License-Identifier: Apache-2.0
#include "server/fields.h"

#include <gtest/gtest.h>

namespace fluvial::server {
namespace {

std::string Refused(const std::string& body) {
  Json json;
  const auto error = ParseBody(body, &json);
  return error.has_value() ? error->message : "";
}

TEST(ParseBody, TakesObjectsOnly) {
  Json json;
  EXPECT_FALSE(ParseBody(R"({"a": [1, {"b": "\u00e9"}], "c": null})", &json).has_value());
  EXPECT_EQ(json["a"][1]["b"], "\xC3\xA9");
  EXPECT_NE(Refused("").find("empty"), std::string::npos);
  EXPECT_NE(Refused("[]").find("not an object"), std::string::npos);
  EXPECT_NE(Refused("null").find("not an object"), std::string::npos);
  for (const char* bad :
       {"{", "{\"a\":}", "{\"a\":1,}", "{'a':1}", "{\"a\":NaN}", "{\"a\":1e999}", "{\"a\":1} x", "{\"a\":\"\xC3\"}",
        "{\"a\":\"\xED\xA0\x80\"}", "{\"a\":\"\\ud800\"}", "\xFF\xFE{}", "{\"a\":01}"}) {
    EXPECT_NE(Refused(bad).find("is not JSON"), std::string::npos) << bad << " -> " << Refused(bad);
  }
}

TEST(ParseBody, IsBounded) {
  const auto nested = [](size_t depth) { return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}"; };
  EXPECT_EQ(Refused(nested(60)), "");
  EXPECT_NE(Refused(nested(70)).find("nested deeper than 64"), std::string::npos);
  EXPECT_NE(Refused("{\"a\":" + std::string(1'000'000, '[')).find("nested deeper"), std::string::npos);

  EXPECT_NE(Refused(R"({"a":1,"b":{"a":2},"a":3})").find("\"a\" twice"), std::string::npos);
  EXPECT_EQ(Refused(R"({"a":{"x":1},"b":{"x":2}})"), "");

  const auto keys = [](int n) {
    std::string body = "{\"bias\":{";
    for (int i = 0; i < n; ++i) body += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
    return body + "}}";
  };
  EXPECT_EQ(Refused(keys(1024)), "");
  EXPECT_NE(Refused(keys(1025)).find("more than 1024 keys"), std::string::npos);
}

TEST(Fields, ReadsTypesAndNamesMistakes) {
  const Json body =
      Json::parse(R"({"b": true, "i": 3, "whole": 16.0, "f": 0.5, "t": "x", "one": "s", "many": ["p", "q"],
      "ids": [1, 2], "nothing": null, "half": 1.5, "big": 18446744073709551615, "o": {}, "empty": [""]})");
  Fields ok(body);
  bool b = false;
  int64_t i = 0, whole = 0;
  float f = 0;
  std::string t;
  std::vector<std::string> one, many;
  std::vector<int32_t> ids;
  int64_t nothing = 7;
  ok.Bool("b", &b);
  ok.Int("i", &i, 0, 5);
  ok.Int("whole", &whole, 0, 100);
  ok.Float("f", &f);
  ok.Text("t", &t);
  ok.Texts("one", &one, 4);
  ok.Texts("many", &many, 4);
  ok.Ids("ids", &ids, 4);
  ok.Int("nothing", &nothing, 0, 1);
  EXPECT_TRUE(ok.ok());
  EXPECT_TRUE(b);
  EXPECT_EQ(i, 3);
  EXPECT_EQ(whole, 16);
  EXPECT_EQ(f, 0.5f);
  EXPECT_EQ(one, std::vector<std::string>{"s"});
  EXPECT_EQ(many, (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(nothing, 7) << "null counts as absent";

  const auto message = [&](auto&& read) {
    Fields fields(body, "x.");
    read(fields);
    EXPECT_FALSE(fields.ok());
    return fields.ok() ? "" : fields.error()->param + ": " + fields.error()->message;
  };
  EXPECT_EQ(message([&](Fields& r) { r.Int("i", &i, 5, 9); }), "x.i: x.i is 3: it must be an integer in 5..9");
  EXPECT_EQ(message([&](Fields& r) { r.Int("half", &i, 0, 9); }),
            "x.half: x.half is 1.5: it must be an integer in 0..9");
  EXPECT_NE(message([&](Fields& r) { r.Int("big", &i, 0, 9); }).find("integer in 0..9"), std::string::npos);
  EXPECT_NE(message([&](Fields& r) { r.Bool("i", &b); }).find("true or false"), std::string::npos);
  EXPECT_NE(message([&](Fields& r) { r.Float("t", &f); }).find("a number"), std::string::npos);
  EXPECT_NE(message([&](Fields& r) { r.Texts("empty", &one, 4); }).find("none empty"), std::string::npos);
  EXPECT_NE(message([&](Fields& r) { r.Texts("many", &one, 1); }).find("at most 1"), std::string::npos);
  EXPECT_NE(message([&](Fields& r) { r.Ids("many", &ids, 9); }).find("token ids"), std::string::npos);
  EXPECT_NE(message([&](Fields& r) { r.List("o"); }).find("a list"), std::string::npos);
  EXPECT_NE(message([&](Fields& r) { r.Refuse("t", "why not", "harmless"); }).find("not supported: why not"),
            std::string::npos);
}

TEST(Fields, UnknownFieldsAreErrors) {
  const Json body = Json::parse(R"({"a": 1, "typo": 2})");
  Fields fields(body);
  int64_t a = 0;
  fields.Int("a", &a, 0, 9);
  fields.Refuse("absent", "never");
  EXPECT_TRUE(fields.ok());
  fields.RefuseUnknown();
  ASSERT_FALSE(fields.ok());
  EXPECT_EQ(fields.error()->param, "typo");
  Fields calm(body);
  calm.Ignore({"a", "typo"});
  calm.RefuseUnknown();
  EXPECT_TRUE(calm.ok());
}

TEST(Fields, QuotesAreShortAndWhole) {
  EXPECT_EQ(Quote(Json("abc")), "\"abc\"");
  const std::string quoted = Quote(Json(std::string(30, 'a') + "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9"));
  EXPECT_LE(quoted.size(), 40u);
  EXPECT_FALSE(Json::parse("\"" + quoted.substr(1, quoted.size() - 4) + "\"", nullptr, false).is_discarded()) << quoted;
}

}  // namespace
}  // namespace fluvial::server
