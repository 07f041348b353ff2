// SPDX-License-Identifier: Apache-2.0
#include "weights/safetensors.h"

#include <cstring>

#include <gtest/gtest.h>

namespace fluvial::weights {
namespace {

std::vector<uint8_t> File(const std::string& header, size_t data_bytes) {
  std::vector<uint8_t> out(8 + header.size() + data_bytes, 7);
  const uint64_t n = header.size();
  std::memcpy(out.data(), &n, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

Result<std::vector<TensorEntry>> Parse(const std::string& header, size_t data_bytes) {
  return ParseSafetensorsHeader(File(header, data_bytes), "x.safetensors");
}

/// The refusal's sentence; checks that it is one, names the file and says what to do.
std::string Refusal(const std::string& header, size_t data_bytes) {
  const auto r = Parse(header, data_bytes);
  if (r.ok()) return "(accepted)";
  EXPECT_EQ(r.status().code(), Code::kUnusableModel);
  EXPECT_TRUE(r.status().message().starts_with("x.safetensors: ")) << r.status().message();
  EXPECT_NE(r.status().message().find("download or convert it again"), std::string::npos);
  EXPECT_EQ(r.status().message().find('\n'), std::string::npos);
  return r.status().message();
}

#define EXPECT_REFUSED(header, bytes, part) \
  EXPECT_NE(Refusal(header, bytes).find(part), std::string::npos) << Refusal(header, bytes)

TEST(Safetensors, ReadsTensorsInDataOrder) {
  const auto r = Parse(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},)"
      R"("a":{"dtype":"BF16","shape":[3,1],"data_offsets":[0,6]},"e":{"dtype":"I64","shape":[0,4],"data_offsets":[14,14]},)"
      R"("s":{"dtype":"F16","shape":[],"data_offsets":[14,16]}}   )",
      16);
  ASSERT_TRUE(r.ok()) << r.status().message();
  ASSERT_EQ(r->size(), 4u);
  EXPECT_EQ((*r)[0].name, "a");
  EXPECT_EQ((*r)[0].dtype, DType::kBF16);
  EXPECT_EQ((*r)[0].shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ((*r)[1].name, "b");
  EXPECT_EQ((*r)[1].begin - (*r)[0].begin, 6u);
  EXPECT_EQ((*r)[2].name, "e");
  EXPECT_EQ((*r)[3].name, "s");
  EXPECT_TRUE((*r)[3].shape.empty());
}

TEST(Safetensors, EmptyFileOfTensorsIsLegal) {
  const auto r = Parse("{}", 0);
  ASSERT_TRUE(r.ok()) << r.status().message();
  EXPECT_TRUE(r->empty());
}

TEST(Safetensors, RefusesBadHeaderLengths) {
  std::vector<uint8_t> tiny(7, 0);
  EXPECT_FALSE(ParseSafetensorsHeader(tiny, "x").ok());
  EXPECT_FALSE(ParseSafetensorsHeader({}, "x").ok());
  auto file = File("{}", 0);
  for (const uint64_t n : {uint64_t{3}, uint64_t{1} << 20, kMaxSafetensorsHeader + 1, UINT64_MAX}) {
    std::memcpy(file.data(), &n, 8);
    const auto r = ParseSafetensorsHeader(file, "x");
    ASSERT_FALSE(r.ok()) << n;
    EXPECT_NE(r.status().message().find(std::to_string(n)), std::string::npos) << r.status().message();
  }
}

TEST(Safetensors, RefusesWhatIsNotTheFormat) {
  EXPECT_REFUSED("", 0, "not JSON");
  EXPECT_REFUSED("{", 0, "not JSON");
  EXPECT_REFUSED("[]", 0, "array");
  EXPECT_REFUSED("3", 0, "number");
  EXPECT_REFUSED("{\"a\":3}", 0, "number");
  EXPECT_REFUSED("{\"a\":[3]}", 0, "array");
  EXPECT_REFUSED("{\"a\":{}}", 0, "lacks");
  EXPECT_REFUSED("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "lacks");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown field 'x'");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "twice");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "array");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "number");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "-1");
  EXPECT_REFUSED(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "number");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "more than two");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "needs two");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1],"data_offsets":[0,4]}})", 4, "dimensions");
  EXPECT_REFUSED("{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not JSON");
  EXPECT_REFUSED("{} x", 0, "not JSON");
  EXPECT_REFUSED(std::string(100000, '['), 0, "array");
}

TEST(Safetensors, RefusesWrongExtents) {
  EXPECT_REFUSED(R"({"a":{"dtype":"U16","shape":[1],"data_offsets":[0,2]}})", 2, "dtype 'U16'");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8 bytes");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "data_offsets [4, 0]");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "unused bytes");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "ends at byte");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "belong to none");
  EXPECT_REFUSED(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
      6, "overlaps");
  EXPECT_REFUSED(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4, "overlaps");
  EXPECT_REFUSED(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      8, "appears twice");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "larger than any");
  EXPECT_REFUSED(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4, "dimension of");
  EXPECT_REFUSED(
      R"({"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[9223372036854775808,18446744073709551615]}})",
      4, "data_offsets");
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const auto whole = File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(ParseSafetensorsHeader(whole, "x").ok());
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(ParseSafetensorsHeader({whole.data(), n}, "x").ok()) << n;
  }
}

}  // namespace
}  // namespace fluvial::weights
