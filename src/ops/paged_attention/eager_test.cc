// SPDX-License-Identifier: Apache-2.0
// Files made with torch (testdata/make_eager.py): our reading of where transformers' eager attention rounds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "ops/paged_attention/test_kit.h"

namespace fluvial::ops::paged_attention {
namespace {

/// Lines "name tokens heads width bits...", all of one dtype.
std::map<std::string, std::vector<float>> Load(const std::string& file, DType type) {
  std::map<std::string, std::vector<float>> out;
  std::ifstream in(std::string(FLUVIAL_SOURCE_DIR) + "/src/ops/paged_attention/testdata/" + file);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t tokens = 0, heads = 0, width = 0;
    words >> name >> tokens >> heads >> width;
    for (int64_t i = 0; i < tokens * heads * width; ++i) {
      uint32_t bits = 0;
      words >> bits;
      out[name].push_back(static_cast<float>(LoadAsDouble(&bits, type, 0)));  // little-endian
    }
    EXPECT_FALSE(words.fail()) << file << " " << name;
  }
  EXPECT_EQ(out.size(), 4u) << file;
  return out;
}

// Returns how many of the outputs differ from torch's at all; fails when one differs by more than `tolerance`
// (relative).
int64_t Compare(const std::string& file, DType io, Rounding rounding, std::string_view name, double tolerance) {
  auto stored = Load(file, io);
  test::CallSetup s;
  s.problem.io = s.problem.kv = io;
  s.problem.hq = 6;
  s.problem.hkv = 2;
  s.problem.d_qk = s.problem.d_v = 24;
  s.problem.rounding = rounding;
  s.lengths = {11};
  s.contexts = {0};
  s.fill = [&](test::Tensor t, int64_t, int64_t position, int64_t head, int64_t dim) {
    const int64_t heads = t == test::kQ ? 6 : 2;
    return stored[t == test::kQ ? "q" : t == test::kK ? "k" : "v"][(position * heads + head) * 24 + dim];
  };
  test::Call call(s);
  auto stream = MakeCpuStream(1);
  double largest = 0;
  for (float v : stored["v"]) largest = std::max(largest, std::abs(static_cast<double>(v)));
  int64_t different = 0;
  for (const AttentionBackend& backend : Backends()) {
    if (backend.name != name) continue;
    const Status status = Execute(*stream, backend, call);
    EXPECT_TRUE(status.ok()) << status.message();
    for (int64_t i = 0; i < 11 * 6 * 24; ++i) {
      const double got = LoadAsDouble(call.out.data(), io, i), want = stored["out"][i];
      EXPECT_LE(std::abs(got - want), tolerance * largest) << file << " " << name << " " << i;
      different += got != want;
    }
  }
  return different;
}

// |scores| < 8 here: torch and we each err by a few units of 2^-24 in them, and the softmax passes that on.
TEST(EagerTorch, FloatAgreesToAFewUnits) {
  for (std::string_view name : {"cpu", "reference"}) {
    Compare("eager_fp32.txt", DType::kF32, Rounding::kOnce, name, 0x1p-20);
  }
}

// A score of up to 8 rounded twice to 8 bits errs by 2^-5 at most, weights and outputs add less: 2^-4 bounds rounding
// once against torch. With the same rounding points only sums next to a tie differ. Rounding once differs from torch
// far more often: the test would notice if the reference rounded elsewhere.
TEST(EagerTorch, Bf16RoundsWhereTransformersRounds) {
  const int64_t eager = Compare("eager_bf16.txt", DType::kBF16, Rounding::kEager, "reference", 0x1p-6);
  const int64_t once = Compare("eager_bf16.txt", DType::kBF16, Rounding::kOnce, "reference", 0x1p-4);
  RecordProperty("eager", std::to_string(eager));
  RecordProperty("once", std::to_string(once));
  EXPECT_LE(eager, 11 * 6 * 24 / 50) << "of " << 11 * 6 * 24;
  EXPECT_GE(once, 10 * std::max<int64_t>(eager, 1));
}

}  // namespace
}  // namespace fluvial::ops::paged_attention
